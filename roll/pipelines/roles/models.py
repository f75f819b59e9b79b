"""Roles that compute on batches: the trained policy, the critic, the reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.distributed import WorkerGroup
from roll.distributed.sharding import Shard, shard, unshard
from roll.strategies.base import Loss
from roll.strategies.fingerprints import Fingerprints
from roll.strategies.training.micro_batches import PAIR
from roll.trajectories.picture_column import PICTURES
from roll.workers.train import DataPlace

if TYPE_CHECKING:
    from roll.workers.offered_weights import Offering

R = TypeVar("R", bound="ModelRole")


_OF_TOKENS: Final = frozenset({"compute_log_probs", "compute_base_log_probs", "compute_values", "compute_states"})
"""What is asked of tokens alone."""

_SCORED: Final = ("input_ids", "lengths", "response_mask", PAIR, PICTURES)
"""The columns that it takes to answer that; workers elsewhere are sent no others."""


class ModelRole:
    """A model spread over ranks: batches are split over them by tokens, and rows come back in order.

    Make it with :meth:`over`.

    Args:
        group: The workers.
        places: Which part of a batch each of them works on.
    """

    def __init__(self, group: WorkerGroup, places: list[DataPlace]) -> None:
        self.group = group
        self._places = places

    @classmethod
    async def over(cls: type[R], group: WorkerGroup) -> R:
        """Return the role of a group whose workers are made."""
        return cls(group, await group.all("data_place"))

    def elsewhere(self: R) -> R:
        """Return the role for another process, which is to call the same workers."""
        # A role calls workers; that it could start and end them there too is not needed.
        return type(self)(cast(WorkerGroup, self.group.calls()), self._places)

    async def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]``, 0 where the response mask is 0."""
        return await self._per_row("compute_log_probs", batch)

    async def _per_row(self, method: str, batch: TensorDict, *arguments: Any) -> Tensor:
        """Call a method that returns a tensor with one row per row of the batch."""
        parts = self._parts(batch.select(*_SCORED, strict=False) if method in _OF_TOKENS else batch)
        outputs = await self.group.each(method, [(parts[place.rank].sent, *arguments) for place in self._places])
        return unshard(parts, self._spoken(outputs))

    def _parts(self, batch: TensorDict) -> list[Shard]:
        return shard(batch, batch["lengths"], self._places[0].size)

    def _spoken(self, outputs: list[Any]) -> list[Any]:
        """Return the output for each part, of the rank that speaks for it."""
        spoken: dict[int, Any] = {}
        for place, output in zip(self._places, outputs, strict=True):
            if place.speaks:
                spoken.setdefault(place.rank, output)
        return [spoken[rank] for rank in sorted(spoken)]


class TrainRole(ModelRole):
    """A model that is trained (``actor_train``, ``critic``)."""

    async def compute_base_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log-probs of the policy with its LoRA adapters switched off, ``[batch, sequence]``."""
        return await self._per_row("compute_base_log_probs", batch)

    async def compute_values(self, batch: TensorDict) -> Tensor:
        """Return a critic's value of the state before token t, ``[batch, sequence]``, 0 outside the response mask."""
        return await self._per_row("compute_values", batch)

    async def compute_divergence(self, batch: TensorDict) -> Tensor:
        """Return the divergence from the reference over the vocabulary, ``[batch, sequence]``; reads ``ref_states``."""
        return await self._per_row("compute_divergence", batch)

    async def measure_from(self, *frozen: ScoreRole, divergence: Divergence = REVERSE_KL) -> None:
        """Take over the output layers of frozen models, and how divergences from them are computed."""
        await self.group.all("measure_from", [await model.head() for model in frozen], divergence)

    async def train_step(self, batch: TensorDict, loss: Loss) -> dict[str, float]:
        """Take one optimiser step; returns metrics over the whole batch.

        Raises:
            FloatingPointError: If the gradient is not finite; the weights are left as they were.
        """
        parts, totals = self._parts(batch), loss.totals(batch)
        reports = await self.group.each(
            "train_step", [(parts[place.rank].sent, loss, totals) for place in self._places]
        )
        return dict(self._spoken(reports)[0])

    async def fingerprints(self, dtype: torch.dtype | None) -> Fingerprints:
        """Return fingerprints of the weights as engines get them, under Hugging Face names.

        Args:
            dtype: Type in which they travel; ``None`` for that which they have.
        """
        found: list[Fingerprints] = await self.group.all("fingerprints", dtype)
        return next((one for one in found if one), {})

    async def offer_weights(self, offering: Offering, version: int) -> None:
        """Offer the weights of now to engines of other programs."""
        await self.group.all("offer_weights", offering, version)

    async def stop_offering(self) -> None:
        """Send nothing more to engines of other programs."""
        await self.group.all("stop_offering")

    async def save(self, directory: Path) -> None:
        """Write weights, optimiser, schedule and random state, and the model in Hugging Face format (``hf``)."""
        await self.group.all("save", directory.absolute())

    async def export(self, directory: Path) -> None:
        """Write the model alone, in Hugging Face format; LoRA adapters are merged into it."""
        await self.group.all("export", directory.absolute())

    async def load(self, directory: Path) -> None:
        """Restore what :meth:`save` wrote."""
        await self.group.all("load", directory.absolute())


class ScoreRole(ModelRole):
    """A frozen model (``reference``, ``teacher``)."""

    async def compute_states(self, batch: TensorDict) -> Tensor:
        """Return the last hidden states, ``[batch, sequence, hidden]``."""
        return await self._per_row("compute_states", batch)

    async def compute_top(self, batch: TensorDict, k: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens ``[batch, sequence, k]`` and the log-probs of their buckets ``[…, k + 1]``."""
        found = await self._per_row("compute_top", batch, k)
        k = found.shape[-1] // 2
        return found[..., :k].long(), found[..., k:].float()

    async def head(self) -> tuple[Tensor, Tensor | None]:
        """Return weight ``[vocabulary, hidden]`` and bias ``[vocabulary]``, if there is one, of the output layer."""
        heads = await self.group.all("head")
        weight, bias = heads[0]
        return weight, bias
