"""Optimiser steps of sequences that begin alike: ``python benchmarks/shared_prefixes.py``.

Padded rows, rows end to end (packed), and rows whose equal beginnings are computed once (shared) take the same steps
in turn, so that other work on the machine hits all of them alike. Time is the processor's, with one thread; a ratio is
that of two neighbouring steps. All of them compute the last layer only where the loss reads it, if they are packed.

* ``rlvr``: groups of 8 responses to a prompt that is four times as long. At least 2.5 times the packed steps.
* ``turns``: an episode of 10 turns, a sample per turn behind its history (``sample_mode: step``). At least 3 times.
* ``games``: groups of 8 games of 10 turns, whose members go apart at some turn. At least 1.3 times.

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
from train_step import SIZES, NegativeLogLikelihood, make_model

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


def rlvr(draw: Draw, *, groups: int = 4, response: int = 128) -> TensorDict:
    rows = []
    for _ in range(groups):
        prompt = draw(4 * response)
        rows += [trained(torch.cat((prompt, draw(response))), len(prompt)) for _ in range(8)]
    return batch_of(rows)


def turns(draw: Draw, *, episodes: int = 6, observation: int = 40, action: int = 8) -> TensorDict:
    rows = []
    for _ in range(episodes):
        history = draw(0)
        for _ in range(10):
            prompt = torch.cat((history, draw(observation)))
            history = torch.cat((prompt, draw(action)))
            rows.append(trained(history, len(prompt)))
    return batch_of(rows)


def games(draw: Draw, *, groups: int = 8, observation: int = 26, action: int = 4) -> TensorDict:
    """As in the job ``sokoban``: some moves are another member's too, and the game goes on alike from there."""
    rows = []
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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | layout | tokens | computed | tokens/s | times packed | wanted |\n|---|---|---|---|---|---|---|")
    for case in arguments.cases:
        batch = CASES[case](drawing(SIZES[arguments.size]["vocab_size"]))
        trainers = {
            layout: FsdpTrainStrategy(make_model(arguments.size), TrainOptions(**options))
            for layout, options in LAYOUTS.items()
        }
        seconds: dict[str, list[float]] = {layout: [] for layout in trainers}
        for number in range(arguments.rounds + 1):
            for layout, trainer in trainers.items():
                begun = time.process_time()
                trainer.train_step(batch, NegativeLogLikelihood())
                if number:  # the first round warms up
                    seconds[layout].append(time.process_time() - begun)
        tokens = int(batch["lengths"].sum())
        tree = len(PrefixTree.of(batch["input_ids"], batch["lengths"]).ids)
        for layout, found in seconds.items():
            ratios = [packed / own for packed, own in zip(seconds["packed"], found, strict=True)]
            computed = tree if layout == "shared" else tokens
            wanted = WANTED[case] if layout == "shared" else ""
            rate = tokens / min(found)
            print(f"| {case} | {layout} | {tokens} | {computed} | {rate:.0f} | {median(ratios):.2f} | {wanted} |")
            if layout == "shared":
                leave(f"shared_prefixes/{case}", ratios)


if __name__ == "__main__":
    main()
