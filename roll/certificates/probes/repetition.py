"""The same episodes again: elsewhere, on another day, side by side, in used environments; and how groups begin."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from roll.certificates.conditions import move_clock, set_shared_generators
from roll.certificates.episodes import Note, Player, as_text, digest, excerpt, let_go, made, settled
from roll.certificates.target import Source


def play(
    note: Note,
    source: Source,
    seeds: int,
    longest: int,
    seconds: float,
    shared: int = 1,
    clock: bool = False,
    again: bool = False,
) -> dict[str, Any]:
    """Play one episode per seed at random, each in a new environment.

    Args:
        note: Told before each call.
        source: What is played.
        seeds: How many episodes.
        longest: Steps of an episode.
        seconds: After so long no further one is begun.
        shared: State of the generators that everybody shares.
        clock: Whether it is another day.
        again: Whether all are then played again, in the opposite order.
    """
    if clock:
        move_clock()
    passes = [range(seeds), reversed(range(seeds))] if again else [range(seeds)]
    played = [_played(source, order, longest, seconds / len(passes), note, shared) for order in passes]
    return {"episodes": played[0], "again": played[1] if again else []}


def reuse(note: Note, source: Source, seeds: int, longest: int, seconds: float) -> dict[str, Any]:
    """Play each seed twice in one environment: what came before must not be seen."""
    episodes = []
    began = time.monotonic()
    with made(source.make) as env:
        for seed in range(seeds):
            for _ in range(2):
                set_shared_generators(1)
                episodes.append(asdict(Player(source.make, seed, longest=longest, note=note, env=env).play()))
            if time.monotonic() - began > seconds:
                break
    return {"first": episodes[::2], "second": episodes[1::2]}


def together(note: Note, source: Source, seeds: int, longest: int, threads: int, seconds: float) -> dict[str, Any]:
    """Play all seeds at the same time: in turn in one thread, then in several threads."""
    players = [Player(source.make, seed, longest=longest, note=note) for seed in range(seeds)]
    runs = {index: player.steps() for index, player in enumerate(players)}
    deadline = time.monotonic() + seconds
    while runs and time.monotonic() < deadline:
        for index in list(runs):
            set_shared_generators(1)
            if next(runs[index], StopIteration) is StopIteration:
                del runs[index]
    in_turn = [asdict(player.episode) for index, player in enumerate(players) if index not in runs]
    if not threads:
        return {"in_turn": in_turn, "threads": []}
    sys.setswitchinterval(1e-5)
    others = [Player(source.make, seed, longest=longest, note=note) for seed in range(seeds)]
    start = threading.Barrier(threads)

    def work(mine: list[Player]) -> None:
        start.wait()
        for player in mine:
            player.play()

    crew = [threading.Thread(target=work, args=(others[number::threads],), daemon=True) for number in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return {"in_turn": in_turn, "threads": [asdict(player.episode) for player in others]}


def starts(note: Note, source: Source, seeds: int, members: int) -> dict[str, Any]:
    """Begin groups: members of one share a seed, each has an environment of its own, and all are there at once."""
    groups = []
    for seed in range(seeds):
        set_shared_generators(1)
        envs, firsts = [source.make() for _ in range(members)], []
        for env in envs:
            note(f"reset(seed={seed})")
            observation, _ = settled(env.reset(seed=seed))
            firsts.append([digest(as_text(observation)), excerpt(as_text(observation))])
            instruction = str(getattr(env, "instruction", ""))
            firsts[-1] += [digest(instruction), excerpt(instruction)]
        groups.append(firsts)
        for env in envs:
            let_go(env)
    return {"groups": groups}


def _played(
    source: Source, seeds: Iterable[int], longest: int, seconds: float, note: Note, shared: int
) -> list[dict[str, Any]]:
    """Play seeds one after the other; return the episodes."""
    episodes, began = [], time.monotonic()
    for seed in seeds:
        set_shared_generators(shared)
        episodes.append(asdict(Player(source.make, seed, longest=longest, note=note).play()))
        if time.monotonic() - began > seconds:
            break
    return episodes
