"""A trainer of ours and one of TRL's in turn: model, tokens, the clock, rounds in processes of their own, the table.

Imported before torch, so that both sides have the same OpenMP settings.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from roll.config.process import prepare_process

prepare_process()  # the same OpenMP settings for both sides, before torch is imported

import numpy as np  # noqa: E402
from ratios import leave  # noqa: E402

if TYPE_CHECKING:  # contestants have processes of their own: what starts them needs neither
    from transformers import Qwen3ForCausalLM

ROWS, VOCABULARY, RATE = 32, 4096, 1e-4
DEADLINE = 1800.0
WANTED = {"uniform": 1.1, "mixed": 2.0}

Row = TypeVar("Row")


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
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = dict(hidden_size=192, num_hidden_layers=4, intermediate_size=576, vocab_size=VOCABULARY, head_dim=48)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    config = Qwen3Config(**sizes, **heads, max_position_embeddings=1024, tie_word_embeddings=True)
    config._attn_implementation = "sdpa"
    return Qwen3ForCausalLM(config)


def lengths_of(case: str, count: int, noise: np.random.Generator) -> np.ndarray:
    """Return so many lengths: all 128, 8 to 512, log-normal, or all that of a case which is a number."""
    if case == "uniform" or case.isdecimal():
        return np.full(count, 128 if case == "uniform" else int(case))
    return np.clip(np.exp(noise.normal(4.2, 0.9, count)), 8, 512).astype(int)


def noise() -> np.random.Generator:
    """Return what draws the rows of a round, the same for every contestant."""
    return np.random.default_rng(7)


def tokens(source: np.random.Generator, length: int) -> list[int]:
    """Return so many random tokens."""
    drawn: list[int] = source.integers(5, VOCABULARY, length).tolist()
    return drawn


def of_step(rows: Sequence[Row], number: int) -> Sequence[Row]:
    """Return those of the rows of a round that a step takes, counted from 0."""
    return rows[number * ROWS : (number + 1) * ROWS]


def beyond_warm_up(given: str) -> int:
    """Return the number of steps of a round as the command line has it.

    Raises:
        ArgumentTypeError: Nothing would be measured.
    """
    if int(given) < 2:
        raise argparse.ArgumentTypeError("the first step of a round is warm-up, so take 2 or more.")
    return int(given)


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


def trl_arguments(kind: Any, rows: int, steps: int, **more: Any) -> Any:
    """Return the arguments of a trainer of TRL (``SFTConfig``, ``DPOConfig``) with so many rows per micro-batch."""
    return kind(
        output_dir=f"{tempfile.gettempdir()}/roll-contest",  # where nothing is written
        max_steps=steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=ROWS // rows,
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
        bf16=False,
        train_sampling_strategy="sequential",
        **more,
    )


def our_options(tokens: int, steps: int) -> Any:
    """Return what our trainer is told: the same as TRL's, with micro-batches of so many tokens, end to end."""
    from roll.strategies.jobs import TrainOptions

    return TrainOptions(
        learning_rate=RATE,
        weight_decay=0.0,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        total_steps=steps,
        max_tokens_per_microbatch=tokens,
        use_sequence_packing=True,
    )


def our_round(steps: int, step: Callable[[int], float]) -> Round:
    """Take steps, each of which returns its loss, and return what happened; models are loaded by then."""
    clock, before = Clock(), peak()
    clock.tick()
    for number in range(steps):
        clock.losses.append(step(number))
        clock.tick()
    return clock.round(before)


def trl_round(trainer: Any, rows: Sequence[Mapping[str, Any]], **more: Any) -> Round:
    """Train with a trainer class of TRL on rows, and return what happened."""
    from datasets import Dataset
    from transformers import TrainerCallback

    from roll.models.loading import load_tokenizer

    clock = Clock()

    class Watch(TrainerCallback):
        """Lets the clock know of the steps."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """Begin."""
            clock.tick()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """Note a step."""
            clock.tick()

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            """Note a loss."""
            if "loss" in logs:
                clock.losses.append(logs["loss"])

    tokenizer, data = load_tokenizer("toy"), Dataset.from_list(list(rows))
    made = trainer(model=model(), train_dataset=data, processing_class=tokenizer, callbacks=[Watch()], **more)
    before = peak()
    made.train()
    return clock.round(before)


Work = Callable[["Side", str, int], "Round"]
"""Lets a side take the steps of a round of a case."""


def serve(pipe: Connection, work: Work, side: Side, case: str, steps: int) -> None:
    """Work through rounds until nobody asks for more."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    while pipe.recv():
        with redirect_stdout(io.StringIO()):  # TRL prints every step
            found = work(side, case, steps)
        pipe.send(astuple(found))


