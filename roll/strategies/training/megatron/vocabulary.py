"""Log-probs and entropies where every tensor-parallel rank holds the logits of a part of the vocabulary."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from roll.strategies.training.log_probs import TokenOutputs
from roll.strategies.training.megatron.core import reduce_from_tensor_model_parallel_region


def score_tokens(
    logits: Tensor,
    targets: Tensor,
    *,
    first: int,
    group: dist.ProcessGroup,
    temperature: float = 1.0,
    with_entropy: bool = False,
    ref_logits: Tensor | None = None,
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
        ref_logits: The same of a reference, without a gradient: also return ``sum_v p_v (log p_v - log q_v)``.
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
    weights = shifted.exp() if with_entropy or ref_logits is not None else None
    if with_entropy:
        assert weights is not None
        parts.append((weights * shifted).sum(1))
    if ref_logits is not None:
        assert weights is not None
        with torch.no_grad():
            ref_shifted, ref_total = _normalise(ref_logits, temperature, group)
        parts.append((weights * (shifted - ref_shifted)).sum(1))
    sums = reduce_from_tensor_model_parallel_region(torch.stack(parts), group=group)
    log_total = total.log()
    entropy = log_total - sums[1] / total if with_entropy else None
    divergence = None
    if ref_logits is not None:
        divergence = sums[-1] / total - log_total + ref_total.log()
    return TokenOutputs(sums[0] - log_total, entropy, divergence)


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
