"""From the scores of trajectories to those that estimators compare: bonus for length, clip, normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from roll.algorithms.advantages.inputs import zero_variance_share
from roll.algorithms.reward_shaping import RunningMoments, length_reward, normalize, overlong_penalty, shape_scores
from roll.config import RLConfig
from roll.pipelines.learning.trajectory_index import TrajectoryIndex


@dataclass(frozen=True, slots=True)
class ShapedScores:
    """What became of the scores, one per trajectory.

    Attributes:
        scores: ``[trajectories]``, after everything.
        change: ``[trajectories]``, what bonus and clip added to the score before it was normalised.
        normalised: Whether scores were compared with one another, so that they are no longer sums of rewards.
        metrics: What was done to them.
    """

    scores: Tensor
    change: Tensor
    normalised: bool
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class ScoreShaping:
    """The keys that change scores, in the order in which they act.

    A score plus ``overlong_buffer`` and ``add_len_reward``, clipped by ``reward_clip``, normalised by ``reward_norm``
    (or ``use_reward_scaling``), then by ``reward_normalization``, which only the agentic pipeline has.

    Attributes:
        response_limit: Most tokens of a response, for the overlong punishment.
        overlong_buffer: Tokens before the limit over which the punishment grows; 0 is off.
        overlong_factor: Punishment at the limit.
        length_reward: Whether short positive responses get a bonus.
        clip: Bound of the scores; ``None`` is off.
        norm: ``reward_norm``.
        shift: ``reward_shift``.
        scale: ``reward_scale``.
        scaling: ``use_reward_scaling``.
        scaling_norm: ``use_reward_norm``.
        grouping: ``reward_normalization.grouping``.
        method: ``reward_normalization.method``.
    """

    response_limit: int = 1
    overlong_buffer: int = 0
    overlong_factor: float = 1.0
    length_reward: bool = False
    clip: float | None = None
    norm: Literal["batch", "group", "running"] | None = None
    shift: bool = False
    scale: bool = False
    scaling: bool = False
    scaling_norm: bool = False
    grouping: str = "state"
    method: str = "identity"

    @classmethod
    def from_config(cls, config: RLConfig) -> ScoreShaping:
        """Read the keys of a configuration."""
        normalization, buffer = config.score_normalization, config.overlong_buffer
        return cls(
            response_limit=config.response_limit,
            overlong_buffer=buffer.len if buffer.enable else 0,
            overlong_factor=buffer.penalty_factor,
            length_reward=config.add_len_reward,
            clip=config.reward_clip,
            norm=config.reward_norm,
            shift=config.reward_shift,
            scale=config.reward_scale,
            scaling=config.use_reward_scaling,
            scaling_norm=config.use_reward_norm,
            grouping=normalization.grouping,
            method=normalization.method,
        )

    @property
    def normalises(self) -> bool:
        """Whether scores are compared with one another before an estimator sees them."""
        return self.norm is not None or self.scaling or self.method != "identity"

    def __call__(
        self, scores: Tensor, lengths: Tensor, index: TrajectoryIndex, running: RunningMoments
    ) -> ShapedScores:
        """Shape the scores of a batch.

        Args:
            scores: ``[trajectories]`` float, as environment or verifiers gave them.
            lengths: ``[trajectories]``, response tokens.
            index: Their groups and tags.
            running: Moments of all scores of the run; updated where a key asks for them.
        """
        metrics = {"reward/zero_variance_groups": zero_variance_share(scores, index.groups)}
        rewarded = scores
        if self.overlong_buffer:
            penalty = overlong_penalty(lengths, self.response_limit, self.overlong_buffer, self.overlong_factor)
            metrics["reward/overlong_penalty"] = float(penalty.mean())
            rewarded = rewarded + penalty
        if self.length_reward:
            bonus = length_reward(lengths, scores > 0, index.groups)
            metrics["reward/length_reward"] = float(bonus.mean())
            rewarded = rewarded + bonus
        if self.clip is not None:
            clipped = shape_scores(rewarded, reward_clip=self.clip)
            metrics["reward/clip_fraction"] = float((clipped != rewarded).double().mean())
            rewarded = clipped
        shaped = shape_scores(
            rewarded,
            index.groups,
            reward_norm=self.norm,
            reward_shift=self.shift,
            reward_scale=self.scale,
            use_reward_scaling=self.scaling,
            use_reward_norm=self.scaling_norm,
            running=running,
        )
        shaped = normalize(shaped, index.groups, index.tags, grouping=self.grouping, method=self.method)
        return ShapedScores(shaped, rewarded - scores, self.normalises, metrics)
