"""What an environment is, what it returns, and what it makes of steps and texts that it does not expect."""

from __future__ import annotations

import copy
import re
import sys
import warnings
from inspect import iscoroutinefunction
from random import Random
from typing import Any

from roll.certificates.conditions import set_shared_generators
from roll.certificates.episodes import Note, Player, excerpt, made, settled
from roll.certificates.policies import ODD_TEXTS, Speech
from roll.certificates.target import Source, TargetError
from roll.env_managers.session import EnvSession
from roll.envs.agent import MANAGER as AGENT_MANAGER


def describe(note: Note, source: Source) -> dict[str, Any]:
    """Say what the environment is, and which modules were imported to make and reset it.

    Raises:
        TargetError: Its episodes are no steps.
    """
    before = set(sys.modules)
    note("making it")
    env = source.make()
    if getattr(env, "env_manager_cls", None) == AGENT_MANAGER:
        raise TargetError(
            "its episodes are played by a program, and nothing here can play them in its place. `roll eval` plays "
            "some of them with a policy, as training does."
        )
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


def contract(note: Note, source: Source, longest: int) -> dict[str, Any]:
    """Play as training does, which checks whatever is returned; and see whether any of it changes later."""
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


def gymnasium_checker(note: Note, source: Source) -> dict[str, Any]:
    """Let Gymnasium check it."""
    from gymnasium.utils.env_checker import check_env

    env = source.make()
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


def endings(note: Note, source: Source, seeds: int, longest: int) -> dict[str, Any]:
    """Step once more after the end."""
    after = []
    for seed in range(seeds):
        set_shared_generators(1)
        with made(source.make) as env:
            episode = Player(source.make, seed, longest=longest, note=note, env=env).play()
            if episode.ended not in ("terminated", "truncated"):
                continue
            response = Speech(env).guess(Random(seed), "")
            note(f"step() after the end of seed {seed}")
            try:
                returned = settled(env.step(response))
                after.append({"seed": seed, "raised": "", "reward": float(returned[1])})
            except Exception as error:
                after.append({"seed": seed, "raised": type(error).__name__, "reward": 0.0})
    return {"after": after}


def odd_texts(note: Note, source: Source) -> dict[str, Any]:
    """Answer with texts that nobody expects."""
    problems = []
    for name, text in ODD_TEXTS.items():
        for doing in (name, f"{name} as an action"):
            with made(source.make) as env:
                note(f"reset() before a response with {name}")
                settled(env.reset(seed=0))
                response = text if doing == name else _as_action(env, text)
                shown = excerpt(response, 40)
                note(f"step() with {doing} ({shown!r})")
                try:
                    settled(env.step(response))
                except Exception as error:
                    problems.append(f"{doing} ({shown!r}): {type(error).__name__}: {excerpt(str(error))}")
                    break
    return {"problems": problems}


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


def _as_action(env: Any, text: str) -> str:
    """Return a response with a text in the place of the action, whether or not it is one."""
    action = next(iter(getattr(env, "actions", None) or ("answer to be replaced",)))
    return text.join(Speech(env).response_with(action).rsplit(action, 1))


def _plain(text: str) -> str:
    """Return a text without the colours that Gymnasium gives its warnings."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
