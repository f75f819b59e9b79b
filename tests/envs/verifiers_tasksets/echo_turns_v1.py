"""Several turns: a user, whose part the environment plays, names one word after the other."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["TurnsEnv", "TurnsTaskset"]


class TurnsData(vf.TaskData):
    words: list[str]


class TurnsTask(vf.Task[TurnsData]):
    @vf.reward(weight=2.0)
    async def repeated(self, trace: vf.Trace) -> float:
        said = [message.content or "" for message in trace.assistant_messages]
        pairs = zip(self.data.words, said, strict=False)
        return sum(word in text for word, text in pairs) / len(self.data.words)


class TurnsTaskset(vf.Taskset[TurnsTask, vf.TasksetConfig]):
    def load(self) -> list[TurnsTask]:
        rows = (["oak", "elm", "ash"], ["one", "two"])
        return [TurnsTask(TurnsData(words=row, system_prompt="Say it again."), self.config.task) for row in rows]


class TurnsEnv(vf.SingleAgentEnv):
    async def run(self, task: TurnsTask, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as conversation:
            for word in task.data.words:
                if (await conversation.turn(word)).terminated:
                    break
