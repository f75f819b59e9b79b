"""What happened to an episode when, as spans: it was sampled, turn by turn, lay in a store, and was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from roll.tracking.traces import Span, Traces, span_id, trace_id
from roll.tracking.traces.spans import Attribute
from roll.trajectories.model import Trajectory, TrajectoryGroup, Turn

_NAMES: Final = {
    "wait": "queue",
    "generate": "generate",
    "queue": "queue for the environment",
    "env": "environment",
    "tool": "tool",
    "render": "render",
    "reward": "grade",
}
"""Phases of a turn in the order in which it has them, and what their spans are called."""

_OPERATION: Final = "gen_ai.operation.name"
_READ: Final = "gen_ai.usage.input_tokens"
_WRITTEN: Final = "gen_ai.usage.output_tokens"
"""Names of OpenTelemetry's conventions for generative models, which collectors know: agents, models, tools, and tokens
that were read and written.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/.
"""


def trace_of(trajectory: Trajectory) -> int:
    """Return the id of the trace of an episode: the same in the program that samples and in the one that learns."""
    return trace_id(trajectory.began, trajectory.tag, trajectory.seed, trajectory.initial_hash, trajectory.episode)


def ended(trajectory: Trajectory) -> float:
    """Return when an episode was over, its grade included, in Unix seconds."""
    return max((_phases(turn)[-1][2] for turn in trajectory.turns), default=trajectory.began)


def sampled_spans(trajectory: Trajectory) -> Iterator[Span]:
    """Yield the spans of an episode that was sampled: itself, its turns, and the phases of each."""
    trace = trace_of(trajectory)
    whole, end = span_id(trace, "trajectory"), ended(trajectory)
    known = {
        _OPERATION: "invoke_agent",
        "gen_ai.agent.name": trajectory.tag,
        "tag": trajectory.tag,
        "group": trajectory.group_id,
        "episode": trajectory.episode,
        "status": trajectory.status.value,
        "turns": len(trajectory.turns),
        "tokens": trajectory.completion_tokens,
        **({} if trajectory.score is None else {"score": trajectory.score}),
    }
    error = (trajectory.error or trajectory.status.value) if trajectory.status.is_error else None
    yield Span(trace, whole, "trajectory", trajectory.began, end, None, known, error)
    first = trajectory.turns[0].began if trajectory.turns else end
    if first > trajectory.began:
        yield Span(trace, span_id(trace, "reset"), "reset", trajectory.began, first, whole)
    read = 0
    for number, turn in enumerate(trajectory.turns, start=1):
        read = len(turn.prompt_ids) + (0 if turn.starts_sample else read)
        yield from _turn_spans(trace, whole, number, turn, read)
        read += len(turn.completion_ids)


def _turn_spans(trace: int, whole: int, number: int, turn: Turn, read: int) -> Iterator[Span]:
    inside, phases = span_id(trace, number), _phases(turn)
    oldest, newest = turn.policy_version
    known = {"turn": number, "tokens": len(turn.completion_ids), "oldest_version": oldest, "newest_version": newest}
    yield Span(trace, inside, f"turn {number}", turn.began, phases[-1][2], whole, known)
    conventional: dict[str, Mapping[str, Attribute]] = {
        "generate": {_OPERATION: "chat", _READ: read, _WRITTEN: len(turn.completion_ids)},
        "tool": {_OPERATION: "execute_tool"},
    }
    for phase, begun, until in phases:
        if until > begun:
            name, part = _NAMES.get(phase, phase), span_id(trace, number, phase)
            yield Span(trace, part, name, begun, until, inside, conventional.get(phase, {}))


def _phases(turn: Turn) -> list[tuple[str, float, float]]:
    """Return the phases of a turn with begin and end, added up in one order: the last ends when the turn does."""
    at, found = turn.began, [("", turn.began, turn.began)]
    for phase in sorted(turn.seconds, key=_order):
        found.append((phase, at, at + turn.seconds[phase]))
        at = found[-1][2]
    return found


def _order(phase: str) -> int:
    return list(_NAMES).index(phase) if phase in _NAMES else len(_NAMES)


class EpisodeTraces:
    """Traces the episodes of a run.

    Args:
        traces: Where their spans go.
    """

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def sampled(self, trajectory: Trajectory) -> None:
        """An episode is over."""
        if self._wanted(trajectory):
            self._traces.add(sampled_spans(trajectory))

    def learned(self, groups: Sequence[TrajectoryGroup], step: int, begun: float, until: float) -> None:
        """Groups were given to a step at ``begun``, which had learned from them at ``until``, in Unix seconds."""
        for each in (member for group in groups for member in group.trajectories):
            if self._wanted(each):
                trace, known = trace_of(each), {"step": step}
                whole = span_id(trace, "trajectory")
                lay = Span(trace, span_id(trace, "store", step), "store", min(ended(each), begun), begun, whole, known)
                train = Span(trace, span_id(trace, "train", step), "train", begun, until, whole, known)
                self._traces.add([lay, train])

    def _wanted(self, trajectory: Trajectory) -> bool:
        return trajectory.began > 0 and self._traces.wants(trace_of(trajectory))
