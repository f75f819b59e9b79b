"""The policy as calls reach it, and what an episode is called."""

from __future__ import annotations

from dataclasses import dataclass, field

from roll.generation import Activity, Generate, NoActivity, SamplingParams
from roll.rendering import Renderer


@dataclass(frozen=True, kw_only=True)
class ServedPolicy:
    """A policy as calls reach it.

    Attributes:
        renderer: Messages to tokens and back.
        generate: Asked once per answer.
        sampling: How tokens are drawn where a call does not say it, and the most tokens of an answer.
        sequence_length: Most tokens of a prompt and an answer.
        overrules: Whether ``sampling`` counts in place of what calls say of temperature, top-p and top-k: what is
            learned from is drawn as the run says.
        timeout: Seconds for one answer, waiting included; ``None`` for any time.
        most_calls: Calls of an episode; ``None`` for any number.
        activity: Told when an episode works outside the engine.
    """

    renderer: Renderer
    generate: Generate
    sampling: SamplingParams
    sequence_length: int
    overrules: bool = True
    timeout: float | None = None
    most_calls: int | None = None
    activity: Activity = field(default_factory=NoActivity)

    @classmethod
    def in_use(cls, renderer: Renderer, generate: Generate, sequence_length: int) -> ServedPolicy:
        """Return a policy that is used and not learned from: calls say how tokens are drawn."""
        sampling = SamplingParams(sequence_length)
        return cls(
            renderer=renderer, generate=generate, sampling=sampling, sequence_length=sequence_length, overrules=False
        )


@dataclass(frozen=True, slots=True)
class Name:
    """What an episode is called, which keys the noise of its answers.

    Attributes:
        run_seed: Seed of the run.
        group_id: Its group.
        episode: Its number in the group.
        priority: Smaller is served earlier where engines are full.
    """

    run_seed: int
    group_id: str
    episode: int = 0
    priority: int = 0

    @property
    def session(self) -> str:
        """Name of the trajectory."""
        return f"{self.group_id}/{self.episode}"
