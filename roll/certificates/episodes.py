"""Plays episodes with a scripted policy and writes down what a comparison needs. Runs beside the environment."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from inspect import isawaitable
from random import Random
from typing import Any

from roll.certificates.policies import Policy, Speech

EXCERPT = 160
"""Characters of an observation that are kept."""

Note = Callable[[str], None]
"""Says what is about to be called, so that whoever waits knows what hangs."""

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
"""Where an object lies in memory: never the same again."""

_loops = threading.local()


@dataclass(slots=True)
class Step:
    """What a step returned.

    Attributes:
        digest: Of the observation.
        excerpt: The beginning of the observation.
        size: Characters of the observation.
        reward: As it was returned, even if it is no number.
        terminated: Whether the episode ended.
        truncated: Whether the episode was cut off.
        action: The action that the environment understood.
        response: The beginning of what it was told.
    """

    digest: str
    excerpt: str
    size: int
    reward: float
    terminated: bool
    truncated: bool
    action: str | None
    response: str

    def same_as(self, other: Step) -> bool:
        """Whether two episodes cannot be told apart here."""
        rewards = self.reward == other.reward or (math.isnan(self.reward) and math.isnan(other.reward))
        return rewards and (self.digest, self.terminated, self.truncated, self.action) == (
            other.digest,
            other.terminated,
            other.truncated,
            other.action,
        )


@dataclass(slots=True)
class Episode:
    """One episode.

    Attributes:
        seed: Given to ``reset``.
        first: Digest and beginning of the first observation.
        size: Characters of the first observation.
        steps: What followed.
        success: As its last step said; ``None`` where the environment says nothing of it.
        valid: Steps in which an action was understood; ``None`` where the environment does not say.
        ended: ``terminated``, ``truncated``, ``cut`` (it would go on), or ``failed``.
        error: What failed.
    """

    seed: int
    first: tuple[str, str] = ("", "")
    size: int = 0
    steps: list[Step] = field(default_factory=list)
    success: float | None = None
    valid: int | None = None
    ended: str = "cut"
    error: str = ""

    @property
    def score(self) -> float:
        """Sum of the rewards."""
        return sum(step.reward for step in self.steps)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Episode:
        """Return an episode from what ``dataclasses.asdict`` made of it."""
        steps = [Step(**step) for step in record["steps"]]
        return cls(**{**record, "first": tuple(record["first"]), "steps": steps})


def settled(value: Any) -> Any:
    """Return what a call returned, awaited in this thread where it is to be awaited."""
    if not isawaitable(value):
        return value
    loop = getattr(_loops, "loop", None)
    if loop is None:
        loop = _loops.loop = asyncio.new_event_loop()

    async def wait() -> Any:
        return await value

    return loop.run_until_complete(wait())


def let_go(env: Any) -> None:
    """Close an environment; what goes wrong there, the probe that plays as training does tells."""
    with suppress(Exception):
        settled(env.close())


@contextmanager
def made(make: Callable[[], Any]) -> Iterator[Any]:
    """Yield a new environment, and close it afterwards: a server, say, has room for so many at a time."""
    env = make()
    try:
        yield env
    finally:
        let_go(env)


class Player:
    """An episode that is played step by step."""

    def __init__(
        self,
        make: Callable[[], Any],
        seed: int,
        *,
        policy: str = "random",
        member: int = 0,
        longest: int,
        note: Note,
        env: Any = None,
    ) -> None:
        """Play nothing yet.

        Args:
            make: Returns a new environment.
            seed: Of the episode.
            policy: Name of a scripted policy.
            member: Tells the members of a group apart: each draws other actions.
            longest: Steps after which the episode is given up.
            note: Told before each call.
            env: An environment that is used again, instead of a new one, and stays open.
        """
        self.episode = Episode(seed)
        self._make, self._policy_name, self._longest, self._note = make, policy, longest, note
        self._random = Random(f"{seed} {member}")
        self._env = env
        self._stays = env is not None
        self._observation = ""
        self._policy: Policy

    def play(self) -> Episode:
        """Play to the end."""
        for _ in self.steps():
            pass
        return self.episode

    def steps(self) -> Iterator[None]:
        """Play, with a pause before each step; whatever the environment raises ends the episode."""
        doing = "making it"
        try:
            if self._env is None:
                self._note(doing)
                self._env = self._make()
            doing = f"reset(seed={self.episode.seed})"
            self._note(doing)
            observation, _ = settled(self._env.reset(seed=self.episode.seed))
            self._begun(observation)
            while self.episode.ended == "cut" and len(self.episode.steps) < self._longest:
                yield
                response = self._policy(self._random, self._observation)
                doing = f"step({excerpt(response)!r}) number {len(self.episode.steps) + 1} of seed {self.episode.seed}"
                self._note(doing)
                self._taken(settled(self._env.step(response)), response)
        except (Exception, SystemExit) as error:
            self.episode.ended = "failed"
            self.episode.error = f"{doing} raised {type(error).__name__}: {excerpt(str(error))}"
        finally:
            if self._env is not None and not self._stays:
                let_go(self._env)

    def _begun(self, observation: Any) -> None:
        text = as_text(observation)
        self.episode.first, self.episode.size = (digest(text), excerpt(text)), len(text)
        speech = Speech(self._env, str(getattr(self._env, "instruction", "")))
        self._policy = dict(speech.policies())[self._policy_name]
        self._observation = text

    def _taken(self, returned: Any, response: str) -> None:
        observation, reward, terminated, truncated, info = returned
        text, action = as_text(observation), info.get("action")
        self._observation = text
        step = Step(
            digest(text),
            excerpt(text),
            len(text),
            float(reward),
            bool(terminated),
            bool(truncated),
            None if action is None else excerpt(str(action)),
            excerpt(response),
        )
        episode = self.episode
        episode.steps.append(step)
        metrics = info.get("metrics") or {}
        if "success" in metrics:
            episode.success = float(metrics["success"])
        if "action" in info or "action_is_valid" in metrics:
            valid = metrics["action_is_valid"] if "action_is_valid" in metrics else action is not None
            episode.valid = (episode.valid or 0) + int(bool(valid))
        episode.ended = "terminated" if step.terminated else "truncated" if step.truncated else "cut"


def as_text(observation: Any) -> str:
    """Return an observation as text, also one that should have been."""
    return observation if isinstance(observation, str) else repr(observation)


def digest(text: str) -> str:
    """Return a fingerprint of a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def excerpt(text: str, longest: int = EXCERPT) -> str:
    """Return the beginning of a text, as something that every file can hold."""
    shown = _ADDRESS.sub("0x…", text if len(text) <= longest else text[: longest - 1] + "…")
    return shown.encode(errors="backslashreplace").decode()
