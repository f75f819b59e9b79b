"""Speed of environments: of Sokoban beside gym-sokoban, and of every tag by itself.

python benchmarks/env_speed.py                        # Sokoban beside gym-sokoban
python benchmarks/env_speed.py --tags [--busy]        # every tag, for docs/env_catalogue.md: some two minutes
python benchmarks/env_speed.py --only Taxi Countdown  # these tags alone; what is known of others stays

The first measures resets of a 6x6 room with one box and steps with a text observation, against gym-sokoban's resets and
its two observation modes (an RGB image from PNG tiles, the default, and ``tiny_rgb_array``). Both run in this process,
one after the other in each round, and the best round of each counts. Every round makes the same levels. Times are CPU
seconds of this process (both are single-threaded), so that other work on the machine counts as little as possible.

gym-sokoban 0.0.6 needs ``gym`` and ``pkg_resources``, which current setuptools no longer ships: a stand-in with the
one function it calls (the path of a data file) is put in its place; nothing that is timed changes, except that the
stand-in finds a file with less work than the original, which favours gym-sokoban.

Figures of tags go to docs/experiments/env_speeds.json, a row each, as soon as they are there; then write the page with
scripts/generate_env_catalogue.py. Each tag is measured in a process and a thread of its own. A random player's first
episodes, where moves are free text those of a player who solves it if the environment knows how, are played again and
again, so that neither choosing nor, in TextWorld, making games for the first time is timed. Seconds are those of the
processor, the environment's own programs included, and a rate is the median of windows. Memory is of each further
environment that has begun an episode and taken a step: by how much the resident size of the process grows, or what
Python allocates (tracemalloc), whichever is more. What libraries allocate for themselves is seen by the first alone
(two thirds in TextWorld), and what fits into memory that the process has already by the second alone.

The peer and the tags need the extras ``bench``, ``envs`` and ``textworld``. Prints a table; always exits with 0.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import time
import tracemalloc
import types
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from history import machine
from ratios import leave

import roll.envs
from roll.certificates import Target
from roll.certificates.episodes import settled
from roll.certificates.policies import Speech
from roll.cli.envs_text import shown
from roll.config.errors import ConfigError
from roll.envs.errors import MissingDependencyError

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "experiments" / "env_speeds.json"
WINDOWS, WINDOW_SECONDS = 5, 0.15
"""How often a rate is measured, and the least that a window takes; it ends with an episode."""
EPISODES, PLAY_SECONDS = 8, 1.0
"""Most episodes that are played again and again, and the seconds after which no other one is begun."""
WARM, MOST_ENVIRONMENTS, MAKE_SECONDS = 4, 2048, 0.7
"""Environments that are made first, with what all share; and the same of those that memory is shared out among."""
WORDS = {
    "ColossalCave": ("north", "south", "east", "west", "up", "down", "in", "out", "look", "take lamp", "light lamp"),
    "Mastermind": ("[1 2 3 4]", "[2 5 1 6]", "[6 4 3 1]", "[5 3 2 6]"),
}
"""What a player says at random where neither actions nor a solution are known, so that it is more than refused."""

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


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of a tag.

    Attributes:
        tag: Its name.
        steps_per_second: Steps of random play, without resets.
        resets_per_second: Beginnings of episodes.
        kib: Memory of one more environment, in KiB.
        environments: Among how many the memory was shared out.
        characters: Of the prompt with seed 0: what is told once, and the first turn.
        tokens: Of the same with SmolLM2's tokenizer, without a chat template; ``None`` where that is not installed.
        idle: Whether the machine had no other work.
        machine: Its processors.
    """

    tag: str
    steps_per_second: float
    resets_per_second: float
    kib: float
    environments: int
    characters: int
    tokens: int | None
    idle: bool
    machine: str


def costs(tag: str) -> tuple[float, float, float, int]:
    """Return steps and resets per second, KiB of an environment, and among how many that was shared out."""
    kib, environments = _memory(tag)  # first: a process that has played reuses what it has freed
    env = roll.envs.make(tag)
    episodes: list[tuple[int, list[str]]] = []
    began = time.perf_counter()
    while len(episodes) < EPISODES and (not episodes or time.perf_counter() - began < PLAY_SECONDS):
        episodes.append((len(episodes), _played(env, tag, len(episodes))))
    steps, resets = zip(*(_rates(env, episodes) for _ in range(WINDOWS)), strict=True)
    return statistics.median(steps), statistics.median(resets), kib, environments


def _played(env: Any, tag: str, seed: int) -> list[str]:
    """Play an episode; return the responses."""
    draws, over = random.Random(seed), False
    responses: list[str] = []
    observation, _ = settled(env.reset(seed=seed))
    solution = [] if env.actions else list(env.solution() or ())
    speech = Speech(env, env.instruction)
    while not over:
        if len(responses) < len(solution):
            response = speech.response_with(solution[len(responses)])
        elif tag in WORDS:
            response = speech.response_with(draws.choice(WORDS[tag]))
        else:
            response = speech.guess(draws, observation)
        responses.append(response)
        observation, _, terminated, truncated, _ = settled(env.step(response))
        over = terminated or truncated
    return responses


