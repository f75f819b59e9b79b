"""Log-probabilities and entropies of response tokens, without holding logits for tokens nobody asks about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roll.strategies.pictures import ShownTokens
from roll.strategies.training.comparing import Reference, log_softmax
from roll.strategies.training.packing import flat_hidden
from roll.strategies.training.ulysses import SequenceRanks

MAX_LOGITS = 2**28
"""Most logits held at once where no chunk size is given: 1 GiB in fp32."""


class TokenOutputs(NamedTuple):
    """What a forward pass says of the tokens of a batch, each ``[batch, sequence]`` and 0 outside the mask."""

    log_probs: Tensor
    entropy: Tensor | None
    divergence: Tensor | None = None


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
    reference: Reference | None = None,
    ranks: SequenceRanks | None = None,
    shared: bool = False,
    shown: ShownTokens | None = None,
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
        lengths: ``[batch]``, valid tokens of each row: packs the rows
            (:func:`roll.strategies.training.packing.flat_hidden`).
        chunk_size: Most tokens whose logits are held at once; ``None`` for as many as make :data:`MAX_LOGITS`.
        reference: Also return the divergence from it.
        ranks: Those that each compute a part of the same sequences; every one of them gets all results.
        shared: Compute equal beginnings of packed rows once.
        shown: What the decoder takes in place of ``input_ids`` where there are pictures.

    Returns:
        Tensors aligned with ``input_ids``; position 0 is always 0.
    """
    mask = response_mask.bool().clone()
    mask[:, 0] = False
    decoder: nn.Module = model.get_decoder()  # type: ignore[operator]
    hidden = flat_hidden(decoder, input_ids, lengths, ranks, shared=shared, read=mask, shown=shown)
    mask = hidden.own(mask)
    before = hidden.before(mask)
    head = project if project is not None else model.get_output_embeddings()  # type: ignore[operator]
    if chunk_size is None:
        chunk_size = max(1, MAX_LOGITS // model.config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]
    measure = None if reference is None else reference.measure
    score = partial(_score, head, measure, temperature=temperature, with_entropy=with_entropy)
    compared = () if reference is None else tuple(column[mask] for column in reference.columns)
    chosen, entropy, divergence = in_chunks(score, chunk_size, before, input_ids[mask], *compared)

    def placed(values: Tensor) -> Tensor:
        return hidden.together(values.new_zeros(mask.shape).masked_scatter(mask, values))

    return TokenOutputs(
        placed(chosen),
        None if entropy is None else placed(entropy),
        None if divergence is None else placed(divergence),
    )


def _score(
    head: Callable[[Tensor], Tensor],
    measure: Callable[..., Tensor] | None,
    before: Tensor,
    targets: Tensor,
    *compared: Tensor,
    temperature: float,
    with_entropy: bool,
) -> TokenOutputs:
    """Return log-probs of ``targets`` ``[n]``, entropies and divergences after hidden states ``[n, hidden]``."""
    normalised = log_softmax(head(before), temperature)
    chosen = normalised.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    entropy = -(normalised.exp() * normalised).sum(-1) if with_entropy else None
    return TokenOutputs(chosen, entropy, None if measure is None else measure(normalised, *compared))


def in_chunks(score: Callable[..., TokenOutputs], size: int, *columns: Tensor) -> TokenOutputs:
    """Apply ``score`` to the rows of ``columns`` ``[rows, ...]``, ``size`` at a time; what it returns is ``[rows]``."""
    if len(columns[0]) <= size:
        return score(*columns)
    parts = [
        # Nothing random is in there, so no generator state has to be kept.
        checkpoint(score, *chunk, use_reentrant=False, preserve_rng_state=False)
        for chunk in zip(*(column.split(size) for column in columns), strict=True)
    ]
    entropies = [part.entropy for part in parts if part.entropy is not None]
    divergences = [part.divergence for part in parts if part.divergence is not None]
    return TokenOutputs(
        torch.cat([part.log_probs for part in parts]),
        torch.cat(entropies) if entropies else None,
        torch.cat(divergences) if divergences else None,
    )
