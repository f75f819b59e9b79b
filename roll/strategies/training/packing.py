"""Hidden states of the tokens of a micro-batch: padded rows, rows laid end to end, or what they share once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from roll.strategies.pictures import ShownTokens
from roll.strategies.training.needed import PLAN, NeededPlan, compute_only_what_is_needed
from roll.strategies.training.packed_attention import ATTENTION, REPLACED, PackingPlan, packed_attention
from roll.strategies.training.prefix_tree import PrefixTree
from roll.strategies.training.shared_attention import SharedPlan
from roll.strategies.training.ulysses import ULYSSES, SequencePart, SequenceRanks, padded_width

_TOLERANCE = 1e-3
_TOLERANCE_HALF = 0.1


class FlatHidden(NamedTuple):
    """Hidden states of a micro-batch without its rows.

    Attributes:
        states: ``[tokens, hidden]``; with ``part`` those that this rank holds.
        places: ``[batch, sequence]``: where the state of each token is in those of all ranks together.
        part: What this rank holds, where sequences are spread over ranks; ``None`` if it holds all.
    """

    states: Tensor
    places: Tensor
    part: SequencePart | None = None

    def own(self, mask: Tensor) -> Tensor:
        """Return which tokens of ``mask`` ``[batch, sequence]`` come after a state that this rank holds."""
        if self.part is None:
            return mask
        rows, columns = mask.nonzero(as_tuple=True)
        own = torch.zeros_like(mask)
        own[rows, columns] = self.part.holds(self.places[rows, columns - 1])
        return own

    def before(self, mask: Tensor) -> Tensor:
        """Return the states one token before each token of ``mask`` ``[batch, sequence]``, row by row: ``[n, hidden]``.

        No token of the first column may be in the mask: nothing is before it. This rank must hold them all.
        """
        rows, columns = mask.nonzero(as_tuple=True)
        places = self.places[rows, columns - 1]
        return self.states.index_select(0, places if self.part is None else self.part.local(places))

    def all_before(self, mask: Tensor) -> Tensor:
        """Return the same as :meth:`before` with the states of all ranks."""
        if self.part is None:
            return self.before(mask)
        own = self.own(mask)
        states = self.states.new_zeros(int(mask.sum()), self.states.shape[-1])
        states[own[mask]] = self.before(own)
        return self.together(states)

    def together(self, own: Tensor) -> Tensor:
        """Return what all ranks have found, from what this one has, with 0 where it has nothing."""
        return own if self.part is None else self.part.ranks.sum(own)


def flat_hidden(
    decoder: nn.Module,
    input_ids: Tensor,
    lengths: Tensor | None = None,
    ranks: SequenceRanks | None = None,
    *,
    shared: bool = False,
    read: Tensor | None = None,
    shown: ShownTokens | None = None,
) -> FlatHidden:
    """Run the decoder over right-padded sequences.

    With right padding and causal attention no valid token can see a padding token, so no attention mask is built and
    the fused causal kernel is used. Packed, the valid tokens of all rows make up one row, with positions that start
    again at 0 for each sequence.

    Args:
        decoder: A Hugging Face decoder without its head (for packing, see :func:`prepare_packing`; for ``ranks``,
            :func:`roll.strategies.training.ulysses.prepare_ulysses`).
        input_ids: ``[batch, sequence]`` int64, padded on the right.
        lengths: ``[batch]``, valid tokens of each row; packs. ``None`` runs the padded rows.
        ranks: Those that compute parts of the same sequences; ``None`` computes them here.
        shared: Compute equal beginnings of packed rows once.
        read: ``[batch, sequence]`` bool, tokens before which a state will be read; packed, other states may be wrong.
            ``None`` for all.
        shown: What the decoder takes in place of ``input_ids`` where there are pictures; without ``ranks``.
    """
    rows, width = input_ids.shape
    columns = torch.arange(width, device=input_ids.device).expand(rows, width)
    if lengths is None and ranks is None:
        inputs = {"input_ids": input_ids} if shown is None else shown.padded()
        states = decoder(**inputs, use_cache=False).last_hidden_state
        return FlatHidden(states.flatten(0, 1), _padded_places(columns))
    if lengths is not None and ranks is None:
        ids = input_ids if shown is None else shown.marked_ids
        layout = _packed(decoder, ids, lengths, shared=shared, read=read)
        inputs = {"input_ids": layout.ids, "position_ids": layout.positions}
        if shown is not None:
            inputs = shown.packed(layout.places, columns < lengths.unsqueeze(1), layout.ids.shape[1])
        states = decoder(**inputs, use_cache=False, **layout.options).last_hidden_state
        return FlatHidden(states.flatten(0, 1), layout.places)
    assert ranks is not None
    if lengths is None:
        ids, positions, places = input_ids, columns, None
    else:
        inside = columns < lengths.unsqueeze(1)
        ids, positions = input_ids[inside].unsqueeze(0), columns[inside].unsqueeze(0)
        places = (lengths.cumsum(0) - lengths).unsqueeze(1) + columns
    whole = padded_width(ids.shape[1], ranks.size)
    extra = whole - ids.shape[1]
    ids, positions = (torch.nn.functional.pad(columns, (0, extra)) for columns in (ids, positions))
    # What is added at the end of a packed row is a sequence of its own.
    plan = None if lengths is None else PackingPlan.of(torch.cat((lengths, lengths.new_tensor([extra]))))
    part = SequencePart(ranks, whole, plan)
    given = {"attention_mask": _finished(input_ids.device), "sequence_part": part}
    states = decoder(
        input_ids=part.cut(ids), position_ids=part.cut(positions), use_cache=False, **given
    ).last_hidden_state
    return FlatHidden(states.flatten(0, 1), _padded_places(columns, whole) if places is None else places, part)


def _padded_places(columns: Tensor, width: int | None = None) -> Tensor:
    """Return where the tokens of padded rows are, from ``columns`` ``[batch, sequence]`` of rows of ``width``."""
    rows, own = columns.shape
    return torch.arange(rows, device=columns.device).unsqueeze(1) * (own if width is None else width) + columns


class _Packed(NamedTuple):
    """All rows as one: ``ids``, ``positions`` ``[1, tokens]``, ``places`` as in :class:`FlatHidden`, other options."""

    ids: Tensor
    positions: Tensor
    places: Tensor
    options: dict[str, Any]


def _packed(decoder: nn.Module, input_ids: Tensor, lengths: Tensor, *, shared: bool, read: Tensor | None) -> _Packed:
    columns = torch.arange(input_ids.shape[1], device=input_ids.device).expand(input_ids.shape)
    inside = columns < lengths.unsqueeze(1)
    plan: PackingPlan | SharedPlan
    if shared:
        tree = PrefixTree.of(input_ids, lengths)
        ids, positions, places = tree.ids.unsqueeze(0), tree.positions.unsqueeze(0), tree.places
        plan = SharedPlan.of(tree, lengths)
    else:
        ids, positions = input_ids[inside].unsqueeze(0), columns[inside].unsqueeze(0)
        places = (lengths.cumsum(0) - lengths).unsqueeze(1) + columns
        if decoder.config._attn_implementation not in (ATTENTION, ULYSSES):  # type: ignore[union-attr, operator]
            return _Packed(ids, positions, places, {"attention_mask": None})
        plan = PackingPlan.of(lengths)
    if read is not None:
        needed = torch.zeros(ids.shape[1], dtype=torch.bool, device=ids.device)
        needed[places[:, :-1][read[:, 1:].bool()]] = True
        sequences = [row[:length] for row, length in zip(places, lengths.tolist(), strict=True)]
        plan = replace(plan, last=NeededPlan.of(sequences, needed))
    return _Packed(ids, positions, places, {"attention_mask": _finished(input_ids.device), PLAN: plan})


def _finished(device: torch.device) -> Tensor:
    # transformers takes a mask of four dimensions for a finished one, and builds none of tokens x tokens itself.
    return torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device)


def prepare_packing(model: PreTrainedModel, *, shared: bool = False, trim: bool = True) -> None:
    """Give ``model`` an attention whose cost is that of its sequences, not of all packed tokens with each other.

    Without packing it computes what it did before. Attention kernels that keep packed sequences apart by themselves
    (FlashAttention) stay.

    Args:
        model: The model, changed in place.
        shared: Whether equal beginnings are to be computed once.
        trim: Let the last layer leave out what nobody reads. Compiled layers cannot.

    Raises:
        ValueError: The model's attention cannot share beginnings.
    """
    if model.config._attn_implementation in REPLACED:
        AttentionInterface.register(ATTENTION, packed_attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)
    kept = model.config._attn_implementation
    if shared and kept != ATTENTION:
        raise ValueError(
            f"share_prefixes does not work with attn_implementation={kept}. Set model_args.attn_implementation to sdpa."
        )
    if trim:
        compute_only_what_is_needed(model)


def check_packing(
    model: PreTrainedModel,
    states: Callable[[PackingProbe, bool], Tensor],
    probe: PackingProbe,
    *,
    option: str = "use_sequence_packing",
) -> None:
    """Raise unless sequences that are packed are computed as if each were alone.

    Args:
        model: The model, for messages and its precision.
        states: From a micro-batch, and whether to pack it, to the hidden states of its tokens ``[n, hidden]``.
        probe: The micro-batch.
        option: What packs, or spreads sequences over ranks; for messages.

    Raises:
        ValueError: Packed sequences see each other, or the model cannot run them.
    """
    what, off = ("spread", "to 1") if option == "ulysses_size" else ("packed", "off")
    apart = states(probe, False)
    try:
        packed = states(probe, True)
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = f"it cannot run {what} sequences ({error})"
    else:
        difference = float((packed - apart).norm() / apart.norm())
        if difference <= probe.tolerance:
            return
        reason = f"{what} sequences see each other (hidden states change by {difference:.2g}, relative)"
        if what == "spread":
            reason = f"sequences that are spread over ranks give other hidden states (by {difference:.2g}, relative)"
    raise ValueError(
        f"{option}: {type(model).__name__} with attn_implementation={model.config._attn_implementation}: "
        f"{reason}. Switch {option} {off}, or set attn_implementation to sdpa."
    )


@dataclass(frozen=True, eq=False)
class PackingProbe:
    """A small micro-batch of unequal rows.

    Attributes:
        input_ids: ``[batch, sequence]``.
        mask: ``[batch, sequence]``: most of the valid tokens, none of the first column.
        lengths: ``[batch]``.
        tolerance: Largest relative difference that rounding explains; neighbours in view change the states by a half.
    """

    input_ids: Tensor
    mask: Tensor
    lengths: Tensor
    tolerance: float

    @classmethod
    def of(cls, model: PreTrainedModel, device: torch.device, *, mixed_precision: bool) -> PackingProbe:
        """Return the probe for a model that takes its inputs on ``device``."""
        lengths = torch.tensor([5, 11, 2, 7], device=device)
        columns = torch.arange(11, device=device)
        ids = (torch.arange(44, device=device).reshape(4, 11) * 7 + 3) % model.config.get_text_config().vocab_size
        ids[0, :3], ids[3, :4] = ids[1, :3], ids[1, :4]  # for what is shared
        half = mixed_precision or model.dtype in (torch.bfloat16, torch.float16)
        # Not all of them: what is left out where nobody reads it must not be missed.
        mask = (columns > 0) & (columns < lengths.unsqueeze(1)) & (columns % 4 != 2)
        return cls(ids, mask, lengths, _TOLERANCE_HALF if half else _TOLERANCE)


def pack_by_tokens(lengths: Sequence[int], max_tokens: int | None, max_samples: int | None = None) -> list[list[int]]:
    """Group sample indices so that the tokens of every group sum to at most ``max_tokens``.

    First fit, longest first: at most 11/9 of the fewest possible groups (Johnson 1973). The order is a pure function of
    ``lengths``.

    Args:
        lengths: Tokens per sample.
        max_tokens: Hard cap on the sum of a group; ``None`` for no cap.
        max_samples: Hard cap on samples per group; ``None`` for no cap.

    Raises:
        ValueError: If one sample alone is longer than ``max_tokens``.
    """
    groups: list[list[int]] = []
    free: list[float] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = int(lengths[index])
        if max_tokens is not None and length > max_tokens:
            raise ValueError(
                f"Sample {index} has {length} tokens, more than max_tokens_per_microbatch={max_tokens}. "
                "Raise that option or lower sequence_length."
            )
        fits = (
            place
            for place, space in enumerate(free)
            if length <= space and (max_samples is None or len(groups[place]) < max_samples)
        )
        place = next(fits, len(groups))
        if place == len(groups):
            groups.append([])
            free.append(float("inf") if max_tokens is None else max_tokens)
        groups[place].append(index)
        free[place] -= length
    return groups
