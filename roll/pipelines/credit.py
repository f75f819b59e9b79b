"""From rewards to advantages: normalise scores, charge the KL penalty, estimate, whiten, clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.advantages import AdvantageInputs, AdvantageOutput, compute, finish
from roll.algorithms.kl import KLController, batch_kl, kl_penalty, penalize_rewards
from roll.algorithms.masking import broadcast
from roll.algorithms.registry import registry, used_options
from roll.algorithms.rewards import normalize, place_on_last_token
from roll.config import AgenticConfig
from roll.trajectories.samples import Sample


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Which samples are pieces of one trajectory (a forked history, or one sample per turn).

    Attributes:
        trajectory: ``[batch]`` int64, the trajectory of each sample, numbered in order of first appearance.
        first: ``[trajectories]`` int64, the first sample of each.
        last: ``[batch]`` bool, whether the sample is the last of its trajectory.
    """

    trajectory: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Pieces:
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(sample.trajectory, len(numbers)) for sample in samples]
        last_row = {code: row for row, code in enumerate(codes)}
        first_row = {code: row for row, code in reversed(list(enumerate(codes)))}
        return cls(
            trajectory=torch.tensor(codes),
            first=torch.tensor([first_row[code] for code in range(len(numbers))]),
            last=torch.tensor([last_row[code] == row for row, code in enumerate(codes)]),
        )

    @property
    def whole(self) -> bool:
        """Whether every sample is a trajectory of its own."""
        return len(self.first) == len(self.trajectory)

    def total(self, per_sample: Tensor) -> Tensor:
        """Sum ``[batch]`` over the pieces of each trajectory, ``[trajectories]``."""
        return torch.zeros(len(self.first), dtype=per_sample.dtype).index_add_(0, self.trajectory, per_sample)

    def later(self, per_sample: Tensor) -> Tensor:
        """Sum ``[batch]`` over the pieces that follow each sample in its trajectory, ``[batch]``."""
        order = torch.argsort(self.trajectory, stable=True)
        through = per_sample[order].double().cumsum(0)
        ends = self.total(torch.ones_like(self.trajectory)).cumsum(0) - 1
        result = torch.empty_like(per_sample)
        result[order] = (through[ends][self.trajectory[order]] - through).to(per_sample.dtype)
        return result


def assign_credit(
    batch: TensorDict,
    samples: Sequence[Sample],
    scores: Sequence[float],
    config: AgenticConfig,
    kl_controller: KLController | None = None,
) -> dict[str, float]:
    """Fill ``advantages`` and ``positive`` of ``batch`` in place.

    Scores are normalised by ``reward_normalization`` first. Estimators that look at single turns (``step_reinforce``,
    ``gigpo``) have their own baseline per turn and read the rewards as the environment gave them. Scores are compared
    between trajectories, however many samples each was cut into, and what a later sample of a trajectory earned reaches
    the tokens of the earlier ones.

    Args:
        batch: ``token_rewards``, ``response_mask``, ``turn_index`` and ``old_log_probs`` ``[batch, sequence]``;
            ``ref_log_probs`` where a KL penalty is charged.
        samples: The samples of ``batch``, in order; those of one trajectory in the order of their turns.
        scores: The score of each sample's trajectory.
        config: Estimator and its options.
        kl_controller: Holds the coefficient of the KL penalty in the reward; updated with this batch's KL.

    Returns:
        Metrics.
    """
    mask = batch["response_mask"]
    pieces = _Pieces.of(samples)
    normalised = _normalised(samples, scores, pieces, config)
    level = registry("advantage").get(config.adv_estimator).level
    rewards = batch["token_rewards"]
    if config.reward_normalization.method != "identity" and level != "turn":
        rewards = place_on_last_token(normalised * pieces.last, mask)
    charged_scores = normalised
    metrics: dict[str, float] = {}
    if kl_controller is not None:
        kl, coefficient, metrics = _charge_kl(batch, config, kl_controller)
        rewards = penalize_rewards(rewards, kl, coefficient, mask)
        charged_scores = normalised - coefficient * pieces.total(kl.sum(1))[pieces.trajectory]
    if level == "token" and not pieces.whole:
        rewards = rewards + place_on_last_token(pieces.later((rewards * mask).sum(1)), mask)
    inputs = AdvantageInputs(
        mask=mask,
        token_rewards=rewards,
        scores=charged_scores,
        group_ids=[sample.group_id for sample in samples],
        turn_ids=batch["turn_index"],
        trajectory_ids=[sample.trajectory for sample in samples],
        state_hashes=batch.get("state_hashes", None),
    )
    if level == "outcome" and not pieces.whole:
        output = _by_trajectory(inputs, pieces, samples, config)
    else:
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


def _normalised(samples: Sequence[Sample], scores: Sequence[float], pieces: _Pieces, config: AgenticConfig) -> Tensor:
    """Normalise scores among trajectories and give each sample its trajectory's, ``[batch]``."""
    rows = pieces.first.tolist()
    normalised = normalize(
        torch.tensor([scores[row] for row in rows], dtype=torch.float32),
        [samples[row].group_id for row in rows],
        [samples[row].tag for row in rows],
        grouping=config.reward_normalization.grouping,
        method=config.reward_normalization.method,
    )
    return normalised[pieces.trajectory]


def _by_trajectory(
    inputs: AdvantageInputs, pieces: _Pieces, samples: Sequence[Sample], config: AgenticConfig
) -> AdvantageOutput:
    """Estimate one advantage per trajectory, as if each were a single token, and give it to all of its samples.

    Otherwise a trajectory cut into many samples would weigh as many times in its group's mean.
    """
    assert inputs.scores is not None and inputs.token_rewards is not None
    rows = pieces.first.tolist()
    single = AdvantageInputs(
        mask=torch.ones(len(rows), 1, dtype=torch.bool),
        token_rewards=pieces.total((inputs.token_rewards * inputs.mask).sum(1)).unsqueeze(1),
        scores=inputs.scores[pieces.first],
        group_ids=[samples[row].group_id for row in rows],
        lengths=pieces.total(inputs.mask.sum(1)),
    )
    output = compute(config.adv_estimator, single, estimator_options(config))
    return AdvantageOutput(broadcast(output.advantages[pieces.trajectory, 0], inputs.mask), metrics=output.metrics)


def _charge_kl(
    batch: TensorDict, config: AgenticConfig, controller: KLController
) -> tuple[Tensor, float, dict[str, float]]:
    """Return the divergence to charge ``[batch, sequence]`` with its coefficient, then update the controller."""
    mask = batch["response_mask"]
    kl = kl_penalty(batch["old_log_probs"], batch["ref_log_probs"], config.kl_penalty) * mask
    charged = kl if config.add_token_level_kl else place_on_last_token(kl.sum(1), mask)
    coefficient = controller.coefficient
    mean_kl = float(batch_kl(kl, mask))
    controller.update(mean_kl, len(batch))
    return charged, coefficient, {"kl/reference": mean_kl, "kl/coefficient": coefficient}
