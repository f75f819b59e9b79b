"""Tokens per second of supervised fine-tuning against TRL's ``SFTTrainer``: same model, rows, tokens and updates.

    OMP_NUM_THREADS=1 python benchmarks/sft_vs_trl.py [uniform] [mixed] [--steps 6] [--rounds 5]

Needs ``trl>=1.16,<2``. A Qwen3 of 2.5 M parameters, float32, random weights; rows of random tokens, all imitated but
the first. ``uniform``: every row has 128 tokens. ``mixed``: 8 to 512 tokens, log-normal. A step is 32 rows and one
optimiser step of AdamW, without gradient checkpointing. All start from the same weights and see the same rows in the
same order; their last losses are shown.

Ours cuts a step into micro-batches of at most ``--tokens`` tokens and puts rows end to end. TRL's micro-batches have
``per_device_train_batch_size`` rows padded to the longest; of the sizes ``--peer-rows`` the fastest counts. With
``--padding-free`` TRL lays the rows of a micro-batch end to end as well.

Every contestant is a process of its own; they take rounds in turn, so that other work on the machine hits all alike,
and the median round counts. The first step of each is warm-up. Memory is the peak of a process beyond what it had
before its first step.
"""

from __future__ import annotations

from roll.config.process import prepare_process

prepare_process()  # the same OpenMP settings for both sides, before torch is imported

import numpy as np  # noqa: E402
from contest import RATE, ROWS, VOCABULARY, Clock, Round, Side, Watch, compete, lengths_of, model, peak, trl_arguments  # noqa: E402


def rows_of(case: str, steps: int) -> list[list[int]]:
    """Return the rows of all steps of a round, the same for every contestant."""
    noise = np.random.default_rng(7)
    lengths = lengths_of(case, ROWS * steps, noise)
    return [noise.integers(5, VOCABULARY, length).tolist() for length in lengths]


def ours(side: Side, case: str, steps: int) -> Round:
    from roll.pipelines.sampling.demonstrations import to_batch
    from roll.strategies.jobs import TrainOptions
    from roll.strategies.training.pytorch.train import FsdpTrainStrategy
    from roll.strategies.training.supervised import SupervisedLoss

    options = TrainOptions(
        learning_rate=RATE,
        weight_decay=0.0,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        total_steps=steps,
        max_tokens_per_microbatch=side.tokens,
        use_sequence_packing=True,
    )
    trainer, clock, before = FsdpTrainStrategy(model(), options), Clock(), peak()
    rows = [np.array(row, np.int32) for row in rows_of(case, steps)]
    clock.tick()
    for step in range(steps):
        chosen = rows[step * ROWS : (step + 1) * ROWS]
        batch = to_batch([(ids, np.arange(len(ids)) > 0) for ids in chosen], 0)
        clock.losses.append(trainer.train_step(batch, SupervisedLoss())["loss"])
        clock.tick()
    return clock.round(before)


def theirs(side: Side, case: str, steps: int) -> Round:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from roll.models.loading import load_tokenizer

    clock = Clock()
    arguments = trl_arguments(
        SFTConfig, side.rows, steps, padding_free=side.flat, dataset_kwargs={"skip_prepare_dataset": True}
    )
    trainer = SFTTrainer(
        model=model(),
        args=arguments,
        train_dataset=Dataset.from_list([{"input_ids": row} for row in rows_of(case, steps)]),
        processing_class=load_tokenizer("toy"),
        callbacks=[Watch(clock)],
    )
    before = peak()
    trainer.train()
    return clock.round(before)


def lengths(case: str, steps: int) -> list[int]:
    """Return the lengths of all rows but those of the first step."""
    return [len(row) for row in rows_of(case, steps)[ROWS:]]


if __name__ == "__main__":
    compete(__doc__, ours, theirs, lengths, padding_free=True)
