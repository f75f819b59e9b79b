"""A tool: it alone knows what is to be said, so that only who called it can say it."""

from __future__ import annotations

import verifiers.v1 as vf
from verifiers.v1.types import content_text

__all__ = ["ToolTaskset"]


class Seal(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "seal"

    @vf.tool
    def stamp(self, word: str) -> str:
        """Stamp a word."""
        return f"{word}/{sum(word.encode()) % 97}"


class ToolOptions(vf.TaskConfig):
    seal: vf.ToolsetConfig = vf.ToolsetConfig()


class ToolTask(vf.Task[vf.TaskData, vf.State, ToolOptions]):
    @classmethod
    def toolsets(cls, config: ToolOptions) -> list[vf.Toolset]:
        return [Seal(config.seal)]

    @vf.reward
    async def stamped(self, trace: vf.Trace) -> float:
        wanted = f"opal/{sum(b'opal') % 97}"
        return float(any(wanted in content_text(message.content) for message in trace.tool_messages))

    @vf.reward(weight=0.5)
    async def told(self, trace: vf.Trace) -> float:
        return float(f"opal/{sum(b'opal') % 97}" in trace.last_reply)


class ToolTasksetOptions(vf.TasksetConfig):
    task: ToolOptions = ToolOptions()


class ToolTaskset(vf.Taskset[ToolTask, ToolTasksetOptions]):
    def load(self) -> list[ToolTask]:
        return [ToolTask(vf.TaskData(prompt="Have opal stamped, and say what you got."), self.config.task)]


if __name__ == "__main__":
    Seal.run()
