"""A taskset of verifiers (v1) in one turn: say a word again, and earn how much of what is said is that word."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

import verifiers.v1 as vf

__all__ = ["EchoTaskset"]

WORDS = ("tide", "ember", "quartz", "violet", "lantern", "harbour")


class EchoOptions(vf.TasksetConfig):
    """Options of the taskset.

    Attributes:
        words: The words, one a task.
    """

    words: list[str] = list(WORDS)


class EchoTask(vf.Task):
    """Say a word again."""

    @vf.reward
    async def echoed(self, trace: vf.Trace) -> float:
        """Return how alike word and answer are: twice the letters they share in order, by the letters of both."""
        return SequenceMatcher(None, self.data.prompt_text, trace.last_reply, autojunk=False).ratio()

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        """Return the length of the answer."""
        return float(len(trace.last_reply))


class EchoTaskset(vf.Taskset[EchoTask, EchoOptions]):
    """A task for each word."""

    def load(self) -> Iterator[EchoTask]:
        """Yield the tasks."""
        for word in self.config.words:
            yield EchoTask(vf.TaskData(prompt=word, system_prompt="Say it again."), self.config.task)
