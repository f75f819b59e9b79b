"""What is tried with an environment: each probe runs in a process of its own and returns what it saw, as JSON."""

from __future__ import annotations

import copy
import gc
import math
import re
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from inspect import iscoroutinefunction
from random import Random
from typing import Any

from roll.certificates.conditions import move_clock, set_shared_generators
from roll.certificates.episodes import Note, Player, as_text, digest, excerpt, settled
from roll.certificates.policies import ODD_TEXTS, Speech
from roll.certificates.target import Source, Target, find
from roll.env_managers.session import EnvSession

Probe = Callable[..., Any]


def describe(note: Note, target: Mapping[str, Any]) -> dict[str, Any]:
    """Say what the environment is, and which modules were imported to make and reset it."""
    note("its import")
    source, before = _source(target), set(sys.modules)
    note("making it")
    env = source.make()
    note("reset(seed=0)")
    if hasattr(env, "reset"):
        settled(env.reset(seed=0))
    own = getattr(env, "max_steps", None)
    return {
        "factory": source.factory,
        "class": f"{type(env).__module__}:{type(env).__qualname__}",
        "instruction": str(getattr(env, "instruction", "")),
        "actions": [str(name) for name in getattr(env, "actions", None) or ()],
        "max_steps": own if isinstance(own, int) else None,
        "tag_max_steps": source.tag.max_steps if source.tag else None,
        "use_thread_lock": bool(source.tag and source.tag.use_thread_lock),
        "awaits": iscoroutinefunction(getattr(env, "reset", None)),
        "solution": hasattr(env, "solution") and settled(env.solution()) is not None,
        "imported": [name for name in sys.modules if name not in before],
    }


