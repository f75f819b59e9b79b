"""From rewards to advantages: normalise scores, charge the KL penalty, estimate, whiten, clip."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.advantages import AdvantageInputs, compute, finish
from roll.algorithms.kl import KLController, batch_kl, kl_penalty, penalize_rewards
from roll.algorithms.registry import registry, used_options
from roll.algorithms.rewards import normalize
from roll.config import AgenticConfig
from roll.trajectories.samples import Sample


def assign_credit(
    batch: TensorDict,
    samples: Sequence[Sample],
    scores: Sequence[float],
    config: AgenticConfig,
    kl_controller: KLController | None = None,
) -> dict[str, float]:
    """Fill ``advantages`` and ``positive`` of ``batch`` in place.

    Scores are normalised by ``reward_normalization`` first. Estimators that look at single turns (``step_reinforce``,
    ``gigpo``) have their own baseline per turn and read the rewards as the environment gave them.

    Args:
        batch: ``token_rewards``, ``response_mask``, ``turn_index`` and ``old_log_probs`` ``[batch, sequence]``;
            ``ref_log_probs`` where a KL penalty is charged.
        samples: The samples of ``batch``, in order.
        scores: The score of each sample's trajectory.
        config: Estimator and its options.
        kl_controller: Holds the coefficient of the KL penalty in the reward; updated with this batch's KL.

    Returns:
        Metrics.
    """
    mask = batch["response_mask"]
    group_ids = [sample.group_id for sample in samples]
    trajectory_ids = [sample.trajectory for sample in samples]
    normalised = normalize(
        torch.tensor(scores, dtype=torch.float32),
        group_ids,
        [sample.tag for sample in samples],
        grouping=config.reward_normalization.grouping,
        method=config.reward_normalization.method,
    )
    per_turn = registry("advantage").get(config.adv_estimator).level == "turn"
    rewards = batch["token_rewards"]
    if config.reward_normalization.method != "identity" and not per_turn:
        rewards = _at_last_token(normalised, mask)
    metrics: dict[str, float] = {}
    if kl_controller is not None:
        rewards, metrics = _charge_kl(rewards, batch, config, kl_controller)
    inputs = AdvantageInputs(
        mask=mask,
        token_rewards=rewards,
        scores=normalised,
        group_ids=group_ids,
        turn_ids=batch["turn_index"],
        trajectory_ids=trajectory_ids,
        state_hashes=batch.get("state_hashes", None),
    )
    output = compute(config.adv_estimator, inputs, estimator_options(config))
    batch["advantages"] = finish(
        output.advantages, mask, whiten=config.whiten_advantages, clip=config.advantage_clip
    ).float()
    batch["positive"] = normalised > 0
    return {**metrics, **output.metrics}


def estimator_options(config: AgenticConfig) -> dict[str, object]:
    """Return the configured options that the chosen estimator reads."""
    by_turn = config.adv_estimator == "step_reinforce"
    given = {
        "gamma": config.step_reward_gamma if by_turn else config.gamma,
        "lambd": config.lambd,
        "step_reward_weight": config.step_reward_weight,
        "step_reward_gamma": config.step_reward_gamma,
    }
    return used_options(config.adv_estimator, given)


def _at_last_token(scores: Tensor, mask: Tensor) -> Tensor:
    """Put ``scores`` ``[batch]`` on the last masked token of each row, ``[batch, sequence]``."""
    positions = torch.arange(mask.shape[1]).expand(mask.shape)
    last = torch.where(mask, positions, -1).max(dim=1, keepdim=True).values
    return torch.where((positions == last) & (last >= 0), scores.unsqueeze(1), 0.0)


def _charge_kl(
    rewards: Tensor, batch: TensorDict, config: AgenticConfig, controller: KLController
) -> tuple[Tensor, dict[str, float]]:
    mask = batch["response_mask"]
    kl = kl_penalty(batch["old_log_probs"], batch["ref_log_probs"], config.kl_penalty) * mask
    charged = kl if config.add_token_level_kl else _at_last_token(kl.sum(1), mask)
    coefficient = controller.coefficient
    mean_kl = float(batch_kl(kl, mask))
    controller.update(mean_kl, len(batch))
    penalised = penalize_rewards(rewards, charged, coefficient, mask)
    return penalised, {"kl/reference": mean_kl, "kl/coefficient": coefficient}
