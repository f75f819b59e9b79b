"""One key-value cache for all sequences: a row (slot) per sequence, position ``j`` of it at index ``j``."""

from __future__ import annotations

import math
import mmap
from typing import Any, Final

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from roll.strategies.generation.hf_infer.batch_plan import AttentionGroup, BatchPlan
from roll.strategies.generation.hf_infer.causal_masks import CausalMasks
from roll.strategies.generation.hf_infer.compiling import number

_LENGTH_STEP: Final = 64
_WHOLE_BYTES: Final = 1 << 30
"""Of all keys and values, up to which a CPU is asked for the whole cache at once: what is not used takes no memory."""


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, ``[slots, kv_heads, length, head_dim]``, grown by its owner before each pass."""

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate with the head count, width and type of the states that come first."""
        self.owner.reserve_all_if_little(key_states, value_states)
        self.keys = self._allocate(key_states, None)
        self.values = self._allocate(value_states, None)
        self.is_initialized = True

    def grow(self) -> None:
        """Make room for the owner's slots and length, keeping what is stored."""
        if self.is_initialized:
            self.keys = self._allocate(self.keys, self.keys)
            self.values = self._allocate(self.values, self.values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the states of the planned tokens, ``[1, kv_heads, tokens, head_dim]`` (or padded rows of them).

        Returns:
            The new states in the flat layout (attention stores and reads them); keys and values of all rows,
            ``[rows, kv_heads, keys, head_dim]``, in the padded layout.
        """
        if self.owner.padded_group is None:
            return key_states, value_states
        self.store(key_states, value_states)
        return self.read(self.owner.padded_group)

    def store(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Store the states of the planned tokens, ``[1, kv_heads, tokens, head_dim]`` or padded rows of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        self._store(self.keys, key_states)
        self._store(self.values, value_states)

    def read(self, group: AttentionGroup) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a group, ``[rows, kv_heads, keys, head_dim]``: views where its slots are a slice."""
        assert self.keys is not None and self.values is not None
        if isinstance(group.slots, slice):
            return self.keys[group.slots, :, : group.keys], self.values[group.slots, :, : group.keys]
        return (
            self.keys[:, :, : group.keys].index_select(0, group.slots),
            self.values[:, :, : group.keys].index_select(0, group.slots),
        )

    def _store(self, stored: torch.Tensor, states: torch.Tensor) -> None:
        plan, padded = self.owner.plan, self.owner.padded_group
        slot_index, positions = plan.slot_index, plan.positions
        rows = states.transpose(1, 2).flatten(0, 1)
        if padded is not None:
            slot_index, positions = slot_index[padded.first : padded.stop], positions[padded.first : padded.stop]
            if padded.output_index is not None:
                rows = rows.index_select(0, padded.output_index)
        stored[slot_index, :, positions] = rows.to(stored.dtype)

    def _allocate(self, like: torch.Tensor | None, old: torch.Tensor | None) -> torch.Tensor:
        assert like is not None
        # Zeros, not empty: idle slots inside a run are read (and masked), and NaN times zero would be NaN.
        new = _zeros(like, (self.owner.slots, like.shape[1], self.owner.length, like.shape[3]))
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Sizes for a mask made by the model; ours are made here, so only consistent numbers matter."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """No common length: positions are passed explicitly."""
        return 0

    def get_max_length(self) -> int:
        """Length to which a slot may grow now."""
        return self.owner.length


class SlotCache(Cache):
    """The cache handed to the model. :meth:`begin` says which tokens the next forward pass stores.

    Args:
        layers: Number of cache layers.
        max_slots: Most slots ever allocated.
        max_length: Most positions ever allocated in a slot.
    """

    def __init__(self, layers: int, max_slots: int, max_length: int) -> None:
        self.slots = 0
        self.length = 0
        self.max_slots = max_slots
        self.max_length = max_length
        self.padded_group: AttentionGroup | None = None
        self._plan: BatchPlan | None = None
        self.number = number(self)
        self.causal = CausalMasks()
        self._masks: dict[tuple[int, int | None, torch.dtype], torch.Tensor] = {}
        self.slot_layers = [SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self.slot_layers))

    @property
    def plan(self) -> BatchPlan:
        """The plan of the running forward pass.

        Raises:
            RuntimeError: No pass is running.
        """
        if self._plan is None:
            raise RuntimeError("SlotCache used outside a planned forward pass; call begin(plan) first")
        return self._plan

    def reserve(self, slots: int, length: int) -> None:
        """Grow, geometrically, to at least ``slots`` rows of ``length`` positions."""
        if slots <= self.slots and length <= self.length:
            return
        if slots > self.slots:
            self.slots = min(self.max_slots, max(slots, 2 * self.slots, 8))
        if length > self.length:
            wanted = max(length, self.length + self.length // 2)
            self.length = min(self.max_length, -(-wanted // _LENGTH_STEP) * _LENGTH_STEP)
        for layer in self.slot_layers:
            layer.grow()

    def reserve_all_if_little(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take all slots in their whole length, where that is little: to grow copies all that is stored.

        Decided for all layers when the first has states; others may be wider or narrower.

        Args:
            key_states: ``[…, kv_heads, tokens, head_dim]`` of that layer.
            value_states: ``[…, kv_heads, tokens, value_dim]``.
        """
        if key_states.device.type != "cpu" or any(layer.is_initialized for layer in self.slot_layers):
            return
        each = sum(states.shape[1] * states.shape[3] * states.element_size() for states in (key_states, value_states))
        if self.max_slots * self.max_length * each * len(self.slot_layers) <= _WHOLE_BYTES:
            self.slots, self.length = self.max_slots, self.max_length

    def begin(self, plan: BatchPlan, padded_group: AttentionGroup | None = None) -> None:
        """Set the plan of the next forward pass."""
        self._plan = plan
        self.padded_group = padded_group
        self._masks.clear()

    def end(self) -> None:
        """Forget the plan and its masks."""
        self._plan = None
        self.padded_group = None
        self._masks.clear()

    def free(self) -> None:
        """Give all memory back."""
        self.end()
        self.slots = self.length = 0
        for layer in self.slot_layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one slot to another."""
        for layer in self.slot_layers:
            for tensor in (layer.keys, layer.values):
                assert tensor is not None
                tensor[target, :, :length] = tensor[source, :, :length]

    def mask(self, group: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask of a group, ``[rows, 1, queries, keys]``, built once per pass and shared by the layers."""
        key = (group, window, dtype)
        if key not in self._masks:
            planned = self.plan.groups[group]
            self._masks[key] = self.causal.mask(planned.positions, planned.keys, window, dtype)
        return self._masks[key]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Store keys and values of the planned tokens, and attend to those of their own slots.

        Args:
            layer: Index of the layer.
            query: ``[1, heads, tokens, head_dim]``.
            key: ``[1, kv_heads, tokens, head_dim]``.
            value: ``[1, kv_heads, tokens, value_dim]``.
            scaling: Factor on the scores; ``None`` for ``head_dim ** -0.5``.
            window: How many positions back a query sees, itself included; ``None`` for all.

        Returns:
            ``[1, tokens, heads, value_dim]``.
        """
        stored = self.slot_layers[layer]
        stored.store(key, value)
        flat = query[0].transpose(0, 1)
        pieces = []
        for place, group in enumerate(self.plan.groups):
            keys, values = stored.read(group)
            chosen = flat[group.first : group.stop] if group.query_index is None else flat[group.query_index]
            padded = chosen.unflatten(0, (group.rows, -1)).transpose(1, 2)
            output = _attention(padded, keys, values, self.mask(place, window, query.dtype), scaling)
            rows = output.transpose(1, 2).flatten(0, 1)
            pieces.append(rows if group.output_index is None else rows.index_select(0, group.output_index))
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces))[None]


def _zeros(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return zeros, which on a CPU take memory only where they are written; PyTorch writes all of its own."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    memory = mmap.mmap(-1, math.prod(shape) * like.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # rows lie far from each other
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)


def _attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Grouped-query attention, ``[rows, heads, queries, value_dim]``.

    The CPU kernel reads shared key heads in place (measured 10x faster than repeating them). CUDA kernels do so only
    without a mask and would fall back to plain matrix products, so there the heads are repeated.

    A product of one row is slow in half precision on CPUs: there heads that share keys, with a query each, are given as
    queries of one head (measured 7x faster for three of them).
    """
    shared, on_cpu = query.shape[1] // keys.shape[1], query.device.type == "cpu"
    asked, wanted = query, (*query.shape[:3], values.shape[3])
    if shared > 1 and on_cpu and query.shape[2] == 1 and query.element_size() == 2:
        asked = query.reshape(query.shape[0], keys.shape[1], shared, query.shape[3])
    elif shared > 1 and not on_cpu:
        keys = keys.repeat_interleave(shared, dim=1)
        values = values.repeat_interleave(shared, dim=1)
    output = torch.nn.functional.scaled_dot_product_attention(
        asked, keys, values, attn_mask=mask, scale=scaling, enable_gqa=keys.shape[1] != asked.shape[1]
    )
    return output.reshape(wanted)
