"""Episodes whose tokens and texts lie elsewhere: of a large run, only their outline passes through the driver.

A sealed trajectory is an ordinary one to whoever reads it. How many turns and tokens it has, its rewards, metrics and
times are there; tokens, log-probs, texts and pictures are fetched when they are read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Protocol, overload

import numpy as np

from roll.trajectories.model import Trajectory, Turn

_TOKENS: Final = ("prompt_ids", "completion_ids", "logprobs")
"""Of a turn, lists with one entry per token."""

_SAID: Final = ("observation", "response", "action", "frame", "messages", "pictures")
"""Of a turn, what else grows with what is said and shown."""

_SHOWN: Final = ("messages", "final_observation", "final_frame")
"""The same of a whole trajectory."""

_OF_TURN: Final = tuple(each.name for each in fields(Turn) if each.name not in _TOKENS + _SAID)
_OF_TRAJECTORY: Final = tuple(each.name for each in fields(Trajectory) if each.name not in _SHOWN)
"""What is in the outlines of both."""

_OPENED_AT_A_TIME: Final = 8
"""Episodes that a process which reads sealed ones keeps open, so that turn after turn fetches them once."""


class Parcel(Protocol):
    """A place where a value lies; small, and can be sent to other processes."""

    @property
    def number(self) -> int:
        """What its keeper calls the value."""
        ...

    def __hash__(self) -> int:
        """Tell places apart."""
        ...

    def open(self) -> Any:
        """Return the value."""
        ...


@dataclass(frozen=True, slots=True)
class Contents:
    """What is elsewhere of one episode. Lists of tokens are arrays here, which a store takes as they are.

    Attributes:
        tokens: ``prompt_ids``, ``completion_ids`` (int32, or int64 where ids are larger) and ``logprobs`` (float32
            where that loses nothing, else float64) of all turns in a row, by name.
        said: The other entries of each turn, by name.
        shown: Those of the episode, by name.
    """

    tokens: dict[str, np.ndarray]
    said: list[dict[str, Any]]
    shown: dict[str, Any]


Put = Callable[[Contents], Awaitable[Parcel]]
"""Puts contents somewhere and says where."""


async def seal(trajectory: Trajectory, put: Put) -> Trajectory:
    """Return the outline of a trajectory, after the rest was put elsewhere.

    Args:
        trajectory: Must not be used any more.
        put: Puts a value somewhere and says where.
    """
    contents = Contents(
        {name: _array([getattr(turn, name) for turn in trajectory.turns]) for name in _TOKENS},
        [_named(turn, _SAID) for turn in trajectory.turns],
        _named(trajectory, _SHOWN),
    )
    parcel = await put(contents)
    places, turns = dict.fromkeys(_TOKENS, 0), []
    for number, turn in enumerate(trajectory.turns):
        spans = {}
        for name in _TOKENS:
            start, places[name] = places[name], places[name] + len(getattr(turn, name))
            spans[name] = (start, places[name])
        turns.append(SealedTurn(parcel, number, spans, _named(turn, _OF_TURN)))
    beside = [await seal(other, put) for other in trajectory.beside]
    kept = {**_named(trajectory, _OF_TRAJECTORY), "turns": turns, "beside": beside}
    return SealedTrajectory(parcel, kept)


def opened(trajectory: Trajectory, contents: Contents | None = None, *, as_arrays: bool = False) -> Trajectory:
    """Return a trajectory with everything in it; one that is not sealed as it is.

    What was written into the outline since it was sealed (rewards, scores, metrics) counts.

    Args:
        trajectory: Sealed or not.
        contents: What its parcel holds, where that was fetched already.
        as_arrays: Leave tokens and log-probs arrays, for samples that are made of them.
    """
    if not isinstance(trajectory, SealedTrajectory):
        return trajectory
    held = trajectory.parcel.open() if contents is None else contents
    turns = []
    for turn in trajectory.turns:
        if not isinstance(turn, SealedTurn):
            turns.append(turn)
            continue
        arrays = {name: held.tokens[name][slice(*turn.spans[name])] for name in _TOKENS}
        tokens: dict[str, Any] = arrays if as_arrays else {name: each.tolist() for name, each in arrays.items()}
        turns.append(Turn(**turn.kept(), **tokens, **held.said[turn.number]))
    kept = {**trajectory.kept(), "turns": turns, "beside": [opened(other) for other in trajectory.beside]}
    return Trajectory(**kept, **held.shown)


class _Elsewhere:
    """An entry that is fetched when it is read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: Any, owner: type | None = None) -> Any:
        return self if record is None else record.fetched(self.name)

    def __set__(self, record: Any, value: Any) -> None:
        raise AttributeError(f"{self.name} of a sealed episode lies elsewhere: change it in what opened() returns.")


