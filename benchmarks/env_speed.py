"""Speed of the Sokoban environment beside gym-sokoban: ``python benchmarks/env_speed.py``.

Measures resets of a 6x6 room with one box and steps with a text observation, against gym-sokoban's resets and its two
observation modes (an RGB image from PNG tiles, the default, and ``tiny_rgb_array``). Both run in this process, one
after the other in each round, and the best round of each counts. Every round makes the same levels. Times are CPU
seconds of this process (both are single-threaded), so that other work on the machine counts as little as possible.

gym-sokoban 0.0.6 needs ``gym`` and ``pkg_resources``, which current setuptools no longer ships: a stand-in with the
one function it calls (the path of a data file) is put in its place; nothing that is timed changes, except that the
stand-in finds a file with less work than the original, which favours gym-sokoban.

Needs the extra ``bench``. Prints a table; always exits with 0.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ratios import leave

import roll.envs

TARGETS = {"reset": 20.0, "step": 20.0, "step tiny": 5.0}


def load_peer() -> Any:
    """Return gym-sokoban's environment class."""
    if "pkg_resources" not in sys.modules:
        stand_in = types.ModuleType("pkg_resources")

        def resource_filename(module: str, name: str) -> str:
            return str(Path(sys.modules[module].__file__ or "").parent / name)

        stand_in.resource_filename = resource_filename  # type: ignore[attr-defined]
        sys.modules["pkg_resources"] = stand_in
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        from gym_sokoban.envs.sokoban_env import SokobanEnv
    return SokobanEnv


def rate(work: Callable[[int], None], count: int) -> float:
    """Return how many times per second ``work`` does its thing, asked for ``count`` of them."""
    start = time.process_time()
    work(count)
    return count / (time.process_time() - start)


def our_work() -> dict[str, Callable[[int], None]]:
    """Return our reset and step loops. Steps parse a response, move, render text and fill info; resets are outside."""
    env = roll.envs.make("SimpleSokoban", max_steps=None)
    responses = [f"<answer>{name}</answer>" for name in env.actions or ()]

    def reset(count: int) -> None:
        for seed in range(count):
            env.reset(seed=seed)

    # A far box that cannot be reached: every move is a real one and the level never ends.
    board = "######\n#_P__#\n#____#\n######\n#O_X_#\n######"

    def step(count: int) -> None:
        env.reset(seed=0, options={"level": board})
        for index in range(count):
            env.step(responses[(1, 2, 0, 3)[index % 4]])

    return {"reset": reset, "step": step}


def peer_work() -> dict[str, Callable[[int], None]]:
    """Return the same for gym-sokoban; walking actions in a generated room, past its step limit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = load_peer()(dim_room=(6, 6), num_boxes=1, reset=False)

    def reset(count: int) -> None:
        # It draws from both global generators; seeding them outside the loop costs nothing.
        random.seed(0)
        np.random.seed(0)
        for _ in range(count):
            # Its cheapest observation: this row is about making levels.
            env.reset(render_mode="tiny_rgb_array")

    def step(count: int) -> None:
        env.reset(render_mode="tiny_rgb_array")
        for index in range(count):
            env.step(5 + index % 4)

    def tiny(count: int) -> None:
        env.reset(render_mode="tiny_rgb_array")
        for index in range(count):
            env.step(5 + index % 4, observation_mode="tiny_rgb_array")

    return {"reset": reset, "step": step, "step tiny": tiny}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    try:
        theirs = peer_work()
    except ImportError as error:
        print(f"gym-sokoban cannot be imported ({error}); only our rates follow. Install: pip install 'roll-rl[bench]'")
        theirs = {}
    ours = our_work()
    counts = {"reset": (2000, 100), "step": (30000, 100), "step tiny": (30000, 2000)}
    best_ours = dict.fromkeys(ours, 0.0)
    best_theirs = dict.fromkeys(theirs, 0.0)
    for _ in range(rounds):
        for name, work in ours.items():
            best_ours[name] = max(best_ours[name], rate(work, counts[name][0]))
        for name, work in theirs.items():
            best_theirs[name] = max(best_theirs[name], rate(work, counts[name][1]))

    print(f"6x6, 1 box; best of {rounds} rounds, per CPU second")
    print(f"{'':34}{'ours':>12}{'gym-sokoban':>14}{'ratio':>9}{'target':>9}")
    labels = {"reset": "reset", "step": "step: text / rgb image (default)", "step tiny": "step: text / tiny_rgb_array"}
    for name, label in labels.items():
        mine = best_ours[name.removesuffix(" tiny")]
        if name not in best_theirs:
            print(f"{label:34}{mine:>12,.0f}")
            continue
        ratio = mine / best_theirs[name]
        verdict = "PASS" if ratio >= TARGETS[name] else "FAIL"
        leave(f"env_speed: {label}", [ratio])
        print(f"{label:34}{mine:>12,.0f}{best_theirs[name]:>14,.0f}{ratio:>8.1f}x{TARGETS[name]:>8.0f}x  {verdict}")


if __name__ == "__main__":
    main()
