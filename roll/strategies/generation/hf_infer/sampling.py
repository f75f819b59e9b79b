"""Drawing tokens with exact log-probabilities and noise that depends on nothing but the request.

Order of application, as in vLLM: logits / temperature, then min-p, then top-k, then top-p, then renormalise. The
reported log-probability is that of the token under the distribution it was really drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = 0x9E3779B97F4A7C15


def uniforms(seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return uniform number ``counters[i]`` of the stream of ``seeds[i]``, ``[n]`` in [0, 1) with 53 random bits.

    A counter-based generator: SplitMix64's output function (Steele, Lea & Flood 2014, "Fast splittable pseudorandom
    number generators") over ``mix(seed) + counter * golden ratio``. No state, so the number does not depend on which
    requests share a batch or when they arrived.
    """
    with np.errstate(over="ignore"):
        state = _mix(_mix(seeds + np.uint64(_GOLDEN)) + (counters + np.uint64(1)) * np.uint64(_GOLDEN))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def penalise(logits: torch.Tensor, penalties: Mapping[int, float], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return logits with those of tokens that are there already made smaller, ``[n, vocabulary]``.

    Args:
        logits: ``[n, vocabulary]``.
        penalties: Of the rows that have one: positive logits are divided by it, negative ones multiplied.
        tokens: Of each row, what is there: prompt and completion.
    """
    changed = logits.float().clone()
    for row, penalty in penalties.items():
        seen = torch.tensor(sorted(set(tokens[row])), device=logits.device)
        there = changed[row, seen]
        changed[row, seen] = torch.where(there > 0, there / penalty, there * penalty)
    return changed


def forbid(logits: torch.Tensor, forbidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Return logits in which some tokens of some rows cannot be drawn, ``[n, vocabulary]``.

    Args:
        logits: ``[n, vocabulary]``.
        forbidden: By row, token ids or a mask of all, bool ``[vocabulary]``.
    """
    changed = logits.float().clone()
    for row, tokens in forbidden.items():
        changed[row, tokens.to(logits.device)] = float("-inf")
    return changed


def sample(
    logits: torch.Tensor,
    temperature: npt.NDArray[np.float64],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float64],
    noise: npt.NDArray[np.float64],
    min_p: npt.NDArray[np.float64] | None = None,
) -> tuple[list[int], list[float]]:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: ``[n, vocabulary]``, any float type; computed in float32.
        temperature: ``[n]``; 0 takes the most likely token and reports its untempered log-probability.
        top_k: ``[n]``; values below 1 keep all tokens.
        top_p: ``[n]`` in (0, 1].
        noise: ``[n]`` uniform numbers in [0, 1).
        min_p: ``[n]`` in [0, 1]; ``None`` keeps all tokens.

    Returns:
        Token ids and natural-log probabilities, ``n`` of each.

    Raises:
        RuntimeError: If a row has no finite log-probability to draw from (NaN or infinite logits).
    """
    greedy = temperature == 0.0
    scaled = adjusted(logits, temperature, top_k, top_p, min_p)
    log_probs = torch.log_softmax(scaled, dim=-1)
    if greedy.all():
        tokens = scaled.argmax(dim=-1)
    else:
        tokens = _invert(log_probs, torch.from_numpy(noise).to(logits.device))
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy).to(logits.device), scaled.argmax(dim=-1), tokens)
    chosen = log_probs.gather(1, tokens[:, None]).squeeze(1)
    ids, values = tokens.tolist(), chosen.tolist()
    if not np.isfinite(values).all():
        raise RuntimeError("the model returned NaN or infinite logits; check the weights that were loaded last")
    return ids, values


def adjusted(
    logits: torch.Tensor,
    temperature: npt.NDArray[np.float64],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float64],
    min_p: npt.NDArray[np.float64] | None = None,
) -> torch.Tensor:
    """Return the logits of the distributions that tokens are drawn from, float32 ``[n, vocabulary]``.

    Args:
        logits: ``[n, vocabulary]``, any float type.
        temperature: ``[n]``; 0 leaves a row as it is.
        top_k: ``[n]``; values below 1 keep all tokens.
        top_p: ``[n]`` in (0, 1].
        min_p: ``[n]`` in [0, 1]; ``None`` keeps all tokens.
    """
    device = logits.device
    greedy = temperature == 0.0
    scaled = logits.float()
    if not np.all(greedy | (temperature == 1.0)):
        divisor = torch.from_numpy(np.where(greedy, 1.0, temperature)).to(device, torch.float32)
        scaled = scaled / divisor[:, None]
    if min_p is not None and np.any(min_p > 0.0):
        share = torch.from_numpy(np.where(greedy, 0.0, min_p)).to(device, torch.float32)
        # As logits: at least the share of the likeliest token's probability; log 0 is below all of them.
        scaled = scaled.masked_fill(scaled < scaled.amax(dim=-1, keepdim=True) + share.log()[:, None], float("-inf"))
    restricted = ~greedy & (((top_k > 0) & (top_k < logits.shape[-1])) | (top_p < 1.0))
    if restricted.any():
        rows = torch.from_numpy(np.flatnonzero(restricted)).to(device)
        kept = _restrict(
            scaled.index_select(0, rows),
            torch.from_numpy(top_k[restricted]).to(device),
            torch.from_numpy(top_p[restricted]).to(device),
        )
        scaled = scaled.index_copy(0, rows, kept)
    return scaled


def _invert(log_probs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the first token whose cumulative probability exceeds the noise, ``[n]``.

    Sums in float64: at vocabularies of 10^5 float32 sums would shift the borders by more than a rare token is wide. A
    token of probability zero does not raise the sum, so it is never drawn.
    """
    cumulative = log_probs.double().exp_().cumsum_(dim=-1)
    total = cumulative[:, -1]
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1).clamp_(max=log_probs.shape[-1] - 1)


def _restrict(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set what top-k and then top-p remove to -inf, ``[n, vocabulary]``. Ties go to the lower token id."""
    vocabulary = scaled.shape[-1]
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocabulary, device=scaled.device)
    limit = torch.where(top_k > 0, top_k, vocabulary)
    ordered = ordered.masked_fill(rank[None] >= limit[:, None], float("-inf"))
    probabilities = ordered.double().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    # Rank 0 stays even if rounding says the sum before it already reaches top_p.
    outside = (before >= top_p[:, None]) & (rank[None] > 0)
    ordered = ordered.masked_fill(outside & (top_p < 1.0)[:, None], float("-inf"))
    return torch.empty_like(scaled).scatter_(1, order, ordered)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser, elementwise."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