class SealedTurn(Turn):
    """The outline of a turn; made by :func:`seal`.

    Args:
        parcel: Where the rest is.
        number: Which turn of its episode it is.
        spans: Where its tokens begin and end among those of all turns.
        kept: What is here.
    """

    __slots__ = ("number", "parcel", "spans")

    prompt_ids: Any = _Elsewhere()
    completion_ids: Any = _Elsewhere()
    logprobs: Any = _Elsewhere()
    observation: Any = _Elsewhere()
    response: Any = _Elsewhere()
    action: Any = _Elsewhere()
    frame: Any = _Elsewhere()
    messages: Any = _Elsewhere()
    pictures: Any = _Elsewhere()

    def __init__(self, parcel: Parcel, number: int, spans: dict[str, tuple[int, int]], kept: dict[str, Any]) -> None:
        self.parcel, self.number, self.spans = parcel, number, spans
        for name, value in kept.items():
            setattr(self, name, value)

    def kept(self) -> dict[str, Any]:
        """Return what is here, by name."""
        return _named(self, _OF_TURN)

    def fetched(self, name: str) -> Any:
        """Return an entry that is elsewhere; of lists with an entry per token, what knows its length."""
        if name in _TOKENS:
            return TokensElsewhere(self.parcel, name, *self.spans[name])
        return _open(self.parcel).said[self.number][name]

    def __repr__(self) -> str:
        return f"<turn {self.number}, sealed>"

    def __reduce__(self) -> Any:
        return SealedTurn, (self.parcel, self.number, self.spans, self.kept())


class SealedTrajectory(Trajectory):
    """The outline of an episode; made by :func:`seal`.

    Args:
        parcel: Where the rest is.
        kept: What is here.
    """

    __slots__ = ("parcel",)

    messages: Any = _Elsewhere()
    final_observation: Any = _Elsewhere()
    final_frame: Any = _Elsewhere()

    def __init__(self, parcel: Parcel, kept: dict[str, Any]) -> None:
        self.parcel = parcel
        for name, value in kept.items():
            setattr(self, name, value)

    def kept(self) -> dict[str, Any]:
        """Return what is here, by name."""
        return _named(self, _OF_TRAJECTORY)

    def fetched(self, name: str) -> Any:
        """Return an entry that is elsewhere."""
        return _open(self.parcel).shown[name]

    def __repr__(self) -> str:
        # Debuggers and event loops show values at any time: nothing is fetched for that.
        return f"<trajectory {self.group_id}/{self.episode} ({self.tag}), sealed>"

    def __reduce__(self) -> Any:
        return SealedTrajectory, (self.parcel, self.kept())


class TokensElsewhere(Sequence[Any]):
    """A list with an entry per token of a turn; fetched when an entry is read.

    Args:
        parcel: Where it is.
        name: Its name among the :class:`Contents`.
        start: Where it begins there.
        end: Where it ends.
    """

    def __init__(self, parcel: Parcel, name: str, start: int, end: int) -> None:
        self._parcel, self._name, self._start, self._end = parcel, name, start, end

    def __len__(self) -> int:
        return self._end - self._start

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._values()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._values() == list(other)

    def __hash__(self) -> int:
        return id(self)

    def _values(self) -> list[Any]:
        values: list[Any] = _open(self._parcel).tokens[self._name][self._start : self._end].tolist()
        return values


@lru_cache(maxsize=_OPENED_AT_A_TIME)
def _open(parcel: Parcel) -> Contents:
    contents: Contents = parcel.open()
    return contents


def _named(record: Turn | Trajectory, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _array(lists: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the entries of lists in a row, in the narrowest type that has them all exactly."""
    whole = np.concatenate([np.asarray(each) for each in lists if len(each)] or [np.zeros(0, np.int32)])
    narrow = whole.astype(np.float32 if whole.dtype.kind == "f" else np.int32)
    return narrow if np.array_equal(narrow, whole, equal_nan=narrow.dtype.kind == "f") else whole
