"""Tokens per second of supervised fine-tuning against TRL's ``SFTTrainer``: same model, rows, tokens and updates.

    OMP_NUM_THREADS=1 python benchmarks/sft_vs_trl.py [uniform] [mixed] [--steps 6] [--rounds 5]

Needs ``trl>=1.16,<2``. A Qwen3 of 2.5 M parameters, float32, random weights; rows of random tokens, all imitated but
the first. ``uniform``: every row has 128 tokens. ``mixed``: 8 to 512 tokens, log-normal. A step is 32 rows and one
optimiser step of AdamW, without gradient checkpointing. All start from the same weights and see the same rows in the
same order; their last losses are shown.

Ours cuts a step into micro-batches of at most ``--tokens`` tokens and puts rows end to end. TRL's micro-batches have
``per_device_train_batch_size`` rows padded to the longest. Of the sizes of both (``--tokens``, ``--peer-rows``) the one
counts that takes the least of a processor: caches decide which that is. With ``--padding-free`` TRL lays the rows of a
micro-batch end to end as well.

Every contestant is a process of its own; they take rounds in turn, so that other work on the machine hits all alike,
and the median round counts. The first step of each is warm-up. Memory is the peak of a process beyond what it had
before its first step.
"""

from __future__ import annotations

import numpy as np
from contest import (
    ROWS,
    Round,
    Side,
    compete,
    lengths_of,
    model,
    noise,
    of_step,
    our_options,
    our_round,
    tokens,
    trl_arguments,
    trl_round,
)


def rows_of(case: str, steps: int) -> list[list[int]]:
    """Return the rows of all steps of a round, the same for every contestant."""
    source = noise()
    return [tokens(source, length) for length in lengths_of(case, ROWS * steps, source)]


def ours(side: Side, case: str, steps: int) -> Round:
    """Take the steps with ``fsdp_train``."""
    from roll.pipelines.sampling.demonstrations import to_batch
    from roll.strategies.training.pytorch.train import FsdpTrainStrategy
    from roll.strategies.training.supervised import SupervisedLoss

    trainer = FsdpTrainStrategy(model(), our_options(side.tokens, steps))
    rows = [np.array(row, np.int32) for row in rows_of(case, steps)]

    def step(number: int) -> float:
        batch = to_batch([(ids, np.arange(len(ids)) > 0) for ids in of_step(rows, number)], 0)
        return trainer.train_step(batch, SupervisedLoss())["loss"]

    return our_round(steps, step)


def theirs(side: Side, case: str, steps: int) -> Round:
    """Take the steps with TRL."""
    from trl import SFTConfig, SFTTrainer

    told = {"padding_free": side.flat, "dataset_kwargs": {"skip_prepare_dataset": True}}
    arguments = trl_arguments(SFTConfig, side.rows, steps, **told)
    return trl_round(SFTTrainer, [{"input_ids": row} for row in rows_of(case, steps)], args=arguments)


def lengths(case: str, steps: int) -> list[int]:
    """Return the lengths of all rows but those of the first step."""
    return [len(row) for row in rows_of(case, steps)[ROWS:]]


if __name__ == "__main__":
    compete(__doc__, ours, theirs, lengths, padding_free=True)
