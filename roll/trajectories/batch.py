"""Samples to tensors: the one place where trajectories become a batch for training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.trajectories.picture_column import PICTURES, picture_column
from roll.trajectories.samples import NO_TURN, Runs, Sample

_NUMPY = {torch.int64: np.int64, torch.bool: np.bool_, torch.float32: np.float64}
"""What lists are read as; numbers are rounded to single precision once."""

_OF_BATCH = {**_NUMPY, torch.float32: np.float32}


def collate(samples: Sequence[Sample], pad_token_id: int) -> TensorDict:
    """Pad samples on the right into a batch.

    Args:
        samples: At least one sample.
        pad_token_id: Fills ``input_ids`` behind a sample; never trained, never attended to by valid tokens.

    Returns:
        A ``TensorDict`` of batch size ``[batch]``. Every per-token tensor is ``[batch, sequence]`` and aligned to the
        token it describes: ``input_ids`` int64, ``response_mask`` bool, ``sampler_log_probs`` float32,
        ``token_rewards`` float32, ``turn_index`` int64 (``-1`` outside completions), ``state_hashes`` int64 (0
        outside completions); ``lengths`` int64 ``[batch]``. With pictures also :data:`PICTURES`.

    Raises:
        ValueError: If there is no sample.
    """
    if not samples:
        raise ValueError("No sample to train on: every trajectory of the step failed or had no turn.")
    lengths = torch.tensor([len(sample.token_ids) for sample in samples])
    shape = (len(samples), int(lengths.max()))

    def padded(lists: Iterable[Sequence[float]], dtype: torch.dtype, fill: float = 0) -> Tensor:
        rows: list[Any] = list(lists)
        if all(isinstance(row, Runs) for row in rows):
            values: np.ndarray = np.array([value for row in rows for value in (*row.values, fill)], _NUMPY[dtype])
            counts = [count for row in rows for count in (*row.counts, shape[1] - len(row))]
            return torch.from_numpy(np.repeat(values.astype(_OF_BATCH[dtype]), counts).reshape(shape))
        if all(isinstance(row, list) for row in rows):
            flat: np.ndarray = np.fromiter(chain.from_iterable(rows), _NUMPY[dtype], count=int(lengths.sum()))
            rows = np.split(flat, np.cumsum(lengths.numpy())[:-1])
        whole = torch.full(shape, fill, dtype=dtype)
        for row, entries in zip(whole.numpy(), rows, strict=True):
            row[: len(entries)] = entries
        return whole

    batch = {
        "input_ids": padded((sample.token_ids for sample in samples), torch.int64, pad_token_id),
        "response_mask": padded((sample.response_mask for sample in samples), torch.bool),
        "sampler_log_probs": padded((sample.logprobs for sample in samples), torch.float32),
        "token_rewards": padded((sample.rewards for sample in samples), torch.float32),
        "turn_index": padded((sample.turn_index for sample in samples), torch.int64, NO_TURN),
        "state_hashes": padded((sample.state_hash for sample in samples), torch.int64),
        "lengths": lengths,
    }
    if any(sample.pictures for sample in samples):
        batch[PICTURES] = picture_column([sample.pictures for sample in samples])
    return TensorDict(batch, batch_size=[len(samples)])
