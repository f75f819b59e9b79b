"""The records that travel from env managers to training, storage and the viewer.

Plain Python only: this module imports neither torch nor numpy, so an env worker that fills these records starts in
milliseconds. Tensors are made in :mod:`roll.trajectories.batch`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from roll.generation.pictures import Picture

_SEAT: Final = re.compile(r"(seat\d+-)")


class Status(StrEnum):
    """How an episode stands or ended. Closed: a new way to end is a new member, never a free string."""

    RUNNING = "running"
    COMPLETED = "completed"
    """The environment reported ``terminated``."""
    TRUNCATED_TURNS = "truncated_turns"
    """The turn limit of the tag or the environment's own step limit was reached."""
    TRUNCATED_LENGTH = "truncated_length"
    """The next turn would not fit in ``sequence_length``."""
    ERROR_ENV = "error_env"
    """The environment raised or returned something that is not a Gymnasium step."""
    ERROR_TIMEOUT = "error_timeout"
    """A phase (reset, step, generate) took longer than its time-out."""
    ERROR_UNAVAILABLE = "error_unavailable"
    """Something that the environment or a tool needs was not there (a server, a connection)."""
    ERROR_REWARD = "error_reward"
    """The response could not be graded, which differs from a grade of 0."""
    ABORTED = "aborted"
    """The run asked this episode to stop."""

    @property
    def is_error(self) -> bool:
        """Whether the episode broke, so that it must not be trained on."""
        return self.startswith("error_") or self is Status.ABORTED


@dataclass(slots=True)
class Turn:
    """One exchange: the tokens shown to the policy, the tokens it sampled, and what the environment made of them.

    Attributes:
        prompt_ids: Tokens added since the end of the previous turn (for turn 0 the whole first prompt); never the
            whole history.
        completion_ids: Exactly the tokens the engine sampled, stop token included when it sampled one.
        logprobs: The sampler's log-probability (natural log) of each completion token under the distribution it was
            drawn from, one per completion id.
        policy_version: Oldest and newest weights that produced this turn.
        observation: The text the environment showed before this turn.
        response: The completion as text.
        action: The action the environment understood, ``None`` when the response had no valid one; empty where
            responses are graded and nothing acts.
        reward: What this turn earned, penalties included.
        reward_parts: The same by name (``{"env": -0.1, "format": -0.05}``); sums to ``reward``.
        metrics: Numbers the environment reported for this turn.
        frame: What a person would look at before the action: board text, or a ``data:image/png;base64,…`` URI.
        seconds: Wall time by phase, in the order in which a turn has them: ``wait`` for an engine, ``generate``,
            ``queue`` for the environment, ``env``, or ``tool`` where tools answered alone, ``render``, ``reward``.
        starts_sample: True where the history before this turn was re-rendered (the template does not extend the
            previous tokens): ``prompt_ids`` is then the whole prompt and a new training sample starts here.
        messages: What was said before this turn where it is not the observation as the user's words: results of tools,
            words of the system.
        began: When it began, in Unix seconds; 0 where that is not known. No part of what two turns are compared by.
        pictures: What the placeholder tokens among ``prompt_ids`` stand for, in the order of their places there.
        begins_anew: Whether ``messages`` are the whole conversation before this turn: it goes on from none of the turns
            before it (an agent that compacts its history, or that works at several things at a time).
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    policy_version: tuple[int, int] = (0, 0)
    observation: str = ""
    response: str = ""
    action: str | None = None
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    frame: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    starts_sample: bool = False
    messages: list[dict[str, str]] = field(default_factory=list)
    began: float = field(default=0.0, compare=False)
    begins_anew: bool = False
    pictures: list[Picture] = field(default_factory=list)


@dataclass(slots=True)
class Trajectory:
    """One episode.

    Attributes:
        tag: The environment tag (``SimpleSokoban``).
        group_id: Identity of the group; trajectories with the same id share tag, env config and seed.
        episode: Index of this trajectory within its group.
        seed: Environment seed.
        initial_hash: Hash of the first observation; equal for all members of a group.
        turns: The exchanges in order.
        status: How the episode stands or ended.
        score: Undiscounted sum of the turn rewards; ``None`` until scored (never scored differs from zero).
        error: Readable reason when ``status`` is an error.
        final_observation: What the environment showed after the last action.
        final_frame: The frame after the last action.
        metrics: Episode metrics, aggregated from the turns as the environment asked.
        messages: The first messages (system and user) as text, for review.
        retries: How often the episode was begun before, and failed through no fault of the policy.
        began: When it began, in Unix seconds; 0 where that is not known. No part of what two are compared by.
        seat: The seat that it had in a game with several; empty where there is one player.
        beside: The trajectories of other policies in the same game, until the group has them; never stored.
    """

    tag: str
    group_id: str
    episode: int
    seed: int
    initial_hash: str = ""
    turns: list[Turn] = field(default_factory=list)
    status: Status = Status.RUNNING
    score: float | None = None
    error: str | None = None
    final_observation: str = ""
    final_frame: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    retries: int = 0
    began: float = field(default=0.0, compare=False)
    seat: str = ""
    beside: list[Trajectory] = field(default_factory=list)

    @property
    def success(self) -> bool:
        """Whether the environment called the episode solved (metric ``success``)."""
        return self.metrics.get("success", 0.0) > 0.0

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The first messages and what was said since: responses, and observations between them as the user's.

        Where a turn begins anew, the conversation is its own from there on.
        """
        said = [dict(message) for message in self.messages]
        for number, turn in enumerate(self.turns):
            if turn.begins_anew:
                said = [dict(each) for each in turn.messages]
            elif number:
                said += [dict(each) for each in turn.messages] or [{"role": "user", "content": turn.observation}]
            said.append({"role": "assistant", "content": turn.response})
        return said

    @property
    def completion_tokens(self) -> int:
        """Number of sampled tokens over all turns."""
        return sum(len(turn.completion_ids) for turn in self.turns)

    @property
    def total_tokens(self) -> int:
        """Number of prompt and sampled tokens over all turns."""
        return sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in self.turns)


@dataclass(slots=True)
class TrajectoryGroup:
    """Trajectories that share tag, env config and seed (or a prompt), and are compared with one another.

    Attributes:
        group_id: Identity of the group, unique within the run.
        tag: The tag of its members.
        trajectories: The members, by episode number.
        domain: The domain of the prompt, where responses are graded by domain.
        baseline: Score of a greedy member that is not trained on (`remax`); ``None`` where there is none.
        waits: Whether a person is to look at it before it is learned from.
    """

    group_id: str
    tag: str
    trajectories: list[Trajectory] = field(default_factory=list)
    domain: str = ""
    baseline: float | None = None
    waits: bool = False

    @property
    def is_answers(self) -> bool:
        """Whether the members are responses to a prompt of a domain, and not episodes of an environment."""
        return bool(self.domain)

    @property
    def scores(self) -> list[float]:
        """Scores of the members that did not break."""
        return [member.score or 0.0 for member in self.trajectories if not member.status.is_error]


def seat_group(group_id: str, seat: int) -> str:
    """Return the id by which the members of a group are compared that had the same seat of a game."""
    return f"seat{seat}-{group_id}"


def group_of_member(own: str, group_id: str) -> str:
    """Return what a member's group is called when the group gets another id.

    Args:
        own: What it was called: the id of the group, or that of a seat in it (:func:`seat_group`).
        group_id: The new id of the group.
    """
    seat = _SEAT.match(own)
    return f"{seat[1]}{group_id}" if seat else group_id
