"""What is kept of what the learner made of sampled tokens, for the review."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from roll.config import RLConfig
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.learning.expert_rows import written_by_expert
from roll.pipelines.learning.loss_scope import loss_mask
from roll.trajectories.learned import Learned, learned_path, write_learned
from roll.trajectories.store import trajectory_path


def store_learned(config: RLConfig, batch: TrainingBatch, step: int) -> None:
    """Write what the learner made of the tokens of a step, where its trajectories are stored."""
    if config.stores(step):
        write_learned(learned_path(trajectory_path(config.output_dir, step, "train")), _learned(config, batch))


def _numbers(tensor: Tensor | None, row: int, at: Tensor) -> list[float] | None:
    found: list[float] | None = None if tensor is None else tensor[row][at].tolist()
    return found


def _learned(config: RLConfig, batch: TrainingBatch) -> Iterator[tuple[str, int, int, Learned]]:
    tensors = batch.tensors
    trained, advantages = loss_mask(tensors), tensors["advantages"]
    own = None if config.old_log_probs == "sampler" else tensors["old_log_probs"]
    entropies = tensors.get("entropies", None)
    written = written_by_expert(tensors).tolist()
    for row, sample in enumerate(batch.samples):
        if written[row]:
            continue
        group, _, episode = sample.trajectory.rpartition("/")
        for turn in range(sample.first_turn, sample.last_turn + 1):
            at = tensors["turn_index"][row] == turn
            log_probs, its = _numbers(own, row, at), _numbers(entropies, row, at)
            learned = Learned(trained[row][at].tolist(), advantages[row][at].tolist(), log_probs, its)
            yield group, int(episode), turn, learned
