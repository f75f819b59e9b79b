"""Log-probs and entropies where every tensor-parallel rank holds the logits of a part of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from roll.strategies.training.log_probs import TokenOutputs
from roll.strategies.training.megatron.core import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)


def score_tokens(
    logits: Tensor,
    targets: Tensor,
    *,
    first: int,
    group: dist.ProcessGroup,
    temperature: float = 1.0,
    with_entropy: bool = False,
    measure: Callable[[Tensor], Tensor] | None = None,
) -> TokenOutputs:
    """Return log-probs of the targets, and entropies and divergences if asked, ``[n]`` each, equal on all ranks.

    With ``m`` the largest logit and ``Z = sum_v exp(l_v - m)``, ``log p_v = l_v - m - log Z`` and the entropy is
    ``log Z - sum_v (l_v - m) exp(l_v - m) / Z``; each sum is one over ranks.

    Args:
        logits: ``[n, own part of the vocabulary]``, without padding columns.
        targets: ``[n]`` int64, in the whole vocabulary.
        first: The token that the first column stands for.
        group: The tensor-parallel ranks.
        temperature: Logits are divided by it.
        with_entropy: Also return entropies (nats).
        measure: From :func:`own_log_probs`, ``[n, own part]``, to divergences ``[n]``.
    """
    shifted, total = _normalise(logits, temperature, group)
    width = shifted.shape[1]
    own = (targets >= first) & (targets < first + width)
    column = torch.where(own, targets - first, 0).unsqueeze(1)
    if width:
        chosen = torch.where(own, shifted.gather(1, column).squeeze(1), 0.0)
    else:
        chosen = shifted.sum(1)
    parts = [chosen]
    if with_entropy:
        parts.append((shifted.exp() * shifted).sum(1))
    sums = reduce_from_tensor_model_parallel_region(torch.stack(parts), group=group)
    log_total = total.log()
    entropy = log_total - sums[1] / total if with_entropy else None
    divergence = None if measure is None else measure(_log_probs(shifted, total, group))
    return TokenOutputs(sums[0] - log_total, entropy, divergence)


def own_log_probs(logits: Tensor, temperature: float, group: dist.ProcessGroup) -> Tensor:
    """Return log-probs ``[n, own part]`` of logits of which every rank has a part, without padding columns.

    What ranks make of their parts must be added up over them
    (:func:`megatron.core.tensor_parallel.reduce_from_tensor_model_parallel_region`): gradients are right then.
    """
    return _log_probs(*_normalise(logits, temperature, group), group)


def _log_probs(shifted: Tensor, total: Tensor, group: dist.ProcessGroup) -> Tensor:
    # Every rank uses it for another part, so its gradient is the sum of theirs.
    log_total: Tensor = copy_to_tensor_model_parallel_region(total.log(), group=group)
    return shifted - log_total.unsqueeze(1)


def _normalise(logits: Tensor, temperature: float, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Return logits minus the largest of all ranks, ``[n, own part]``, and the sum of their exponentials ``[n]``."""
    # The softmax needs at least fp32, whatever the weights are stored in.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    with torch.no_grad():
        # A rank may hold nothing but padding.
        largest = logits.amax(1) if logits.shape[1] else logits.new_full((len(logits),), float("-inf"))
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest.unsqueeze(1)
    total = reduce_from_tensor_model_parallel_region(shifted.exp().sum(1), group=group)
    return shifted, total
