"""From scores to advantages: shape scores, charge the KL penalty, whiten, estimate, decide what the loss sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.advantages import AdvantageInputs, AdvantageOutput, compute, finish
from roll.algorithms.advantages.inputs import turn_table
from roll.algorithms.kl import KLController, batch_kl, kl_controller, penalize_rewards, reward_divergence
from roll.algorithms.masking import masked_whiten, tokens_per_row
from roll.algorithms.registry import registry
from roll.algorithms.reward_shaping import RunningMoments, place_on_last_token, whiten_rewards
from roll.config import RLConfig
from roll.pipelines.learning.algorithm_options import estimator_options
from roll.pipelines.learning.loss_scope import scope_loss
from roll.pipelines.learning.score_shaping import ScoreShaping, ShapedScores
from roll.pipelines.learning.trajectory_index import TrajectoryIndex
from roll.trajectories.samples import Sample


@dataclass
class CreditState:
    """What credit assignment carries from step to step, and a checkpoint must hold.

    Attributes:
        running: Moments of all scores of the run (``reward_norm: running``).
        kl_controller: Coefficient of the KL penalty in the reward; ``None`` where none is charged.
    """

    running: RunningMoments = field(default_factory=RunningMoments)
    kl_controller: KLController | None = None

    @classmethod
    def from_config(cls, config: RLConfig) -> CreditState:
        """Return the state at the start of a run."""
        if config.kl_in_reward == "off":
            return cls()
        if config.target_kl is None:
            return cls(kl_controller=kl_controller("fixed", config.init_kl_coef))
        return cls(
            kl_controller=kl_controller(
                "adaptive", config.init_kl_coef, target=config.target_kl, horizon=config.kl_horizon
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        controller = self.kl_controller
        return {
            "running": self.running.state_dict(),
            "kl_controller": None if controller is None else controller.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; a KL term that was switched on since then starts anew."""
        self.running.load_state_dict(state["running"])
        if self.kl_controller is not None and state["kl_controller"] is not None:
            self.kl_controller.load_state_dict(state["kl_controller"])


def assign_credit(
    batch: TensorDict,
    samples: Sequence[Sample],
    scores: Sequence[float],
    config: RLConfig,
    state: CreditState,
    *,
    truncated: Sequence[bool] | None = None,
    baselines: Sequence[float] | None = None,
) -> dict[str, float]:
    """Fill ``advantages`` and ``positive`` of ``batch`` in place.

    ``returns`` is filled too where there are ``values``, and ``loss_mask`` and ``sample_weights`` where keys ask for
    them (:func:`roll.pipelines.learning.loss_scope.scope_loss`).

    Scores are shaped first (:class:`roll.pipelines.learning.score_shaping.ScoreShaping`) and compared between
    trajectories, however many samples each was cut into; what a later sample of a trajectory earned reaches the tokens
    of the earlier ones.
    Estimators that compare turns (``step_reinforce``, ``gigpo``) have their own baseline per turn and read the
    rewards as the environment gave them; bonus and clip count at the last token of the trajectory.

    Args:
        batch: ``token_rewards``, ``response_mask``, ``turn_index`` and ``old_log_probs`` ``[batch, sequence]``;
            ``ref_log_probs`` where a KL penalty is charged; ``values`` for an estimator with a critic.
        samples: The samples of ``batch``, in order; those of one trajectory in the order of their turns.
        scores: The score of each sample's trajectory.
        config: Estimator and its options.
        state: Running moments and KL controller of the run; updated with this batch.
        truncated: Whether each sample's trajectory was cut off at the length limit; needed by ``max_len_mask``.
        baselines: The score of the greedy answer to each sample's prompt; needed by ``remax``.

    Returns:
        Metrics.

    Raises:
        ValueError: Something that the estimator or a mask needs is missing.
    """
    mask: Tensor = batch["response_mask"]
    index = TrajectoryIndex.of(samples)
    raw = torch.tensor(list(scores), dtype=torch.float32)[index.first]
    shaped = ScoreShaping.from_config(config)(raw, index.total(tokens_per_row(mask)), index, state.running)
    estimator = registry("advantage").get(config.adv_estimator)
    level = estimator.level
    rewards, compared, charged = _rewards(batch, shaped, index, estimator.compares_turns, config, state)
    inputs = AdvantageInputs(
        mask=mask,
        token_rewards=rewards,
        scores=index.spread(compared),
        group_ids=[sample.group_id for sample in samples],
        values=batch.get("values", None),
        turn_ids=batch["turn_index"],
        trajectory_ids=[sample.trajectory for sample in samples],
        state_hashes=batch.get("state_hashes", None),
        baselines=None if baselines is None else _clipped(baselines, config.reward_clip),
    )
    if config.whiten_rewards:
        inputs = _whitened(inputs, index, level)
    output = _estimate(inputs, index, level, config)
    batch["advantages"] = finish(
        output.advantages, mask, whiten=config.whiten_advantages, clip=config.advantage_clip
    ).float()
    if output.returns is not None and inputs.values is not None:
        batch["returns"] = output.returns.float()
    batch["positive"] = index.spread(shaped.scores) > 0
    return {**shaped.metrics, **charged, **output.metrics, **scope_loss(batch, raw, index, config, truncated)}


