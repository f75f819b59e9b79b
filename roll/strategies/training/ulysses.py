"""Ulysses sequence parallelism: ranks that share rows each hold a part of every sequence (arXiv:2309.14509).

Everything but attention works token by token, on the part that a rank holds. Around attention the parts are exchanged:
every rank gets whole sequences of some of the heads, computes their attention, and gives the outputs back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from roll.strategies.training.packed_attention import ATTENTION, REPLACED, PackingPlan, packed_attention, window_mask

ULYSSES = "roll_ulysses_attention"


@dataclass(frozen=True, eq=False)
class SequenceRanks:
    """The ranks that share rows with this one.

    Attributes:
        group: Their process group.
        rank: Which part of each sequence this process holds.
        size: Into how many parts sequences are cut.
    """

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, size: int) -> SequenceRanks:
        """Make groups of ``size`` neighbouring ranks; every rank must call it.

        Raises:
            ValueError: The number of ranks is not a multiple of ``size``.
        """
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if world % size:
            raise ValueError(
                f"ulysses_size={size} does not divide the {world} rank{'s' if world > 1 else ''}. Set ulysses_size to "
                f"one of {', '.join(str(n) for n in range(1, world + 1) if world % n == 0)}."
            )
        group, _ = dist.new_subgroups(size)
        return cls(group, dist.get_rank(group), size)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up what the ranks have found, of any shape, so that each has all; differentiable.

        All ranks compute the same loss from the sum. It counts once, so each keeps the gradient of its own part.
        """
        result: Tensor = _Sum.apply(tensor, self)
        return result


@dataclass(frozen=True, eq=False)
class SequencePart:
    """What of a micro-batch this rank computes.

    Attributes:
        ranks: Those that compute the rest.
        width: Tokens of a whole row, a multiple of the number of ranks.
        plan: Where the sequences of a packed row are; ``None`` for padded rows.
    """

    ranks: SequenceRanks
    width: int
    plan: PackingPlan | None

    @property
    def own_width(self) -> int:
        """Tokens of a row that this rank holds."""
        return self.width // self.ranks.size

    def cut(self, whole: Tensor) -> Tensor:
        """Return this rank's columns of ``[rows, width]``."""
        start = self.ranks.rank * self.own_width
        return whole[:, start : start + self.own_width].contiguous()

    def holds(self, places: Tensor) -> Tensor:
        """Return which ``places`` (row times width plus column), of any shape, are in this rank's part, bool."""
        return places.remainder(self.width) // self.own_width == self.ranks.rank

    def local(self, places: Tensor) -> Tensor:
        """Return where in this rank's part the ``places``, of any shape, are that it :meth:`holds`."""
        return (places // self.width) * self.own_width + places.remainder(self.own_width)


def padded_width(width: int, size: int) -> int:
    """Return the next multiple of ``size``."""
    return math.ceil(width / size) * size


def prepare_ulysses(model: PreTrainedModel, size: int) -> None:
    """Give ``model`` an attention that exchanges heads for tokens, where a :class:`SequencePart` is handed to it.

    Raises:
        ValueError: The heads or the attention of the model do not allow it.
    """
    heads = model.config.get_text_config().num_attention_heads
    if heads % size:
        fitting = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"ulysses_size={size} does not divide the {heads} attention heads. Use one of {fitting}.")
    implementation = model.config._attn_implementation
    if implementation not in (*REPLACED, ATTENTION, ULYSSES):
        raise ValueError(
            f"ulysses_size={size} does not work with attn_implementation={implementation}. "
            "Set model_args.attn_implementation to sdpa."
        )
    AttentionInterface.register(ULYSSES, ulysses_attention)
    AttentionMaskInterface.register(ULYSSES, sdpa_mask)
    model.set_attn_implementation(ULYSSES)


@torch.compiler.disable
def ulysses_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sequence_part: SequencePart | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function in the form of transformers' ``AttentionInterface``; causal.

    Args:
        module: The attention layer.
        query: ``[batch, heads, part of the sequence, size]``.
        key: The same, of the key heads.
        value: The same, of the key heads.
        attention_mask: Only without ``sequence_part``.
        sequence_part: What of the sequences this rank holds; ``None`` if it holds them whole.
        sliding_window: Tokens that a token sees, itself included.
        options: Whatever else the model hands on.

    Returns:
        ``[batch, part of the sequence, heads, size]``, and no attention weights.
    """
    if sequence_part is None:
        options["sliding_window"] = sliding_window
        return packed_attention(module, query, key, value, attention_mask, **options)
    ranks, heads, key_heads = sequence_part.ranks, query.shape[1], key.shape[1]
    copies = ranks.size // math.gcd(key_heads, ranks.size)
    if copies > 1:
        key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
    query, key, value = (_Exchange.apply(states, ranks, 1, 2) for states in (query, key, value))
    # Read by the attention function: how many query heads share a key head of those that are here.
    layer: Any = SimpleNamespace(
        num_key_value_groups=heads // (key_heads * copies), is_causal=getattr(module, "is_causal", True)
    )
    # Padded rows have all their padding at the right end, where causal attention sees none of it.
    mask = window_mask(sequence_part.width, sliding_window, query.device) if sequence_part.plan is None else None
    options.pop("packing_plan", None)
    output, _ = packed_attention(
        layer,
        query,
        key,
        value,
        mask,
        packing_plan=sequence_part.plan,
        sliding_window=sliding_window,
        **options,
    )
    return _Exchange.apply(output, ranks, 1, 2), None


def _exchange(tensor: Tensor, ranks: SequenceRanks, scatter: int, gather: int) -> Tensor:
    """Send each rank its part of dimension ``scatter``, and put what comes back together along ``gather``."""
    sent = torch.stack(tensor.chunk(ranks.size, dim=scatter))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ranks.group)
    return torch.cat(received.unbind(0), dim=gather)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: SequenceRanks, scatter: int, gather: int) -> Tensor:
        ctx.back = partial(_exchange, ranks=ranks, scatter=gather, gather=scatter)
        return _exchange(tensor, ranks, scatter, gather)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(gradients[0]), None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: SequenceRanks) -> Tensor:
        total = tensor.detach().clone()
        dist.all_reduce(total, group=ranks.group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
