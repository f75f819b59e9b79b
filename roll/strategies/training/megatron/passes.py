"""Splitting a batch into passes: micro-batches that all ranks send through the stages together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.strategies.training.balance import spread
from roll.strategies.training.megatron.inputs import Division, ModelInputs, model_inputs
from roll.strategies.training.megatron.options import MegatronOptions
from roll.strategies.training.megatron.parallel import Place, gather
from roll.strategies.training.micro_batches import Units, iterate_micro_batches, split_by_tokens
from roll.strategies.training.packing import pack_by_tokens


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch on its way through the stages.

    Attributes:
        rows: Which rows of the batch it computes, ``[n]``; none where only other ranks have rows left.
        micro: These rows; one row without a response where there are none.
        inputs: The same as the model takes them.
    """

    rows: Tensor
    micro: TensorDict
    inputs: ModelInputs


class PassPlanner:
    """Splits batches; every rank has one, with the same options.

    Args:
        megatron: How the model is spread over ranks.
        place: Where this rank stands.
        device: Where it computes.
        packed: Lay the sequences of a micro-batch end to end instead of padding them.
        max_tokens: Hard cap on tokens per forward, padding included; ``None`` for none.
    """

    def __init__(
        self, megatron: MegatronOptions, place: Place, device: torch.device, *, packed: bool, max_tokens: int | None
    ) -> None:
        self.megatron = megatron
        self.place = place
        self.device = device
        self.packed = packed
        self.max_tokens = max_tokens

    @property
    def same_shapes(self) -> bool:
        """Whether micro-batches that run at the same time must have one shape on all ranks."""
        options = self.megatron
        return options.moe_token_dispatcher_type == "allgather" and options.expert_model_parallel_size > 1

    def plan(self, batch: TensorDict, max_samples: int | None) -> list[Pass]:
        """Return the passes of this rank's share of a batch, as many as on every other rank.

        Args:
            batch: The share, ``[n, sequence]``; it may be empty.
            max_samples: Hard cap on sequences per forward; ``None`` for none.

        Raises:
            ValueError: A row does not fit, or ranks with the same ``data_rank`` were given different rows.
        """
        division = self._division()
        lengths = [division.padded(length) for length in batch["lengths"].tolist()]
        if lengths and self.megatron.virtual_stages is not None and not self.packed:
            # One shape for all micro-batches, see `_shapes`: as wide as the longest row.
            lengths = [max(lengths)] * len(lengths)
        units = Units.of(batch, lengths, packed=self.packed)
        groups = (pack_by_tokens if self.packed else split_by_tokens)(units.lengths, self.max_tokens, max_samples)
        shares = gather((self.place.data_rank, len(groups), sum(lengths), int(batch["input_ids"].sum())))
        _check_shares(shares)
        count = self._round_up(max(1, *(groups for _, groups, *_ in shares)))
        caps = {"max_tokens": self.max_tokens, "max_samples": max_samples}
        groups = units.rows_of(spread(groups, units.lengths, count, packed=self.packed, **caps))
        shapes = self._shapes(groups, lengths, count)
        result = []
        for number in range(count):
            rows, micro = self._micro(batch, groups[number] if number < len(groups) else [])
            inputs = model_inputs(micro, division, packed=self.packed, shape=shapes[number])
            result.append(Pass(rows, micro, inputs))
        return result

    def _micro(self, batch: TensorDict, group: list[int]) -> tuple[Tensor, TensorDict]:
        if not group:
            ids = torch.zeros(1, 2, dtype=torch.int64)
            columns = {"input_ids": ids, "response_mask": ids.bool(), "lengths": torch.tensor([2])}
            return torch.empty(0, dtype=torch.int64), TensorDict(columns, batch_size=[1]).to(self.device)
        rows = torch.tensor(group)
        order, micro = next(iterate_micro_batches(batch[rows], self.device, max_tokens=None))
        return rows[order], micro

    def _round_up(self, count: int) -> int:
        """Return a number of micro-batches that the schedule can take."""
        if self.megatron.virtual_stages is None:
            return count
        stages = self.megatron.pipeline_model_parallel_size
        return -(-count // stages) * stages

    def _shapes(self, groups: list[list[int]], lengths: list[int], count: int) -> list[tuple[int, int] | None]:
        """Return the shapes that micro-batches are to have, where that is not as small as possible."""
        interleaved = self.megatron.virtual_stages is not None
        if not self.same_shapes and not interleaved:
            return [None] * count
        least = (1, self._division().padded(2))
        if self.packed:
            own = [(1, sum(lengths[i] for i in group)) for group in groups]
        else:
            own = [(len(group), max(lengths[i] for i in group)) for group in groups]
        own += [least] * (count - len(groups))
        if interleaved:
            return [(max(rows for rows, _ in own), max(width for _, width in own))] * count
        everyone = gather(own)
        return [(max(s[n][0] for s in everyone), max(s[n][1] for s in everyone)) for n in range(count)]

    def _division(self) -> Division:
        return Division.of(
            self.megatron.context_parallel_size,
            self.place.context_rank,
            self.megatron.tensor_model_parallel_size,
            self.megatron.sequence_parallel,
        )


def _check_shares(shares: list[tuple[int, int, int, int]]) -> None:
    """Raise where ranks that compute the same rows together were given different ones."""
    first: dict[int, tuple[int, tuple[int, ...]]] = {}
    for rank, (data_rank, *share) in enumerate(shares):
        other, expected = first.setdefault(data_rank, (rank, tuple(share)))
        if tuple(share) != expected:
            raise ValueError(
                f"Ranks {other} and {rank} were given different rows, and both have data_rank {data_rank}. "
                "Give ranks with the same data_rank the same rows."
            )