def rounds(case: str, sides: Mapping[Side, Work], steps: int, number: int) -> dict[Side, list[Round]]:
    """Let the contestants take rounds in turn."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[Side, Connection] = {}
    for side, work in sides.items():
        pipes[side], other = context.Pipe()
        context.Process(target=serve, args=(other, work, side, case, steps), daemon=True).start()
        other.close()
    found: dict[Side, list[Round]] = {side: [] for side in sides}
    for turn in range(number):
        for side in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            pipes[side].send(True)
            if not pipes[side].poll(DEADLINE):
                raise TimeoutError(f"{side} did not answer within {DEADLINE:.0f} s")
            found[side].append(Round(*pipes[side].recv()))
    for pipe in pipes.values():
        pipe.send(False)
    return found


def report(case: str, found: Mapping[Side, Sequence[Round]], lengths: Sequence[int], steps: int) -> Iterator[str]:
    """Yield the table of a case; ``lengths`` are those of the sequences of all steps but the first."""
    tokens = sum(lengths) / (steps - 1)
    yield f"\n{case}: {ROWS} rows per step, {tokens:.0f} tokens (sequences of {min(lengths)} to {max(lengths)})"
    yield f"{'':36}{'tokens/s':>10}{'per CPU s':>11}{'memory MiB':>12}{'last loss':>11}"
    for side, done in found.items():
        wall, cpu = (statistics.median(getattr(one, name) for one in done) for name in ("wall", "cpu"))
        figures = f"{tokens / wall:>10.0f}{tokens / cpu:>11.0f}{done[0].memory:>12.0f}{done[0].losses[-1]:>11.4f}"
        yield f"{side!s:36}{figures}"
    we, they = (best_of(found, [side for side in found if (side.name == "ours") == own]) for own in (True, False))
    pairs = list(zip(found[we], found[they], strict=True))
    wanted = f"; wanted {WANTED[case]}" if case in WANTED else ""
    for name, attribute in (("by the clock", "wall"), ("by the processor", "cpu")):
        ratios = sorted(getattr(them, attribute) / getattr(one, attribute) for one, them in pairs)
        shown = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        leave(f"{Path(sys.argv[0]).stem}: {case}, {name}", ratios)
        yield f"ratio {name}, both at their best: {statistics.median(ratios):.2f} ({shown}){wanted}"


def best_of(found: Mapping[Side, Sequence[Round]], sides: Sequence[Side]) -> Side:
    """Return the side that takes the least of a processor."""
    return min(sides, key=lambda side: cpu_of(found[side]))


def cpu_of(done: Sequence[Round]) -> float:
    """Return the processor seconds of the median round."""
    return statistics.median(one.cpu for one in done)


def compete(
    description: str | None, ours: Work, theirs: Work, lengths: Callable[[str, int], list[int]], *, padding_free: bool
) -> None:
    """Read the command line, let both sides take rounds, and print the tables.

    Args:
        description: What the program says of itself.
        ours: Our side.
        theirs: TRL's.
        lengths: From a case and a number of steps to the lengths of all sequences but those of the first step.
        padding_free: Whether TRL's trainer can lay rows end to end.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(WANTED), help="of lengths; a number: all have that")
    parser.add_argument("--steps", type=beyond_warm_up, default=6, help="of a round, the first is warm-up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048], help="of our micro-batches")
    parser.add_argument("--peer-rows", type=int, nargs="+", default=[4, 8, 16], help="of TRL's micro-batches")
    if padding_free:
        parser.add_argument("--padding-free", action="store_true", help="try TRL's padding_free too")
    arguments = parser.parse_args()
    kinds = (False, True) if getattr(arguments, "padding_free", False) else (False,)
    sides: dict[Side, Work] = {Side("ours", tokens=tokens): ours for tokens in arguments.tokens}
    sides |= {Side("TRL", rows, flat=flat): theirs for rows in arguments.peer_rows for flat in kinds}
    for case in arguments.cases:
        found = rounds(case, sides, arguments.steps, arguments.rounds)
        for line in report(case, found, lengths(case, arguments.steps), arguments.steps):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
