"""Log-probabilities and entropies of response tokens, without holding logits for tokens nobody asks about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roll.strategies.packing import flat_hidden

MAX_LOGITS = 2**28
"""Most logits held at once where no chunk size is given: 1 GiB in fp32."""


class TokenOutputs(NamedTuple):
    """What a forward pass says of the tokens of a batch, each ``[batch, sequence]`` and 0 outside the mask."""

    log_probs: Tensor
    entropy: Tensor | None


def forward_log_probs(
    model: nn.Module,
    input_ids: Tensor,
    response_mask: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    project: Callable[[Tensor], Tensor] | None = None,
    lengths: Tensor | None = None,
    chunk_size: int | None = None,
) -> TokenOutputs:
    """Run ``model`` over right-padded sequences and return log p(token t | tokens < t) where the mask is 1.

    Logits are computed for the positions before masked tokens only, and for ``chunk_size`` of them at a time: beyond
    one chunk they are thrown away and computed again in the backward pass.

    Args:
        model: A Hugging Face causal language model.
        input_ids: ``[batch, sequence]`` int64, padded on the right.
        response_mask: ``[batch, sequence]`` bool or 0/1, aligned with the token it describes; 0 on padding.
        temperature: Logits are divided by it before the softmax, so that the result is the log-probability of the
            distribution tokens were sampled from.
        with_entropy: Also return the entropy (nats) of each position's distribution.
        project: From hidden states ``[n, hidden]`` to logits ``[n, vocabulary]``; the model's own head by default.
        lengths: ``[batch]``, valid tokens of each row: packs the rows (:func:`roll.strategies.packing.flat_hidden`).
        chunk_size: Most tokens whose logits are held at once; ``None`` for as many as make :data:`MAX_LOGITS`.

    Returns:
        Tensors aligned with ``input_ids``; position 0 is always 0.
    """
    mask = response_mask.bool().clone()
    mask[:, 0] = False
    before = flat_hidden(model.get_decoder(), input_ids, lengths).before(mask)  # type: ignore[operator]
    head = project if project is not None else model.get_output_embeddings()  # type: ignore[operator]
    if chunk_size is None:
        chunk_size = max(1, MAX_LOGITS // model.config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]
    score = partial(_score, head, temperature=temperature, with_entropy=with_entropy)
    chosen, entropies = _in_chunks(score, before, input_ids[mask], chunk_size)
    log_probs = torch.zeros(input_ids.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(mask, chosen)
    if entropies is None:
        return TokenOutputs(log_probs, None)
    return TokenOutputs(log_probs, torch.zeros_like(log_probs).masked_scatter(mask, entropies))


def _score(
    head: Callable[[Tensor], Tensor], before: Tensor, targets: Tensor, *, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs of ``targets`` ``[n]`` and entropies ``[n]`` after hidden states ``[n, hidden]``."""
    logits = head(before)
    # The softmax needs at least fp32, whatever the weights are stored in.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    normalised = torch.log_softmax(logits, dim=-1)
    chosen = normalised.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen, -(normalised.exp() * normalised).sum(-1) if with_entropy else None


def _in_chunks(
    score: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]], before: Tensor, targets: Tensor, size: int
) -> tuple[Tensor, Tensor | None]:
    if len(targets) <= size:
        return score(before, targets)
    parts = [
        # Nothing random is in there, so no generator state has to be kept.
        checkpoint(score, states, ids, use_reentrant=False, preserve_rng_state=False)
        for states, ids in zip(before.split(size), targets.split(size), strict=True)
    ]
    entropies = [entropy for _, entropy in parts if entropy is not None]
    return torch.cat([chosen for chosen, _ in parts]), torch.cat(entropies) if entropies else None
