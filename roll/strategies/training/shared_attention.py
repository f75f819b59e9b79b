"""Attention over a tree of sequences: what branches share is read by all of them, and copied nowhere.

On the CPU a branch looks at itself (causal) and at the tokens before it (all of them visible), and both halves are put
together by their normalisers, as blocks of FlashAttention are (arXiv:2205.14135). Elsewhere it is FlexAttention
(arXiv:2412.05496): a token sees those that stand before it and whose branches have not ended.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from roll.strategies.training.packed_attention import AttentionOptions, PackingPlan, Plan, padded
from roll.strategies.training.prefix_tree import PrefixTree

_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_SMALLEST_HEAD = 16
"""Numbers in a head for which FlexAttention has kernels on CUDA devices."""
_BLOCK = 128
"""Tokens on a side of the blocks in which FlexAttention skips what nobody sees."""
_flash_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, eq=False)
class Half:
    """One half of the attention of some branches of similar size, one row each.

    Attributes:
        queries: ``[branches, longest]``: places of their tokens; a shorter one repeats its last.
        keys: ``[branches, longest path]``: places of what they look at, filled up alike.
        inside: ``[branches, longest]`` bool: which queries are not repeated.
        visible: ``[branches, 1, 1, longest path]`` bool: which keys are not repeated; ``None`` where queries and keys
            are the same tokens and causality hides the repeated ones.
    """

    queries: Tensor
    keys: Tensor
    inside: Tensor
    visible: Tensor | None

    def bias(self, like: Tensor) -> Tensor | None:
        """Return what is added to scores, in the number format of ``like``."""
        if self.visible is None:
            return None
        return like.new_zeros(self.visible.shape).masked_fill(~self.visible, float("-inf"))


@dataclass(frozen=True, eq=False)
class SharedPlan:
    """How the attention of a tree is computed.

    Attributes:
        halves: Of all branches the half that looks at themselves, then of those that have one the other half.
        own: How many of ``halves`` are of the first kind.
        places: ``[tokens]``: where each token is in the queries of the first ``own`` halves, laid end to end.
        ends: ``[tokens]`` (:meth:`PrefixTree.ends`).
        mask: For FlexAttention; ``None`` on the CPU.
        last: What the last layer computes in place of this; ``None`` for the same.
    """

    halves: list[Half]
    own: int
    places: Tensor
    ends: Tensor
    mask: BlockMask | None
    last: Plan | None = None

    @classmethod
    def of(cls, tree: PrefixTree, lengths: Tensor) -> SharedPlan:
        """Plan for a tree of rows of ``lengths`` ``[batch]``."""
        within = PackingPlan.of(tree.lengths)
        halves = []
        for group in within.groups:
            repeats = torch.nn.functional.pad(group.diff(dim=1) == 0, (1, 0))
            halves.append(Half(group, group, ~repeats, None))
        starts, sizes = (tree.lengths.cumsum(0) - tree.lengths).tolist(), tree.lengths.tolist()
        buckets: dict[tuple[int, int], list[int]] = {}
        for branch, path in enumerate(tree.paths):
            if len(path):
                # Neither queries nor keys are filled up to more than twice their number.
                buckets.setdefault((len(path).bit_length(), sizes[branch].bit_length()), []).append(branch)
        device = tree.ids.device
        for branches in buckets.values():
            queries, inside = padded([torch.arange(starts[i], starts[i] + sizes[i], device=device) for i in branches])
            keys, visible = padded([tree.paths[i] for i in branches])
            halves.append(Half(queries, keys, inside, visible[:, None, None]))
        ends = tree.ends(lengths)
        mask = None if device.type == "cpu" else tree_mask(ends)
        return cls(halves, len(within.groups), within.places, ends, mask)

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Return ``[1, tokens, heads, size]`` from ``query`` ``[1, heads, tokens, size]`` and those of the key heads.

        Raises:
            NotImplementedError: With dropout, where what is shared would drop the same for all, or a sliding window.
        """
        if options.dropout or options.sliding_window is not None:
            raise NotImplementedError("shared prefixes have no dropout of attention weights and no sliding window")
        common = torch.get_autocast_dtype(query.device.type) if _autocasts(query) else query.dtype
        query, key, value = (states.to(common) for states in (query, key, value))
        scale = query.shape[-1] ** -0.5 if options.scaling is None else options.scaling
        if self.mask is not None:
            return _flex(query, key, value, self.mask, scale).transpose(1, 2).contiguous()
        rows = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
        result: Tensor = _Attention.apply(*rows, self, scale)
        return result.unsqueeze(0)


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Return ``[1, heads, tokens, size]``."""
    grouped = query.shape[1] != key.shape[1]
    if query.device.type != "cuda":
        return flex_attention(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
    size = query.shape[-1]
    if missing := max(0, _SMALLEST_HEAD - size):
        # Zeros add nothing to scores, and the values that they make are cut off.
        query, key, value = (nn.functional.pad(states, (0, missing)) for states in (query, key, value))
    output = _compiled_flex()(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
    return output[..., :size]


@functools.cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


def tree_mask(ends: Tensor) -> BlockMask:
    """Return what FlexAttention lets each token of a tree see, from ``ends`` ``[tokens]``: what its sequence has.

    Blocks are told from their first and last tokens: no table of all pairs of tokens is made.
    """

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query < ends[key])

    tokens, count = len(ends), -(-len(ends) // _BLOCK)
    blocks = nn.functional.pad(ends, (0, count * _BLOCK - tokens)).view(count, _BLOCK)
    starts = torch.arange(count, device=ends.device) * _BLOCK
    below = starts[:, None] > starts
    full = below & (starts[:, None] + _BLOCK <= blocks.amin(1))
    some = (below & (starts[:, None] < blocks.amax(1))) | (starts[:, None] == starts)

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        first = chosen.int()[None, None]
        return first.sum(-1, dtype=torch.int32), first.argsort(dim=-1, descending=True, stable=True).int()

    return BlockMask.from_kv_blocks(
        *listed(some & ~full), *listed(full), BLOCK_SIZE=_BLOCK, mask_mod=sees, seq_lengths=(tokens, tokens)
    )


def _autocasts(query: Tensor) -> bool:
    return torch.is_autocast_enabled(query.device.type) and query.dtype != torch.float64


def _take(states: Tensor, index: Tensor) -> Tensor:
    """Cut ``[rows, heads, longest, size]`` out of ``[tokens, heads, size]``."""
    return states.index_select(0, index.flatten()).view(*index.shape, *states.shape[1:]).transpose(1, 2)


def _flat(states: Tensor) -> Tensor:
    """Return ``[rows, heads, longest, ...]`` as ``[rows * longest, heads, ...]``."""
    return states.transpose(1, 2).flatten(0, 1)


class _Attention(torch.autograd.Function):
    """Attention of ``[tokens, heads, size]``, both halves joined; keys and values may have fewer heads."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: SharedPlan, scale: float) -> Tensor:
        def look(half: Half) -> tuple[Tensor, Tensor]:
            rows = (_take(query, half.queries), _take(key, half.keys), _take(value, half.keys))
            causal = half.visible is None
            output, normaliser = _flash(*rows, 0.0, causal, attn_mask=half.bias(query), scale=scale)
            return _flat(output), _flat(normaliser)

        looks = [look(half) for half in plan.halves[: plan.own]]
        output, normaliser = (torch.cat(parts).index_select(0, plan.places) for parts in zip(*looks, strict=True))
        for half in plan.halves[plan.own :]:
            inside, (before, their) = half.inside.flatten(), look(half)
            tokens = half.queries.flatten()[inside]
            before, their, mine = before[inside], their[inside], normaliser[tokens]
            joined = torch.logaddexp(mine, their)
            weights = ((part - joined).exp().unsqueeze(-1).to(output.dtype) for part in (mine, their))
            output[tokens] = next(weights) * output[tokens] + next(weights) * before
            normaliser[tokens] = joined
        ctx.save_for_backward(query, key, value, output, normaliser)
        ctx.plan, ctx.scale = plan, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, normaliser = ctx.saved_tensors
        plan: SharedPlan = ctx.plan
        given = gradients[0]
        # What is filled up with repeated tokens has no gradient.
        given = torch.cat((given, given.new_zeros(1, *given.shape[1:])))

        def back(half: Half) -> list[Tensor]:
            graded = half.queries.masked_fill(~half.inside, len(given) - 1)
            rows = (_take(query, half.queries), _take(key, half.keys), _take(value, half.keys))
            said = (_take(output, half.queries), _take(normaliser.unsqueeze(-1), half.queries).squeeze(-1))
            found = _flash_backward(
                *(_take(given, graded), *rows, said[0], said[1].contiguous()),
                *(0.0, half.visible is None),
                attn_mask=half.bias(query),
                scale=ctx.scale,
            )
            return [_flat(gradient) for gradient in found]

        backs = zip(*(back(half) for half in plan.halves[: plan.own]), strict=True)
        results = [torch.cat(parts).index_select(0, plan.places) for parts in backs]
        for half in plan.halves[plan.own :]:
            inside = half.inside.flatten()
            found = back(half)
            results[0].index_add_(0, half.queries.flatten()[inside], found[0][inside])
            for total, gradient in zip(results[1:], found[1:], strict=True):
                total.index_add_(0, half.keys.flatten(), gradient)
        return (*results, None, None)