def contract(note: Note, target: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Play as training does, which checks whatever is returned; and see whether any of it changes later."""
    source = _source(target)
    problems, changed = [], []
    for seed in range(2):
        kept: list[tuple[int, Any, str]] = []
        problem = _session(source, seed, longest, note, kept)
        if problem:
            problems.append(problem)
        changed += [
            f"what step {step} of seed {seed} returned was {excerpt(before)} and is now {excerpt(repr(returned))}"
            for step, returned, before in kept
            if repr(returned) != before
        ][:1]
    return {"problems": problems, "changed": changed}


def gymnasium_checker(note: Note, target: Mapping[str, Any]) -> dict[str, Any]:
    """Let Gymnasium check it."""
    from gymnasium.utils.env_checker import check_env

    env = _source(target).make()
    note("Gymnasium's checker")
    set_shared_generators(1)
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env.action_space.seed(0)
            check_env(env, skip_render_check=True)
        except Exception as raised:
            error = f"{type(raised).__name__}: {excerpt(str(raised), 400)}"
    return {"error": error, "warnings": sorted({excerpt(_plain(str(warning.message)), 300) for warning in caught})}


def play(
    note: Note,
    target: Mapping[str, Any],
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
        target: What is played.
        seeds: How many episodes.
        longest: Steps of an episode.
        seconds: After so long no further one is begun.
        shared: State of the generators that everybody shares.
        clock: Whether it is another day.
        again: Whether all are then played again, in the opposite order.
    """
    if clock:
        move_clock()
    source = _source(target)
    passes = [range(seeds), reversed(range(seeds))] if again else [range(seeds)]
    played = [_played(source, order, longest, seconds / len(passes), note, shared) for order in passes]
    return {"episodes": played[0], "again": played[1] if again else []}


def reuse(note: Note, target: Mapping[str, Any], seeds: int, longest: int, seconds: float) -> dict[str, Any]:
    """Play each seed twice in one environment: what came before must not be seen."""
    source = _source(target)
    env = source.make()
    episodes = []
    began = time.monotonic()
    for seed in range(seeds):
        for _ in range(2):
            set_shared_generators(1)
            episodes.append(asdict(Player(source.make, seed, longest=longest, note=note, env=env).play()))
        if time.monotonic() - began > seconds:
            break
    return {"first": episodes[::2], "second": episodes[1::2]}


def together(
    note: Note, target: Mapping[str, Any], seeds: int, longest: int, threads: int, seconds: float
) -> dict[str, Any]:
    """Play all seeds at the same time: in turn in one thread, then in several threads."""
    source = _source(target)
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


def starts(note: Note, target: Mapping[str, Any], seeds: int, members: int) -> dict[str, Any]:
    """Begin groups: members of one share a seed, each has an environment of its own, and all are there at once."""
    source = _source(target)
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
    return {"groups": groups}


def policies(
    note: Note, target: Mapping[str, Any], seeds: int, groups: int, members: int, longest: int, seconds: float
) -> dict[str, Any]:
    """Let every scripted policy play, the random one in groups."""
    source = _source(target)
    env = source.make()
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


def solutions(note: Note, target: Mapping[str, Any], seeds: int, longest: int) -> dict[str, Any]:
    """Play what the environment itself calls its solution."""
    source = _source(target)
    found = []
    for seed in range(seeds):
        note(f"solution() of seed {seed}")
        env = source.make()
        settled(env.reset(seed=seed))
        actions = settled(env.solution())
        score, success = 0.0, 0.0
        for action in (actions or ())[:longest]:
            note(f"step({action!r}) of the solution of seed {seed}")
            _, reward, terminated, truncated, info = settled(env.step(Speech(env).response_with(action)))
            score, success = score + float(reward), float((info.get("metrics") or {}).get("success", 0.0))
            if terminated or truncated:
                break
        found.append({"seed": seed, "known": actions is not None, "score": score, "success": success})
    return {"solutions": found}


def explore(note: Note, target: Mapping[str, Any], seeds: int, longest: int, steps: int) -> dict[str, Any]:
    """Go wherever the actions lead, and see whether success is among it. Observations stand for states."""
    source = _source(target)
    return {"explored": [_explored(source, seed, longest, steps, note) for seed in range(seeds)]}


def endings(note: Note, target: Mapping[str, Any], seeds: int, longest: int) -> dict[str, Any]:
    """Step once more after the end."""
    source = _source(target)
    after = []
    for seed in range(seeds):
        set_shared_generators(1)
        player = Player(source.make, seed, longest=longest, note=note)
        episode = player.play()
        if episode.ended not in ("terminated", "truncated"):
            continue
        response = Speech(player.env).guess(Random(seed), "")
        note(f"step() after the end of seed {seed}")
        try:
            returned = settled(player.env.step(response))
            after.append({"seed": seed, "raised": "", "reward": float(returned[1])})
        except Exception as error:
            after.append({"seed": seed, "raised": type(error).__name__, "reward": 0.0})
    return {"after": after}


def odd_texts(note: Note, target: Mapping[str, Any]) -> dict[str, Any]:
    """Answer with texts that nobody expects."""
    source = _source(target)
    problems = []
    for name, text in ODD_TEXTS.items():
        for doing in (name, f"{name} as an action"):
            env = source.make()
            note(f"reset() before a response with {name}")
            settled(env.reset(seed=0))
            response = text if doing == name else _as_action(env, text)
            note(f"step() with {doing} ({excerpt(response, 40)!r})")
            try:
                settled(env.step(response))
            except Exception as error:
                problems.append(f"{doing} ({excerpt(response, 40)!r}): {type(error).__name__}: {excerpt(str(error))}")
                break
    return {"problems": problems}


def memory(note: Note, target: Mapping[str, Any], episodes: int, longest: int) -> dict[str, Any]:
    """Play the same episodes over and over, and see what stays."""
    source = _source(target)

    def once() -> int:
        steps = 0
        for index in range(episodes):
            set_shared_generators(1)
            steps += len(Player(source.make, index % 4, longest=longest, note=note).play().steps)
        gc.collect()
        return steps

    once()
    before_process = _resident()
    tracemalloc.start()
    once()
    first, _ = tracemalloc.get_traced_memory()
    once()
    second, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    env = source.make()
    del env
    began = time.perf_counter()
    steps = once()
    return {
        "kept_per_episode": (second - first) / episodes,
        "resident_per_episode": (_resident() - before_process) / (3 * episodes),
        "steps_per_second": steps / (time.perf_counter() - began),
        "process_mib": _resident() / (1 << 20),
    }


def _source(target: Mapping[str, Any]) -> Source:
    return find(Target(**target))


def _session(source: Source, seed: int, longest: int, note: Note, kept: list[tuple[int, Any, str]]) -> str:
    """Play one episode through the checks of training; return the problem, and what every step returned."""
    env = source.make()
    recorded = _Recorded(env, kept)
    random = Random(f"{seed} 0")
    try:
        session = EnvSession(lambda: recorded, seed)
        note(f"reset(seed={seed})")
        start = settled(session.start())
        speech, observation = Speech(env, start.instruction), start.observation
        for number in range(longest):
            note(f"step() number {number + 1} of seed {seed}")
            step = settled(session.step(speech.guess(random, observation), last=False))
            observation = step.observation
            if step.terminated or step.truncated:
                break
        else:
            settled(session.close())
    except Exception as error:
        return excerpt(str(error), 400)
    return ""


class _Recorded:
    """Passes everything on to an environment and keeps what its steps return."""

    def __init__(self, env: Any, kept: list[tuple[int, Any, str]]) -> None:
        self._env, self._kept = env, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, response: str) -> Any:
        returned = settled(self._env.step(response))
        self._kept.append((len(self._kept) + 1, returned, copy.deepcopy(repr(returned))))
        return returned


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
    env = source.make()
    note(f"exploring seed {seed}")
    observation, _ = settled(env.reset(seed=seed))
    responses = Speech(env).actions
    reached = {as_text(observation)}
    frontier: list[tuple[tuple[str, ...], str]] = [((), response) for response in responses]
    taken = 0
    while frontier:
        path, response = frontier.pop(0)
        env = source.make()
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


def _as_action(env: Any, text: str) -> str:
    """Return a response with a text in the place of the action, whether or not it is one."""
    action = next(iter(getattr(env, "actions", None) or ("answer to be replaced",)))
    return text.join(Speech(env).response_with(action).rsplit(action, 1))


def _resident() -> int:
    """Return the bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def _plain(text: str) -> str:
    """Return a text without the colours that Gymnasium gives its warnings."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


PROBES: dict[str, Probe] = {
    "describe": describe,
    "contract": contract,
    "gymnasium": gymnasium_checker,
    "play": play,
    "reuse": reuse,
    "together": together,
    "starts": starts,
    "policies": policies,
    "solutions": solutions,
    "explore": explore,
    "endings": endings,
    "odd_texts": odd_texts,
    "memory": memory,
}
