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

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from typing import Any

from roll.config.process import prepare_process

prepare_process()  # the same OpenMP settings for both sides, before torch is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

ROWS, VOCABULARY, RATE = 32, 4096, 1e-4
DEADLINE = 1800.0
WANTED = {"uniform": 1.1, "mixed": 2.0}


@dataclass(frozen=True)
class Side:
    """A contestant: ``ours``, or ``TRL`` with so many rows per micro-batch, padded or end to end."""

    name: str
    rows: int = 0
    tokens: int = 0
    flat: bool = False

    def __str__(self) -> str:
        size = f"{self.rows} rows" if self.rows else f"{self.tokens} tokens"
        return f"{self.name}, {size} per micro-batch{', flat' if self.flat else ''}"


@dataclass(frozen=True)
class Round:
    """What a contestant did in a round: clock and processor seconds of a step, losses, peak memory in MiB."""

    wall: float
    cpu: float
    losses: tuple[float, ...]
    memory: float


def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = dict(hidden_size=192, num_hidden_layers=4, intermediate_size=576, vocab_size=VOCABULARY, head_dim=48)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    config = Qwen3Config(**sizes, **heads, max_position_embeddings=1024, tie_word_embeddings=True)
    config._attn_implementation = "sdpa"
    return Qwen3ForCausalLM(config)


def rows_of(case: str, steps: int) -> list[list[int]]:
    """Return the rows of all steps of a round, the same for every contestant."""
    noise = np.random.default_rng(7)
    count = ROWS * steps
    lengths = np.full(count, 128)
    if case == "mixed":
        lengths = np.clip(np.exp(noise.normal(4.2, 0.9, count)), 8, 512).astype(int)
    return [noise.integers(5, VOCABULARY, length).tolist() for length in lengths]


class Clock:
    """Times steps; the first of a round is warm-up."""

    def __init__(self) -> None:
        self.stamps: list[tuple[float, float]] = []
        self.losses: list[float] = []

    def tick(self) -> None:
        """Note the time."""
        self.stamps.append((time.perf_counter(), time.process_time()))

    def round(self, before: float) -> Round:
        """Return what happened, in a process that had ``before`` MiB."""
        (wall, cpu), (last_wall, last_cpu) = self.stamps[1], self.stamps[-1]
        steps = len(self.stamps) - 2
        return Round((last_wall - wall) / steps, (last_cpu - cpu) / steps, tuple(self.losses), peak() - before)


def peak() -> float:
    """Return the most MiB that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from roll.models.loading import load_tokenizer

    clock = Clock()

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.tick()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "loss" in logs:
                clock.losses.append(logs["loss"])

    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=side.rows,
            gradient_accumulation_steps=ROWS // side.rows,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            max_length=None,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            use_cpu=True,
            padding_free=side.flat,
            bf16=False,
            dataset_kwargs={"skip_prepare_dataset": True},
            train_sampling_strategy="sequential",
        )
        data = Dataset.from_list([{"input_ids": row} for row in rows_of(case, steps)])
        trainer = SFTTrainer(
            model=model(),
            args=arguments,
            train_dataset=data,
            processing_class=load_tokenizer("toy"),
            callbacks=[Watch()],
        )
        before = peak()
        trainer.train()
    return clock.round(before)


def serve(pipe: Connection, side: Side, case: str, steps: int) -> None:
    """Work through rounds until nobody asks for more."""
    import io
    import os
    from contextlib import redirect_stdout

    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    work: Callable[[Side, str, int], Round] = ours if side.name == "ours" else theirs
    while pipe.recv():
        with redirect_stdout(io.StringIO()):  # TRL prints every step
            found = work(side, case, steps)
        pipe.send(astuple(found))


def rounds(case: str, sides: list[Side], steps: int, number: int) -> dict[Side, list[Round]]:
    """Let the contestants take rounds in turn."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[Side, Connection] = {}
    for side in sides:
        pipes[side], other = context.Pipe()
        context.Process(target=serve, args=(other, side, case, steps), daemon=True).start()
        other.close()
    found: dict[Side, list[Round]] = {side: [] for side in sides}
    for turn in range(number):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            pipes[side].send(True)
            if not pipes[side].poll(DEADLINE):
                raise TimeoutError(f"{side} did not answer within {DEADLINE:.0f} s")
            found[side].append(Round(*pipes[side].recv()))
    for pipe in pipes.values():
        pipe.send(False)
    return found


def report(case: str, found: dict[Side, list[Round]], steps: int) -> Iterator[str]:
    """Yield the table of a case."""
    rows = rows_of(case, steps)[ROWS:]
    tokens = sum(map(len, rows)) / (steps - 1)
    lengths = f"rows of {min(map(len, rows))} to {max(map(len, rows))}"
    yield f"\n{case}: {ROWS} rows per step, {tokens:.0f} tokens ({lengths})"
    yield f"{'':36}{'tokens/s':>10}{'per CPU s':>11}{'memory MiB':>12}{'last loss':>11}"
    for side, done in found.items():
        wall, cpu = (statistics.median(getattr(one, name) for one in done) for name in ("wall", "cpu"))
        figures = f"{tokens / wall:>10.0f}{tokens / cpu:>11.0f}{done[0].memory:>12.0f}{done[0].losses[-1]:>11.4f}"
        yield f"{side!s:36}{figures}"
    us = next(done for side, done in found.items() if side.name == "ours")
    best = min((side for side in found if side.name != "ours"), key=lambda side: cpu_of(found[side]))
    pairs = list(zip(us, found[best], strict=True))
    for name, attribute in (("by the clock", "wall"), ("by the processor", "cpu")):
        ratios = sorted(getattr(them, attribute) / getattr(one, attribute) for one, them in pairs)
        shown = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        yield f"ratio {name}, TRL at its best: {statistics.median(ratios):.2f} ({shown}); wanted {WANTED[case]}"


def cpu_of(done: list[Round]) -> float:
    return statistics.median(one.cpu for one in done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(WANTED))
    parser.add_argument("--steps", type=int, default=6, help="of a round, the first is warm-up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2048, help="of our micro-batches")
    parser.add_argument("--peer-rows", type=int, nargs="+", default=[4, 8, 16], help="of TRL's micro-batches")
    parser.add_argument("--padding-free", action="store_true", help="try TRL's padding_free too")
    arguments = parser.parse_args()
    kinds = (False, True) if arguments.padding_free else (False,)
    sides = [
        Side("ours", tokens=arguments.tokens),
        *(Side("TRL", rows, flat=flat) for rows in arguments.peer_rows for flat in kinds),
    ]
    for case in arguments.cases:
        found = rounds(case, sides, arguments.steps, arguments.rounds)
        for line in report(case, found, arguments.steps):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
