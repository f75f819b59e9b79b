"""Log-probabilities and entropies of response tokens, without holding logits for tokens nobody asks about."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


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
) -> TokenOutputs:
    """Run ``model`` over right-padded sequences and return log p(token t | tokens < t) where the mask is 1.

    With right padding and causal attention no valid token can see a padding token, so no attention mask is built and
    the fused causal kernel is used. Logits are computed for the positions before masked tokens only.

    Args:
        model: A Hugging Face causal language model.
        input_ids: ``[batch, sequence]`` int64, padded on the right.
        response_mask: ``[batch, sequence]`` bool or 0/1, aligned with the token it describes.
        temperature: Logits are divided by it before the softmax, so that the result is the log-probability of the
            distribution tokens were sampled from.
        with_entropy: Also return the entropy (nats) of each position's distribution.
        project: From hidden states ``[n, hidden]`` to logits ``[n, vocabulary]``; the model's own head by default.

    Returns:
        Tensors aligned with ``input_ids``; position 0 is always 0.
    """
    mask = response_mask.bool().clone()
    mask[:, 0] = False
    hidden = model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state  # type: ignore[operator]
    before = hidden[:, :-1][mask[:, 1:]]
    head = project if project is not None else model.get_output_embeddings()  # type: ignore[operator]
    logits = head(before)
    # The softmax needs at least fp32, whatever the weights are stored in.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    normalised = torch.log_softmax(logits, dim=-1)
    chosen = normalised.gather(-1, input_ids[mask].unsqueeze(-1)).squeeze(-1)
    log_probs = torch.zeros(input_ids.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(mask, chosen)
    entropy = None
    if with_entropy:
        values = -(normalised.exp() * normalised).sum(-1)
        entropy = torch.zeros_like(log_probs).masked_scatter(mask, values)
    return TokenOutputs(log_probs, entropy)
