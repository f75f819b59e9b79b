"""Which samples the policy loss sees, with what weight, and how far the sampler's probabilities are corrected."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.filters import difficulty_mask
from roll.algorithms.groups import AlgorithmWarning, encode
from roll.algorithms.masking import blank, marked_rows, slabs
from roll.algorithms.off_policy import correction
from roll.algorithms.reward_shaping import sample_weights
from roll.config import RLConfig
from roll.pipelines.learning.trajectory_index import TrajectoryIndex

LOSS_MASK = "loss_mask"
"""Entry of the batch, ``[batch, sequence]`` bool: the tokens of ``response_mask`` that the policy loss sees."""

SAMPLE_WEIGHTS = "sample_weights"
"""Entry of the batch, ``[batch]``: weights of the samples in the policy term, with mean 1."""

SAMPLER_WEIGHTS = "sampler_weights"
"""Entry of the batch, ``[batch, sequence]``: weights of the tokens in the policy term (``sampler_correction``)."""


def loss_mask(batch: TensorDict) -> Tensor:
    """Return the tokens that the policy loss sees, ``[batch, sequence]`` bool."""
    mask: Tensor = batch.get(LOSS_MASK, None)
    return batch["response_mask"] if mask is None else mask


def difficulty(scores: Tensor, groups: Sequence[str]) -> Tensor:
    """Return how hard the prompt of each trajectory is, ``[trajectories]`` in [0, 1].

    1 - the mean score of its group, each score clamped to [0, 1] first: the share of failures where scores are 0 and 1,
    and also where failures earn less than 0 and successes more than 1.

    Args:
        scores: ``[trajectories]``, as environment or verifiers gave them.
        groups: The group of each.
    """
    members = encode(groups, scores.shape[0])
    return (1.0 - members.mean(scores.clamp(0.0, 1.0)))[members.codes]


def scope_loss(
    batch: TensorDict, scores: Tensor, index: TrajectoryIndex, config: RLConfig, truncated: Sequence[bool] | None = None
) -> dict[str, float]:
    """Write ``loss_mask`` and ``sample_weights`` into ``batch`` where a key asks for them.

    Samples that are left out took part in everything before: group means, whitening, KL.

    Args:
        batch: With ``response_mask`` and ``advantages``.
        scores: ``[trajectories]``, as environment or verifiers gave them.
        index: The trajectories of the batch.
        config: ``max_len_mask``, ``difficulty_mask`` and its thresholds, ``difficulty_loss_weight``,
            ``length_loss_weight``.
        truncated: Which samples belong to a trajectory that was cut off at the length limit.

    Returns:
        Metrics.

    Raises:
        ValueError: ``max_len_mask`` is set and ``truncated`` is not given.

    Warns:
        AlgorithmWarning: No sample with an advantage is left.
    """
    mask: Tensor = batch["response_mask"]
    kept = mask
    metrics: dict[str, float] = {}
    hard = index.spread(difficulty(scores, index.groups))
    if config.max_len_mask:
        if truncated is None:
            raise ValueError("max_len_mask needs to know which samples were cut off: pass `truncated`.")
        kept = kept & ~torch.tensor(list(truncated), dtype=torch.bool).unsqueeze(1)
    if config.difficulty_mask:
        kept = difficulty_mask(kept, hard, config.difficulty_low_threshold, config.difficulty_high_threshold)
        metrics["reward/difficulty"] = float(hard.mean())
    if config.max_len_mask or config.difficulty_mask:
        batch[LOSS_MASK] = kept
        trained = marked_rows(mask)
        metrics["batch/masked_samples"] = float((trained & ~marked_rows(kept)).sum() / trained.sum().clamp_min(1))
        _warn_if_nothing_is_left(batch, kept)
    if config.difficulty_loss_weight or config.length_loss_weight:
        lengths = index.spread(index.total(mask.sum(1)))
        batch[SAMPLE_WEIGHTS] = sample_weights(
            difficulty=hard if config.difficulty_loss_weight else None,
            lengths=lengths if config.length_loss_weight else None,
        )
    return metrics


def correct_sampler(batch: TensorDict, config: RLConfig) -> dict[str, float]:
    """Compare the trainer's log-probs with the sampler's, and write ``sampler_weights`` where they are to be corrected.

    Call it once for the whole batch, before it is split.

    Args:
        batch: ``old_log_probs`` of the trainer, ``sampler_log_probs``, ``response_mask`` and ``turn_index``.
        config: ``sampler_correction``.

    Returns:
        Metrics under ``sampler/``, also where nothing is corrected; empty where the trainer's log-probs are the
        sampler's (``old_log_probs: sampler``).
    """
    if config.old_log_probs == "sampler":
        return {}
    options = config.correction
    old, sampler, written = batch["old_log_probs"], batch["sampler_log_probs"], batch.get("expert", None)
    # Nobody sampled what an expert wrote, so there is nothing to correct.
    mask = batch["response_mask"] if written is None else batch["response_mask"] & ~written.unsqueeze(1)
    weights, measured = correction(
        old,
        sampler,
        mask,
        mode=options.mode,
        level=options.level,
        cap=options.cap,
        low=options.low,
        high=options.high,
        turn_ids=batch.get("turn_index", None),
    )
    if options.mode is not None:
        batch[SAMPLER_WEIGHTS] = weights.to(old.dtype).masked_fill(batch["response_mask"] & ~mask, 1.0)
    metrics = {name: float(value) for name, value in measured.items()}
    if bool(mask.any()):
        largest, total = torch.stack([_difference(old[rows] - sampler[rows], mask[rows]) for rows in slabs(mask)]).T
        metrics["sampler/log_prob_difference_max"] = float(largest.amax())
        metrics["sampler/log_prob_difference_mean"] = float(total.sum() / torch.count_nonzero(mask))
    return metrics


def _difference(signed: Tensor, mask: Tensor) -> Tensor:
    """Return ``[2]``: the largest size and the sum of the sizes of ``signed`` ``[rows, sequence]`` in the mask."""
    sizes = blank(signed, mask).abs_()
    return torch.stack([sizes.amax(), sizes.sum()])


def _warn_if_nothing_is_left(batch: TensorDict, kept: Tensor) -> None:
    """Warn where masks leave no token with an advantage, although there were some."""
    advantages = batch["advantages"]
    if bool((advantages != 0).any()) and not bool(((advantages != 0) & kept).any()):
        warnings.warn(
            "max_len_mask and difficulty_mask leave no sample with an advantage in the loss, nothing will be learnt: "
            "raise response_length (or max_new_tokens), or widen difficulty_low_threshold and "
            "difficulty_high_threshold.",
            AlgorithmWarning,
            stacklevel=3,
        )
