"""What goes wrong in a taskset: a task for each place that its option names."""

from __future__ import annotations

import asyncio
import os

import verifiers.v1 as vf

__all__ = ["BrokenTaskset"]


class BrokenOptions(vf.TasksetConfig):
    places: list[str]


class BrokenTask(vf.Task):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.data.name == "setup":
            raise OSError("no disk")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        print("What a taskset prints is no answer.")
        if self.data.name == "process":
            os._exit(7)
        if self.data.name == "slow":
            await asyncio.sleep(100)

    @vf.reward
    async def scored(self, trace: vf.Trace) -> float:
        if self.data.name == "reward":
            raise KeyError("no such column")
        return float("nan") if self.data.name == "number" else 1.0


class BrokenTaskset(vf.Taskset[BrokenTask, BrokenOptions]):
    def load(self) -> list[BrokenTask]:
        return [BrokenTask(vf.TaskData(prompt="Hello", name=place), self.config.task) for place in self.config.places]
