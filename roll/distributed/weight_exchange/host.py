"""The actor between a program that learns and programs that explore: which versions there are, and who asks for one.

It holds the weights themselves, in Ray's object store, where they travel through memory. Where the trainer sends them
to the engines, it passes on what both sides have to say about that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray

from roll.distributed.transport import Packed

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""A bucket of weights, ``[nbytes]``."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is.

    Attributes:
        trainer: The program that learns, by a name that each start has anew; ``None``: none has begun.
        begun_at: The step that it went on from: versions below are there if somebody kept them.
        versions: What is offered, ascending.
        finished: Whether nothing more will come.
        asking: Explorers that ask for the weights of now, with the number of their request.
    """

    trainer: str | None
    begun_at: int
    versions: tuple[int, ...]
    finished: bool
    asking: dict[str, int]


@dataclass(frozen=True, slots=True)
class Stored:
    """The weights of a version in the object store.

    Attributes:
        manifest: What is where in the buckets, as JSON.
        buckets: References to :data:`Bytes`.
    """

    manifest: str
    buckets: list[ray.ObjectRef[Bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WeightCall:
    """What an explorer asks of the trainer.

    Attributes:
        name: Its own.
        caller: The explorer.
        method: ``open_weights``, ``send_weights`` or ``close_weights``.
        args: Its arguments.
    """

    name: str
    caller: str
    method: str
    args: Packed


class WeightHost:
    """Knows the versions, and holds those that travel through memory: they are there as long as this process lives."""

    def __init__(self) -> None:
        self._trainer: str | None = None
        self._begun_at = 0
        self._finished = False
        self._versions: dict[int, Stored | None] = {}
        self._arriving: list[ray.ObjectRef[Bytes]] = []
        self._asked: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._calls: dict[str, WeightCall] = {}
        self._answers: dict[str, Packed] = {}

    def standing(self) -> Standing:
        """Return what there is."""
        asking = {name: number for name, number in self._asked.items() if self._answered.get(name) != number}
        return Standing(self._trainer, self._begun_at, tuple(sorted(self._versions)), self._finished, asking)

    def begin(self, trainer: str, step: int) -> None:
        """Take note that a trainer begins, or goes on from a step.

        What lies here stays, up to that step; what only an earlier trainer could send, and what it was asked, is gone.
        """
        self._trainer, self._begun_at, self._finished = trainer, step, False
        self._versions = {
            version: stored for version, stored in self._versions.items() if stored is not None and version <= step
        }
        self._calls, self._answers = {}, {}

    def put(self, number: int, bucket: Bytes) -> None:
        """Keep a bucket of the version that is offered next; they come in their order, from number 0."""
        del self._arriving[number:]
        self._arriving.append(ray.put(bucket))

    def offer(self, version: int, kept: int, manifest: str | None = None, buckets: int = 0) -> bool:
        """Let explorers have a version.

        Args:
            version: The version.
            kept: How many of the newest stay.
            manifest: Of the buckets that were put; ``None``: the trainer sends it to who asks.
            buckets: How many were put.

        Returns:
            Whether all of them are here; this process may have been made again meanwhile.
        """
        if len(self._arriving) != buckets:
            self._arriving = []
            return False
        self._versions[version] = None if manifest is None else Stored(manifest, self._arriving)
        self._arriving = []
        for old in sorted(self._versions)[:-kept]:
            del self._versions[old]
        return True

    def stored(self, version: int) -> Stored | None:
        """Return the weights of a version; ``None`` where they are not here."""
        return self._versions.get(version)

    def finish(self) -> None:
        """Take note that nothing more will come, and that the trainer sends no more."""
        self._finished = True
        self._versions = {version: stored for version, stored in self._versions.items() if stored is not None}
        self._calls, self._answers, self._trainer = {}, {}, None

    def ask(self, explorer: str, number: int) -> None:
        """Ask for the weights of now, by a number that the explorer asks by again after it was killed."""
        self._asked[explorer] = number

    def is_answered(self, explorer: str, number: int) -> bool:
        """Return whether the weights of the moment of a request are there."""
        return self._answered.get(explorer) == number

    def answer(self, asked: dict[str, int]) -> None:
        """Take note that there are weights for those who asked."""
        self._answered.update(asked)

    def send(self, trainer: str, call: WeightCall) -> bool:
        """Pass something on to a trainer; returns whether it is there. Sent twice, it is one call."""
        if trainer == self._trainer:
            self._calls[call.name] = call
        return trainer == self._trainer

    def calls(self, trainer: str) -> list[WeightCall]:
        """Return what a trainer was sent since the last call."""
        if trainer != self._trainer:
            return []
        calls, self._calls = list(self._calls.values()), {}
        return calls

    def reply(self, trainer: str, call: str, answer: Packed) -> None:
        """Answer a call."""
        if trainer == self._trainer:
            self._answers[call] = answer

    def reply_to(self, trainer: str, call: str) -> tuple[bool, Packed | None]:
        """Return whether a trainer is still there, and its answer to a call, once there is one."""
        return trainer == self._trainer, self._answers.pop(call, None)
