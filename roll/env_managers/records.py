"""What goes into an env manager: the episode, its limits, its time-outs."""

from __future__ import annotations

from dataclasses import dataclass


class TokenInvariantError(RuntimeError):
    """A prompt does not start with the previous prompt and completion: a bug, never the fault of an environment."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Which episode to run.

    Attributes:
        tag: The environment tag.
        group_id: Group of the episode; unique within the run.
        episode: Index within the group.
        seed: Seed of the environment, the same for all members of the group.
        run_seed: Seed of the run, keys the sampling noise.
        priority: Smaller is served earlier where engines are full.
    """

    tag: str
    group_id: str
    episode: int
    seed: int
    run_seed: int = 0
    priority: int = 0

    @property
    def trajectory_id(self) -> str:
        """Name of the episode's trajectory, and the session of its requests."""
        return f"{self.group_id}/{self.episode}"


@dataclass(frozen=True, slots=True)
class EnvManagerLimits:
    """How long an episode may get.

    Attributes:
        max_steps: Turns per episode.
        sequence_length: Tokens of the whole conversation. A turn begins only if its prompt and a longest response fit.
        max_new_tokens: Tokens per response.
        max_tokens_per_step: Tokens per response for this tag; the smaller of the two counts.
        max_tool_turns: Turns beside them that tools answer, and not the environment.
    """

    max_steps: int = 10
    sequence_length: int = 4096
    max_new_tokens: int = 256
    max_tokens_per_step: int | None = None
    max_tool_turns: int = 0

    def __post_init__(self) -> None:
        for name in ("max_steps", "sequence_length", "max_new_tokens", "max_tokens_per_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if self.max_response_length >= self.sequence_length:
            raise ValueError(
                f"A response of {self.max_response_length} tokens leaves no room for a prompt in "
                f"sequence_length={self.sequence_length}: lower max_tokens_per_step or max_new_tokens, or raise "
                "sequence_length."
            )

    @property
    def max_response_length(self) -> int:
        """Tokens that one response may have."""
        return min(self.max_new_tokens, self.max_tokens_per_step or self.max_new_tokens)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a phase may take; ``None`` for no limit.

    Attributes:
        reset: Making the environment and its first observation.
        step: One step, its frame, and closing the environment.
        generate: One completion, waiting included.
    """

    reset: float | None = 60.0
    step: float | None = 60.0
    generate: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("reset", "step", "generate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"timeouts.{name}={value}: must be greater than 0 seconds, or None for no limit")