def _rates(env: Any, episodes: Sequence[tuple[int, Sequence[str]]]) -> tuple[float, float]:
    """Return steps and resets per second of one window."""
    resets, steps, resetting, stepping = 0, 0, 0.0, 0.0
    while resetting + stepping < WINDOW_SECONDS:
        seed, responses = episodes[resets % len(episodes)]
        began = _processor_seconds()
        settled(env.reset(seed=seed))
        begun = _processor_seconds()
        for response in responses:
            settled(env.step(response))
        resetting, stepping = resetting + begun - began, stepping + _processor_seconds() - begun
        resets, steps = resets + 1, steps + len(responses)
    return steps / stepping, resets / resetting


def _memory(tag: str) -> tuple[float, int]:
    """Return the KiB of each further environment, and among how many they were shared out."""

    def begin(most: int) -> list[Any]:
        kept: list[Any] = []
        began = time.perf_counter()
        while len(kept) < most and (len(kept) < WARM or time.perf_counter() - began < MAKE_SECONDS):
            env = roll.envs.make(tag)
            observation, _ = settled(env.reset(seed=len(kept) % WARM))
            settled(env.step(Speech(env, env.instruction).guess(random.Random(len(kept)), observation)))
            kept.append(env)
        gc.collect()
        return kept

    shared = begin(WARM)
    before = _resident()
    kept = begin(MOST_ENVIRONMENTS)
    grown = (_resident() - before) / len(kept)
    tracemalloc.start()
    traced = begin(MOST_ENVIRONMENTS)
    allocated = tracemalloc.get_traced_memory()[0] / len(traced)
    tracemalloc.stop()
    del shared
    return max(grown, allocated) / 1024, len(kept)


def _processor_seconds() -> float:
    """Return what this process and the programs that it ran have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tokenizer() -> Callable[[str], int] | None:
    """Return what counts tokens of a text, or ``None`` where SmolLM2 is not installed."""
    from transformers import AutoTokenizer

    from roll.models.errors import ModelNotFoundError
    from roll.models.smollm2 import smollm2_folder

    try:
        words = AutoTokenizer.from_pretrained(smollm2_folder())
    except ModelNotFoundError:
        return None
    return lambda text: len(words.encode(text, add_special_tokens=False))


def measure(tag: str, count: Callable[[str], int] | None, idle: bool) -> Row:
    """Measure a tag in a process of its own."""
    told = shown(Target(tag), 0)
    prompt = told["system"] + told["user"]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
        steps, resets, kib, environments = child.submit(costs, tag).result()
    return Row(
        tag=tag,
        steps_per_second=float(f"{steps:.3g}"),
        resets_per_second=float(f"{resets:.3g}"),
        kib=float(f"{kib:.2g}"),
        environments=environments,
        characters=len(prompt),
        tokens=count(prompt) if count else None,
        idle=idle,
        machine=machine(),
    )


def keep(row: Row, figures: Path) -> None:
    """Add a row, in place of the one of the same tag; those of tags that are gone are left out."""
    rows = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else []
    by_tag = {each["tag"]: each for each in rows} | {row.tag: asdict(row)}
    text = ",\n".join(json.dumps(by_tag[tag], ensure_ascii=False) for tag in sorted(by_tag) if tag in roll.envs.TAGS)
    figures.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def measure_tags(tags: Sequence[str], figures: Path, count: Callable[[str], int] | None, idle: bool) -> None:
    """Measure tags, print what they cost and keep it; a tag whose package is missing keeps the row that it has."""
    print(f"{'':28}{'steps/s':>12}{'resets/s':>12}{'KiB':>10}{'tokens':>8}")
    for tag in tags:
        try:
            row = measure(tag, count, idle)
        except (ConfigError, MissingDependencyError) as error:
            print(f"{tag:28}not measured: {error}", flush=True)
            continue
        rates = f"{row.steps_per_second:>12,.0f}{row.resets_per_second:>12,.1f}"
        print(f"{tag:28}{rates}{row.kib:>10,.1f}{row.tokens or '–':>8}", flush=True)
        keep(row, figures)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of Sokoban and gym-sokoban")
    parser.add_argument("--tags", action="store_true", help="measure every tag instead")
    parser.add_argument("--only", nargs="+", metavar="TAG", choices=roll.envs.list_tags(), help="measure these tags")
    parser.add_argument("--busy", action="store_true", help="the machine has other work, and the page will say so")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the file that rows of tags are kept in")
    arguments = parser.parse_args()
    if arguments.tags or arguments.only:
        measure_tags(arguments.only or sorted(roll.envs.TAGS), arguments.figures, tokenizer(), not arguments.busy)
    else:
        compare(arguments.rounds)


def compare(rounds: int) -> None:
    """Measure Sokoban beside gym-sokoban, and print the ratios."""
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
