"""Optimiser steps of sequences that begin alike: ``python benchmarks/shared_prefixes.py``.

Padded rows, rows end to end (packed), and rows whose equal beginnings are computed once (shared) take the same steps
in turn, so that other work on the machine hits all of them alike. On the CPU, with one thread, time is the processor's,
on a GPU the clock's; a ratio is that of two neighbouring steps. All of them compute the last layer only where the loss
reads it, if they are packed. ``first step`` is the one that warms up: on a GPU it compiles the kernels of shared
prefixes.

* ``rlvr``: groups of 8 responses to a prompt that is four times as long. At least 2.5 times the packed steps.
* ``turns``: an episode of 10 turns, a sample per turn behind its history (``sample_mode: step``). At least 3 times.
* ``games``: groups of 8 games of 10 turns, whose members go apart at some turn. At least 1.3 times.

``--size 0.5b --dtype bf16 --longer 4 --max-tokens 16384`` is what a GPU is for.

Prints a table; always exits with 0.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from ratios import leave
from tensordict import TensorDict
from torch import Tensor
from train_step import SIZES, NegativeLogLikelihood, device, make_model

from roll.strategies.jobs import TrainOptions
from roll.strategies.training.prefix_tree import PrefixTree
from roll.strategies.training.pytorch.train import FsdpTrainStrategy

LAYOUTS = {"padded": {}, "packed": {"use_sequence_packing": True}, "shared": {"share_prefixes": True}}
WANTED = {"rlvr": 2.5, "turns": 3.0, "games": 1.3}


def batch_of(rows: list[tuple[Tensor, Tensor]]) -> TensorDict:
    """Return right-padded rows of token ids and masks, ``[length]`` each."""
    lengths = torch.tensor([len(ids) for ids, _ in rows])
    ids, mask = (torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*rows, strict=True))
    return TensorDict({"input_ids": ids, "response_mask": mask, "lengths": lengths}, batch_size=[len(rows)])


def trained(ids: Tensor, start: int) -> tuple[Tensor, Tensor]:
    return ids, torch.arange(len(ids)) >= start


def rlvr(draw: Draw, longer: int, *, groups: int = 4, response: int = 128) -> TensorDict:
    rows, response = [], response * longer
    for _ in range(groups):
        prompt = draw(4 * response)
        rows += [trained(torch.cat((prompt, draw(response))), len(prompt)) for _ in range(8)]
    return batch_of(rows)


def turns(draw: Draw, longer: int, *, episodes: int = 6, observation: int = 40, action: int = 8) -> TensorDict:
    rows, observation, action = [], observation * longer, action * longer
    for _ in range(episodes):
        history = draw(0)
        for _ in range(10):
            prompt = torch.cat((history, draw(observation)))
            history = torch.cat((prompt, draw(action)))
            rows.append(trained(history, len(prompt)))
    return batch_of(rows)


def games(draw: Draw, longer: int, *, groups: int = 8, observation: int = 26, action: int = 4) -> TensorDict:
    """As in the job ``sokoban``: some moves are another member's too, and the game goes on alike from there."""
    rows, observation, action = [], observation * longer, action * longer
    for _ in range(groups):
        begun: dict[tuple[int, ...], Tensor] = {(): draw(observation)}
        for _ in range(8):
            moves: tuple[int, ...] = ()
            for _ in range(10):
                moves = (*moves, max(0, int(draw(1)) % 8 - 4))
                if moves not in begun:
                    begun[moves] = torch.cat((begun[moves[:-1]], draw(action + observation)))
            ids = begun[moves]
            rows.append((ids, torch.arange(len(ids)) % (action + observation) >= observation))
    return batch_of(rows)


Draw = Callable[[int], Tensor]
"""From a number to so many random tokens."""


def drawing(vocabulary: int) -> Draw:
    noise = torch.Generator().manual_seed(0)
    return lambda count: torch.randint(1, vocabulary, (count,), generator=noise)


CASES = {"rlvr": rlvr, "turns": turns, "games": games}


def main() -> None:
    """Parse the command line, take the steps and print the table."""
    parser = argparse.ArgumentParser(description="Optimiser steps of sequences that begin alike.")
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: mixed precision")
    parser.add_argument("--longer", type=int, default=1, help="so many times as long prompts, turns and responses")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a micro-batch, shared ones counted once")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    common = {"mixed_precision": arguments.dtype == "bf16", "max_tokens_per_microbatch": arguments.max_tokens}
    print("| case | layout | tokens | computed | tokens/s | times packed | wanted | first step |")
    print("|---|---|---|---|---|---|---|---|")
    for case in arguments.cases:
        batch = CASES[case](drawing(SIZES[arguments.size]["vocab_size"]), arguments.longer)
        seconds: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
        trainers = {
            layout: FsdpTrainStrategy(make_model(arguments.size), TrainOptions(**options, **common))
            for layout, options in LAYOUTS.items()
        }
        for _ in range(arguments.rounds + 1):
            for layout, trainer in trainers.items():
                begun = now()
                trainer.train_step(batch, NegativeLogLikelihood())
                seconds[layout].append(now() - begun)
        tokens = int(batch["lengths"].sum())
        tree = len(PrefixTree.of(batch["input_ids"], batch["lengths"]).ids)
        for layout, (first, *found) in seconds.items():
            ratios = [packed / own for packed, own in zip(seconds["packed"][1:], found, strict=True)]
            computed = tree if layout == "shared" else tokens
            wanted = WANTED[case] if layout == "shared" else ""
            print(
                f"| {case} | {layout} | {tokens} | {computed} | {tokens / min(found):.0f} | {median(ratios):.2f} "
                f"| {wanted} | {first:.1f} s |",
                flush=True,
            )
            if layout == "shared":
                leave(f"shared_prefixes: {case}", ratios)


def now() -> float:
    """Return seconds: of the processor, or of the clock when the GPU has done what it was given."""
    if device().type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
