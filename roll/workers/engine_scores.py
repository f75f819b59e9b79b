"""An engine as a teacher: it says how likely tokens are that are there already, and names the likeliest ones."""

from __future__ import annotations

import asyncio
from itertools import count

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.distillation import with_others
from roll.config import RowDistillConfig
from roll.config.taught import TaughtConfig
from roll.generation import ScoringRequest, TokenScores
from roll.strategies.base import ScoresTokens
from roll.workers.factory import scoring_engine
from roll.workers.memory import peak_memory
from roll.workers.setup import Registered, set_up
from roll.workers.train import DataPlace, data_place_of


class EngineScoreWorker:
    """Asks one engine about the rows of batches, all at the same time.

    It answers as :class:`roll.workers.train.ScoreWorker` does, but for hidden states, which no engine hands over.

    Args:
        config: The run.
        registered: What user code registered in the driver.
        role: ``teacher``, or one of ``teachers``.

    Raises:
        ConfigError: If the model cannot be loaded.
    """

    def __init__(self, config: TaughtConfig | RowDistillConfig, registered: Registered, role: str = "teacher") -> None:
        set_up(config, registered)
        self._engine: ScoresTokens = scoring_engine(config, role)
        self._numbers = count()

    async def data_place(self) -> DataPlace:
        """Return which part of a batch this engine reads."""
        return data_place_of(self._engine)

    async def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log-probs, ``[rows, sequence]``, 0 outside the mask."""
        mask = batch["response_mask"].bool()
        found = torch.zeros(mask.shape)
        for row, start, scores in await self._scores(batch, 0):
            found[row, start : start + len(scores.log_probs)] = torch.tensor(scores.log_probs)
        return found.masked_fill(~mask, 0.0)

    async def compute_top(self, batch: TensorDict, k: int) -> Tensor:
        """Return the likeliest tokens at each token of the mask, ``[rows, sequence, 2 k + 1]`` float64.

        First ``k`` token ids, then the log-probs of the buckets that they make
        (:func:`roll.algorithms.distillation.with_others`); 0 outside the mask.
        """
        k = min(k, self._engine.vocabulary)
        mask = batch["response_mask"].bool()
        found = torch.zeros(*mask.shape, 2 * k + 1, dtype=torch.float64)
        for row, start, scores in await self._scores(batch, k):
            named = with_others(torch.tensor(scores.named_log_probs), self._engine.vocabulary - k)
            columns = torch.cat((torch.tensor(scores.named_ids).double(), named), dim=-1)
            found[row, start : start + len(columns)] = columns
        return found.masked_fill(~mask.unsqueeze(-1), 0.0)

    async def _scores(self, batch: TensorDict, most_named: int) -> list[tuple[int, int, TokenScores]]:
        """Return number, first place and scores of each row with a token of the mask."""

        async def score(row: int, last: int, start: int) -> tuple[int, int, TokenScores]:
            # What stands behind the last token that counts need not be read.
            ids = batch["input_ids"][row, : last + 1].tolist()
            request = ScoringRequest(f"score-{next(self._numbers)}", ids, start, most_named)
            return row, start, await self._engine.score(request)

        asked = []
        for row, mask in enumerate(batch["response_mask"].bool()):
            places = mask.nonzero().squeeze(-1).tolist()
            if places:
                asked.append(score(row, places[-1], places[0]))
        return list(await asyncio.gather(*asked))

    async def peak_memory(self) -> float:
        """Return the most bytes this worker had since the last call."""
        return peak_memory()

    async def close(self) -> None:
        """End the engine."""
        await self._engine.close()
