"""What happened to an episode when is told as it was recorded, and goes on in the program that learns from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from roll.pipelines.reporting.episode_spans import EpisodeTraces, ended, sampled_spans, trace_of
from roll.tracking.traces import Span, Traces
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn

TURNS = [
    Turn(
        [1],
        [2, 3],
        [-1.0, -1.0],
        (4, 5),
        seconds={"wait": 1.0, "generate": 2.0, "queue": 0.5, "env": 0.25},
        began=103.0,
    ),
    Turn([4], [5], [-1.0], (5, 5), seconds={"generate": 1.0, "queue": 0.0, "tool": 0.5, "reward": 0.25}, began=107.0),
]
EPISODE = Trajectory("tag", "train-0000003", 1, 7, turns=TURNS, status=Status.COMPLETED, score=1.0, began=100.0)


class Kept:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def export(self, spans: Iterable[Span]) -> None:
        self.spans += spans

    def close(self) -> None:
        pass


def test_each_phase_has_its_time_within_its_turn() -> None:
    spans = list(sampled_spans(EPISODE))
    times = [(span.name, span.begun, span.ended) for span in spans]
    assert times == [
        ("trajectory", 100.0, 108.75),
        ("reset", 100.0, 103.0),
        ("turn 1", 103.0, 106.75),
        ("queue", 103.0, 104.0),
        ("generate", 104.0, 106.0),
        ("queue for the environment", 106.0, 106.5),
        ("environment", 106.5, 106.75),
        ("turn 2", 107.0, 108.75),
        ("generate", 107.0, 108.0),
        ("tool", 108.0, 108.5),
        ("grade", 108.5, 108.75),
    ]
    by_number = {span.number: span for span in spans}
    assert len(by_number) == len(spans) and {span.trace for span in spans} == {trace_of(EPISODE)}
    parents = {span.name: by_number[span.parent].name for span in spans if span.parent is not None}
    assert parents["tool"] == "turn 2" and parents["turn 2"] == parents["reset"] == "trajectory"
    assert spans[0].attributes == {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "tag",
        "tag": "tag", "group": "train-0000003", "episode": 1, "status": "completed", "turns": 2, "tokens": 3,
        "score": 1.0,
    }  # fmt: skip


def test_collectors_are_told_what_models_read_and_wrote_by_the_names_that_they_know() -> None:
    third = replace(TURNS[1], prompt_ids=[1, 2, 3, 4, 5], starts_sample=True)
    spans = sampled_spans(replace(EPISODE, turns=[*TURNS, third]))
    told = [span for span in spans if "chat" in span.attributes.values()]
    assert [span.name for span in told] == ["generate"] * 3
    assert [span.attributes["gen_ai.usage.input_tokens"] for span in told] == [1, 4, 5]
    assert [span.attributes["gen_ai.usage.output_tokens"] for span in told] == [2, 1, 1]
    names = [name for span in sampled_spans(EPISODE) for name in span.attributes if name.startswith("gen_ai.")]
    assert set(names) <= conventional_names(), "OpenTelemetry has these names"
    tools = [span for span in sampled_spans(EPISODE) if span.name == "tool"]
    assert [span.attributes for span in tools] == [{"gen_ai.operation.name": "execute_tool"}]


def conventional_names() -> set[str]:
    conventions = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    return {value for value in vars(conventions).values() if isinstance(value, str)}


def test_an_episode_that_broke_says_why_and_one_without_turns_has_no_length() -> None:
    broken = replace(EPISODE, turns=[], status=Status.ERROR_ENV, error="it broke", score=None)
    (span,) = sampled_spans(broken)
    assert span.error == "it broke" and (span.begun, span.ended) == (100.0, 100.0) and "score" not in span.attributes


def test_what_learns_goes_on_with_the_trace_whatever_the_store_calls_the_group() -> None:
    sampling, learning = Kept(), Kept()
    EpisodeTraces(Traces(sampling)).sampled(EPISODE)
    stored = replace(EPISODE, group_id="second/train-0000003")
    traces = EpisodeTraces(Traces(learning))
    traces.learned([TrajectoryGroup("second/train-0000003", "tag", [stored])], 9, 200.0, 230.0)
    traces.learned([TrajectoryGroup("second/train-0000003", "tag", [stored])], 10, 300.0, 330.0)
    times = [(span.name, span.begun, span.ended, span.attributes["step"]) for span in learning.spans]
    assert times == [
        ("store", ended(EPISODE), 200.0, 9), ("train", 200.0, 230.0, 9),
        ("store", ended(EPISODE), 300.0, 10), ("train", 300.0, 330.0, 10),
    ]  # fmt: skip
    everything = [*sampling.spans, *learning.spans]
    assert (
        len({span.number for span in everything}) == len(everything) and len({span.trace for span in everything}) == 1
    )


def test_what_is_not_known_or_not_wanted_is_not_traced() -> None:
    kept = Kept()
    EpisodeTraces(Traces(kept)).sampled(replace(EPISODE, began=0.0))
    EpisodeTraces(Traces()).sampled(EPISODE)
    EpisodeTraces(Traces(kept, share=1e-30)).sampled(EPISODE)
    assert not kept.spans
