"""What episodes earn, of scripted policies and of the environment's own solutions; and whether success can be had."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from roll.certificates.conditions import set_shared_generators
from roll.certificates.episodes import Note, Player, as_text, made, settled
from roll.certificates.policies import Speech
from roll.certificates.target import Source


def policies(
    note: Note, source: Source, seeds: int, groups: int, members: int, longest: int, seconds: float
) -> dict[str, Any]:
    """Let every scripted policy play, the random one in groups."""
    with made(source.make) as env:
        note("reset(seed=0)")
        settled(env.reset(seed=0))
        names = [name for name, _ in Speech(env).policies()]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    grouped: list[list[float]] = []
    deadline = time.monotonic() + seconds / 2
    for group in range(groups):
        played = [_summary(source, group, "random", member, longest, note) for member in range(members)]
        grouped.append([episode["score"] for episode in played if _is_scored(episode)])
        results["random"] += played
        if time.monotonic() > deadline:
            break
    deadline = time.monotonic() + seconds / 2
    for seed in range(min(seeds, len(grouped))):
        for name in names[1:]:
            results[name].append(_summary(source, seed, name, 0, longest, note))
        if time.monotonic() > deadline:
            break
    return {"results": results, "groups": grouped}


def solutions(note: Note, source: Source, seeds: int, longest: int) -> dict[str, Any]:
    """Play what the environment itself calls its solution."""
    found = []
    for seed in range(seeds):
        note(f"solution() of seed {seed}")
        score, success = 0.0, 0.0
        with made(source.make) as env:
            settled(env.reset(seed=seed))
            actions = settled(env.solution())
            for action in (actions or ())[:longest]:
                note(f"step({action!r}) of the solution of seed {seed}")
                _, reward, terminated, truncated, info = settled(env.step(Speech(env).response_with(action)))
                score, success = score + float(reward), float((info.get("metrics") or {}).get("success", 0.0))
                if terminated or truncated:
                    break
        found.append({"seed": seed, "known": actions is not None, "score": score, "success": success})
    return {"solutions": found}


def explore(note: Note, source: Source, seeds: int, longest: int, steps: int) -> dict[str, Any]:
    """Go wherever the actions lead, and see whether success is among it. Observations stand for states."""
    return {"explored": [_explored(source, seed, longest, steps, note) for seed in range(seeds)]}


def _summary(source: Source, seed: int, policy: str, member: int, longest: int, note: Note) -> dict[str, Any]:
    """Play an episode, and keep little of it."""
    set_shared_generators(1)
    episode = Player(source.make, seed, policy=policy, member=member, longest=longest, note=note).play()
    sizes = [episode.size, *(step.size for step in episode.steps)]
    return {
        "seed": seed,
        "score": episode.score,
        "success": episode.success,
        "valid": episode.valid,
        "steps": len(episode.steps),
        "ended": episode.ended,
        "error": episode.error,
        "rewards": [step.reward for step in episode.steps],
        "sizes": sizes,
    }


def _is_scored(episode: Mapping[str, Any]) -> bool:
    return not episode["error"] and math.isfinite(episode["score"])


def _explored(source: Source, seed: int, longest: int, budget: int, note: Note) -> dict[str, Any]:
    """Search breadth-first: a state is reached by playing its actions from the start."""
    with made(source.make) as env:
        note(f"exploring seed {seed}")
        observation, _ = settled(env.reset(seed=seed))
        responses = Speech(env).actions
    reached = {as_text(observation)}
    frontier: list[tuple[tuple[str, ...], str]] = [((), response) for response in responses]
    taken = 0
    while frontier:
        path, response = frontier.pop(0)
        with made(source.make) as env:
            note(f"exploring seed {seed}")
            settled(env.reset(seed=seed))
            try:
                for each in (*path, response):
                    observation, _, terminated, truncated, info = settled(env.step(each))
            except Exception:  # other probes tell of it; here it ends the search
                break
        taken += len(path) + 1
        if (info.get("metrics") or {}).get("success", 0.0) > 0:
            return {"seed": seed, "reached": len(reached), "complete": False, "solved": len(path) + 1}
        if as_text(observation) not in reached and not (terminated or truncated) and len(path) + 1 < longest:
            frontier += [((*path, response), following) for following in responses]
        reached.add(as_text(observation))
        if taken >= budget:
            break
    else:
        return {"seed": seed, "reached": len(reached), "complete": True, "solved": 0}
    return {"seed": seed, "reached": len(reached), "complete": False, "solved": 0}
