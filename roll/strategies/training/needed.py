"""The last layer of a decoder, computed only for the tokens whose states somebody reads.

Every token is needed as a key and value of those behind it, in the last layer too; but queries, the output projection
and the feed-forward part of that layer make nothing but the states at the top, of which losses read those before
trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from roll.strategies.training.packed_attention import AttentionOptions, padded, take

PLAN = "packing_plan"
"""Name under which decoders hand a plan on to their layers."""

_ATTENTIONS = ("self_attn", "attention", "self_attention")
_PARTS = ("mlp", "feed_forward", "block_sparse_moe")
_PROJECTIONS = ("o_proj", "out_proj", "dense")


@dataclass(frozen=True, eq=False)
class NeededGroup:
    """Needed tokens of sequences of similar length, one sequence a row.

    Attributes:
        queries: ``[sequences, most]``: places of the needed tokens; a row with fewer repeats its last.
        keys: ``[sequences, longest]``: places of the tokens up to the last needed one, filled up alike.
        positions: ``[sequences, most]``: how many tokens are before each query.
    """

    queries: Tensor
    keys: Tensor
    positions: Tensor


@dataclass(frozen=True, eq=False)
class NeededPlan:
    """Attention of the needed tokens alone.

    Attributes:
        groups: What is computed together.
        tokens: ``[needed]``: their places, each once.
        sources: ``[needed]``: where each of them is in the queries of all groups, laid end to end.
    """

    groups: list[NeededGroup]
    tokens: Tensor
    sources: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Tensor], needed: Tensor) -> NeededPlan:
        """Plan for sequences given by the places of their tokens.

        Args:
            sequences: ``[length]`` each; what several of them share is computed in the first one.
            needed: ``[tokens]`` bool.
        """
        open_tokens = needed.clone()
        buckets: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for places in sequences:
            positions = open_tokens[places].nonzero().squeeze(1)
            if not len(positions):
                continue
            open_tokens[places] = False
            seen = places[: int(positions[-1]) + 1]
            buckets.setdefault((len(seen).bit_length(), len(positions).bit_length()), []).append((seen, positions))
        groups, tokens, sources, offset = [], [], [], 0
        for bucket in buckets.values():
            keys, _ = padded([seen for seen, _ in bucket])
            positions, inside = padded([positions for _, positions in bucket])
            queries = keys.gather(1, positions)
            groups.append(NeededGroup(queries, keys, positions))
            tokens.append(queries[inside])
            sources.append(inside.flatten().nonzero().squeeze(1) + offset)
            offset += queries.numel()
        if not groups:
            nothing = torch.empty(0, dtype=torch.int64, device=needed.device)
            return cls([], nothing, nothing)
        return cls(groups, torch.cat(tokens), torch.cat(sources))

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Return ``[1, tokens, heads, size]``, 0 where it is not needed, of states as in :func:`packed_attention`."""
        outputs = []
        for group in self.groups:
            columns = torch.arange(group.keys.shape[1], device=query.device)
            distance = group.positions.unsqueeze(-1) - columns
            visible = distance >= 0
            if options.sliding_window is not None:
                visible &= distance < options.sliding_window
            rows, keys, values = take(query, group.queries), take(key, group.keys), take(value, group.keys)
            output, _ = sdpa_attention_forward(
                module, rows, keys, values, visible.unsqueeze(1), dropout=options.dropout, scaling=options.scaling
            )
            outputs.append(output.flatten(0, 1))
        if not outputs:
            # Ranks reduce gradients together: projections that nobody needs here have one all the same, of zeros.
            return (0.0 * query).transpose(1, 2) + 0.0 * (key.sum() + value.sum())
        found = torch.cat(outputs).index_select(0, self.sources)
        whole = found.new_zeros(query.shape[2], *found.shape[1:])
        return whole.index_copy(0, self.tokens, found).unsqueeze(0)


class _LastLayer:
    """Hooks of a layer that let it compute needed tokens only, where its plan says which.

    The plan is handed to the attention, which every layer asks first, and tells the other parts. It does so too where
    the backward pass computes the layer again, which hooks of the layer itself need not hear of.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._tokens: Tensor | None = None
        attention = next((getattr(layer, name) for name in _ATTENTIONS if hasattr(layer, name)), None)
        if attention is None:
            return
        layer.register_forward_pre_hook(self._forget)
        layer.register_forward_hook(self._forget, always_call=True)
        attention.register_forward_pre_hook(self._begin, with_kwargs=True)
        parts = [getattr(layer, name, None) for name in _PARTS]
        parts += [getattr(attention, name, None) for name in _PROJECTIONS]
        for part in parts:
            if isinstance(part, nn.Module):
                part.register_forward_pre_hook(self._cut)
                part.register_forward_hook(self._fill)
        self._width: int | None = None

    def _forget(self, layer: nn.Module, args: Any, output: Any = None) -> None:
        self._tokens = None

    def _begin(self, attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        last = getattr(kwargs.get(PLAN), "last", None)
        self._tokens = None if last is None else last.tokens
        return args, kwargs if last is None else {**kwargs, PLAN: last}

    def _cut(self, part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._tokens is None:
            return None
        self._width = args[0].shape[1]
        return (args[0].index_select(1, self._tokens), *args[1:])

    def _fill(self, part: nn.Module, args: Any, output: Any) -> Any:
        if self._tokens is None or self._width is None:
            return None
        states, *others = output if isinstance(output, tuple) else (output,)
        whole = states.new_zeros(1, self._width, states.shape[-1]).index_copy(1, self._tokens, states)
        return (whole, *others) if isinstance(output, tuple) else whole


def compute_only_what_is_needed(model: PreTrainedModel) -> None:
    """Let the last layer of ``model`` leave out what nobody reads, where a plan says so; once for a model."""
    layers = getattr(model.get_decoder(), "layers", None)
    if isinstance(layers, nn.ModuleList) and len(layers) and not getattr(layers[-1], "_roll_needed", False):
        layers[-1]._roll_needed = True  # type: ignore[assignment]
        _LastLayer(layers[-1])