def _rewards(
    batch: TensorDict, shaped: ShapedScores, index: TrajectoryIndex, by_turn: bool, config: RLConfig, state: CreditState
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Return token rewards ``[batch, sequence]``, scores ``[trajectories]`` and metrics after the KL penalty.

    Normalised scores take the place of rewards, but for estimators that compare turns (``by_turn``).
    """
    mask = batch["response_mask"]
    if shaped.normalised and not by_turn:
        rewards = place_on_last_token(index.spread(shaped.scores) * index.last, mask)
    else:
        rewards = batch["token_rewards"] + place_on_last_token(index.spread(shaped.change) * index.last, mask)
    controller = state.kl_controller
    if controller is None:
        return rewards, shaped.scores, {}
    if config.kl_penalty == "full":
        kl = batch["divergence"] * mask
    else:
        kl = reward_divergence(batch["old_log_probs"], batch["ref_log_probs"], config.kl_penalty) * mask
    charged = kl if config.add_token_level_kl else place_on_last_token(kl.sum(1), mask)
    # The coefficient of a batch is the one before its update.
    coefficient, mean_kl = controller.coefficient, float(batch_kl(kl, mask))
    controller.update(mean_kl, len(batch))
    rewards = penalize_rewards(rewards, charged, coefficient, mask)
    scores = shaped.scores - coefficient * index.total(charged.sum(1))
    return rewards, scores, {"kl/reference": mean_kl, "kl/coefficient": coefficient}


def _clipped(baselines: Sequence[float], limit: float | None) -> Tensor:
    """Return ``[batch]``: what scores are compared with is clipped as they are."""
    values = torch.tensor(list(baselines), dtype=torch.float32)
    return values if limit is None else values.clamp(-limit, limit)


def _estimate(inputs: AdvantageInputs, index: TrajectoryIndex, level: str, config: RLConfig) -> AdvantageOutput:
    """Call the estimator; what a later piece of a trajectory earned reaches the tokens of the earlier ones."""
    assert inputs.token_rewards is not None
    if not index.whole and level == "token":
        earned = index.later((inputs.token_rewards * inputs.mask).sum(1))
        rewards = inputs.token_rewards + place_on_last_token(earned, inputs.mask)
        inputs = replace(inputs, token_rewards=rewards)
    return compute(config.adv_estimator, inputs, estimator_options(config))


def _whitened(inputs: AdvantageInputs, index: TrajectoryIndex, level: str) -> AdvantageInputs:
    """Whiten what estimators read: the scores of trajectories, and the rewards of tokens or of turns.

    Rewards of turns are whitened among turns: whitened among tokens, a turn would earn something for every token of it.
    """
    assert inputs.scores is not None and inputs.token_rewards is not None
    per_trajectory = inputs.scores[index.first].unsqueeze(0)
    scores = index.spread(masked_whiten(per_trajectory, torch.ones_like(per_trajectory))[0])
    if level != "turn":
        return replace(inputs, scores=scores, token_rewards=whiten_rewards(inputs.token_rewards, inputs.mask))
    table = turn_table(inputs)
    per_turn = masked_whiten(table.rewards.unsqueeze(0), torch.ones(1, table.rewards.numel()))[0]
    # Estimators sum over a turn, so its tokens may share the reward; that needs no search for the last of them.
    tokens = torch.bincount(table.entry[table.entry >= 0], minlength=per_turn.numel())
    return replace(inputs, scores=scores, token_rewards=table.scatter(per_turn / tokens.clamp_min(1)))
