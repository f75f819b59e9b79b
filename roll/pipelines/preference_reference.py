"""What the reference says of the answers of a batch: a second model, adapters switched off, or computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.losses.preference import KINDS, kto_divergence
from roll.config.dpo import DPOConfig
from roll.data.preferences import PreferenceTable
from roll.pipelines.roles.models import ScoreRole, TrainRole
from roll.pipelines.sampling.demonstrations import in_batches
from roll.pipelines.sampling.preferences import mismatched_batch, preference_batch
from roll.strategies.training.preference import DIVERGENCE, REF_SUMS, answer_sums

FILE = "reference_log_probs.npz"
"""In a checkpoint: the stored sums, of each table its digest and an array ``[rows, 2]``."""


class PreferenceReference:
    """Makes batches with all that the loss reads of the reference.

    Args:
        config: The run.
        trainer: The policy.
        model: The reference, where it is a model of its own.
        tables: The rows, by name.
        padding: Token that fills up sequences.
    """

    def __init__(
        self,
        config: DPOConfig,
        trainer: TrainRole,
        model: ScoreRole | None,
        tables: Mapping[str, PreferenceTable],
        padding: int,
    ) -> None:
        self._config, self._trainer, self._model = config, trainer, model
        self._tables, self._padding = tables, padding
        self._stored: dict[str, Tensor] = {}

    @property
    def missing(self) -> bool:
        """Whether sums are to be stored that are not: :meth:`store` computes them."""
        return self._config.reference_kind == "stored" and self._tables.keys() != self._stored.keys()

    async def batch(self, name: str, rows: Sequence[int]) -> TensorDict:
        """Return rows of the table ``name`` as a batch that the loss can be computed of."""
        table = self._tables[name]
        batch = preference_batch(table, rows, self._padding)
        if self._config.reference_kind is None:
            return batch
        if self._config.reference_kind == "stored":
            batch[REF_SUMS] = self._stored[name][torch.tensor(list(rows))].flatten()
        else:
            batch[REF_SUMS] = await self._sums(batch)
        if not KINDS[self._config.loss_type].paired:
            budget = self._config.actor_train.training_args.max_tokens_per_microbatch
            most = min(self._config.sequence_length, budget or self._config.sequence_length)
            unrelated = mismatched_batch(table, rows, self._padding, most)
            batch[DIVERGENCE] = await self._divergence(unrelated, len(batch))
        return batch

    async def store(self) -> None:
        """Compute the sums of all tables that lack them with the policy, which must be the one before training."""
        for name, table in self._tables.items():
            if name not in self._stored:
                batches = (
                    preference_batch(table, rows, self._padding)
                    for rows in in_batches(len(table), self._config.rows_per_step)
                )
                sums = [answer_sums(await self._trainer.compute_log_probs(batch), batch) for batch in batches]
                self._stored[name] = torch.cat(sums).view(len(table), -1)

    def save(self, folder: Path) -> None:
        """Write what is stored, if anything is."""
        if self._stored:
            arrays = {name: sums.numpy() for name, sums in self._stored.items()}
            digests = {f"{name}_digest": np.array(self._tables[name].digest) for name in arrays}
            np.savez(folder / FILE, allow_pickle=False, **arrays, **digests)

    async def load(self, folder: Path) -> None:
        """Read what :meth:`save` wrote; what it lacks is computed, so the policy must be the one before training."""
        if self._config.reference_kind != "stored":
            return
        if (folder / FILE).is_file():
            with np.load(folder / FILE) as file:
                for name, table in self._tables.items():
                    if name in file and str(file[f"{name}_digest"]) == table.digest:
                        self._stored[name] = torch.from_numpy(file[name])
        await self.store()

    async def _sums(self, batch: TensorDict) -> Tensor:
        if self._model is not None:
            log_probs = await self._model.compute_log_probs(batch)
        else:
            log_probs = await self._trainer.compute_base_log_probs(batch)
        return answer_sums(log_probs, batch)

    async def _divergence(self, unrelated: TensorDict, rows: int) -> Tensor:
        own = answer_sums(await self._trainer.compute_log_probs(unrelated), unrelated)
        return kto_divergence(own - await self._sums(unrelated)).repeat(rows)
