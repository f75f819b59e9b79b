"""What goes wrong in a taskset: each task fails at a place of its own."""

from __future__ import annotations

import os

import verifiers.v1 as vf

__all__ = ["BrokenTaskset"]


class BrokenTask(vf.Task):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.data.name == "setup":
            raise OSError("no disk")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.data.name == "process":
            os._exit(7)

    @vf.reward
    async def scored(self, trace: vf.Trace) -> float:
        if self.data.name == "reward":
            raise KeyError("no such column")
        return float("nan") if self.data.name == "number" else 1.0


class BrokenTaskset(vf.Taskset[BrokenTask, vf.TasksetConfig]):
    def load(self) -> list[BrokenTask]:
        names = ("setup", "process", "reward", "number")
        return [BrokenTask(vf.TaskData(prompt="Hello", name=name), self.config.task) for name in names]
