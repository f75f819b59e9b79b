"""Samples to tensors: the one place where trajectories become a batch for training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict

from roll.trajectories.samples import NO_TURN, Sample


def collate(samples: Sequence[Sample], pad_token_id: int) -> TensorDict:
    """Pad samples on the right into a batch.

    Args:
        samples: At least one sample.
        pad_token_id: Fills ``input_ids`` behind a sample; never trained, never attended to by valid tokens.

    Returns:
        A ``TensorDict`` of batch size ``[batch]``. Every per-token tensor is ``[batch, sequence]`` and aligned to the
        token it describes: ``input_ids`` int64, ``response_mask`` bool, ``sampler_log_probs`` float32,
        ``token_rewards`` float32, ``turn_index`` int64 (``-1`` outside completions), ``state_hashes`` int64 (0
        outside completions); ``lengths`` int64 ``[batch]``.

    Raises:
        ValueError: If there is no sample.
    """
    if not samples:
        raise ValueError("No sample to train on: every trajectory of the step failed or had no turn.")
    lengths = torch.tensor([len(sample.token_ids) for sample in samples])
    shape = (len(samples), int(lengths.max()))
    batch = {
        "input_ids": torch.full(shape, pad_token_id, dtype=torch.int64),
        "response_mask": torch.zeros(shape, dtype=torch.bool),
        "sampler_log_probs": torch.zeros(shape),
        "token_rewards": torch.zeros(shape),
        "turn_index": torch.full(shape, NO_TURN, dtype=torch.int64),
        "state_hashes": torch.zeros(shape, dtype=torch.int64),
    }
    for row, sample in enumerate(samples):
        end = len(sample.token_ids)
        batch["input_ids"][row, :end] = torch.tensor(sample.token_ids)
        batch["response_mask"][row, :end] = torch.tensor(sample.response_mask, dtype=torch.bool)
        batch["sampler_log_probs"][row, :end] = torch.tensor(sample.logprobs)
        batch["token_rewards"][row, :end] = torch.tensor(sample.rewards)
        batch["turn_index"][row, :end] = torch.tensor(sample.turn_index)
        batch["state_hashes"][row, :end] = torch.tensor(sample.state_hash)
    batch["lengths"] = lengths
    return TensorDict(batch, batch_size=[len(samples)])
