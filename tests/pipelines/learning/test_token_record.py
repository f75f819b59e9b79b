"""What is kept of what the learner made of sampled tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from roll.config import RLVRConfig
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.learning.loss_scope import LOSS_MASK
from roll.pipelines.learning.token_record import store_learned
from roll.trajectories.batch import collate
from roll.trajectories.learned import learned_path, read_learned
from roll.trajectories.model import Trajectory, Turn
from roll.trajectories.samples import samples_from
from roll.trajectories.store import trajectory_path


def episode(group: str, number: int, lengths: list[int], fork: int) -> Trajectory:
    """Turns of these many sampled tokens, which are their own numbers; the history is rendered anew before one."""
    turns = [
        Turn(
            [7] * (turn + 2),
            [1000 * number + 100 * turn + k for k in range(length)],
            [-0.5] * length,
            starts_sample=turn == fork,
        )
        for turn, length in enumerate(lengths)
    ]
    return Trajectory("a", group, number, 0, turns=turns, score=1.0)


@pytest.mark.parametrize("mode", ["trajectory", "step"])
@pytest.mark.parametrize("own", ["trainer", "sampler"])
def test_every_sampled_token_keeps_its_own_numbers(
    tmp_path: Path, mode: Literal["trajectory", "step"], own: str
) -> None:
    played = [episode("g/1", 0, [3, 1, 4], fork=2), episode("g/1", 1, [2], fork=9), episode("h", 5, [1, 5], fork=1)]
    samples = [sample for each in played for sample in samples_from(each, mode)]
    tensors = collate(samples, 0)
    ids = tensors["input_ids"].float()
    tensors["advantages"], tensors["old_log_probs"] = ids / 8, -ids
    tensors["entropies"] = torch.where(ids > 1100, ids / 16, torch.nan)
    tensors[LOSS_MASK] = tensors["response_mask"] & (tensors["input_ids"] % 2 == 0)
    keys: dict[str, Any] = {"output_dir": tmp_path, "old_log_probs": own, "trajectory_dump_steps": 2}
    config = RLVRConfig.model_construct(**keys)
    batch = TrainingBatch(tensors, samples, [0.0] * len(samples), [False] * len(samples), None)
    path = learned_path(trajectory_path(tmp_path, 4, "train"))
    store_learned(config, batch, 3)
    assert not path.exists(), "not a step whose trajectories are stored"
    store_learned(config, batch, 4)
    for each in played:
        found = read_learned(path, each.group_id, each.episode)
        assert sorted(found) == list(range(len(each.turns)))
        for number, turn in enumerate(each.turns):
            assert found[number].advantages == [token / 8 for token in turn.completion_ids]
            entropies = found[number].entropies
            assert entropies is not None
            for token, entropy in zip(turn.completion_ids, entropies, strict=True):
                assert entropy == token / 16 if token > 1100 else math.isnan(entropy)
            assert found[number].trained == [token % 2 == 0 for token in turn.completion_ids]
            assert found[number].log_probs == (
                None if own == "sampler" else [-float(token) for token in turn.completion_ids]
            )
    assert read_learned(path, "g/1", 9) == {} and read_learned(tmp_path / "none", "h", 5) == {}
    assert torch.equal(tensors["advantages"], ids / 8), "the batch is as it was"
