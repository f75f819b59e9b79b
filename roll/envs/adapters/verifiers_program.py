"""Plays tasks of a `verifiers` taskset, in the process of an environment that has that package.

A program by itself, which needs nothing of roll: :class:`roll.envs.adapters.verifiers_process.TasksetProcess` starts it
with what is to be played in its first argument, as JSON, and asks for episodes on its input, a JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from importlib import import_module, util
from pathlib import Path
from statistics import fmean
from typing import Any

CHAT_HARNESS = "roll_chat"
"""The id of the harness of seats that name none."""
KEY_VARIABLE = "ROLL_EPISODE_API_KEY_{}"
"""Where verifiers finds the key of an episode; what has API_KEY in its name is not passed on to programs."""


class EpisodeError(Exception):
    """An episode that came to nothing that can be learned from."""


class Stage:
    """A taskset with its environment, ready to be played.

    Args:
        told: ``env``, verifiers' block of that name with the taskset in it; ``select``, its block of that name;
            ``untrained``, the name of the model for seats that are not trained; ``max_turns`` of a seat that has no
            limit of its own.

    Raises:
        Exception: What verifiers says where there is no such taskset, or an option of it is wrong.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._api = import_module("verifiers.v1")
        self._loaders = import_module("verifiers.v1.utils.loaders")
        _provide_chat_harness()
        self._untrained: str = told["untrained"]
        taskset, environment = told["env"]["taskset"]["id"], told["env"].get("id", "")
        if environment:
            self._loaders.environment_class(taskset, environment)
        block = {"interception": {"type": "server"}, **told["env"]}
        block |= self._seats(taskset, environment, block, told["max_turns"])
        self._config = self._loaders.resolve_env_config(block)
        self._seat_names = [name for name, value in self._config if isinstance(value, self._api.AgentConfig)]
        self._shared: Mapping[str, Any] = {}
        env = self._loaders.load_environment(self._config)
        select = import_module("verifiers.v1.configs.select").SelectConfig(**told["select"])
        chosen = env.taskset.select(select)
        if not chosen.bounded:
            raise ValueError(f"taskset {taskset!r} never ends: say with select.limit how many of its tasks are played")
        self.tasks = list(chosen)
        if not self.tasks:
            raise ValueError(f"taskset {taskset!r} has no tasks, or select leaves none of them")

    def _seats(self, taskset: str, environment: str, block: Mapping[str, Any], most: int | None) -> dict[str, Any]:
        """Return the seats of the block: on this machine, and without a program that runs commands, unless they say."""
        seats = {}
        plain = self._loaders.default_harness_id(taskset) == "bash"
        fields = self._loaders.env_config_type(taskset, environment).model_fields
        for name, default in ((name, field.default) for name, field in fields.items()):
            if not isinstance(default, self._api.AgentConfig):
                continue
            seat = dict(block.get(name) or {})
            if "runtime" not in default.model_fields_set:
                seat.setdefault("runtime", {"type": "subprocess"})
            if default.harness is None and plain:
                seat.setdefault("harness", {"id": CHAT_HARNESS})
            if default.max_turns is None and most is not None:
                seat.setdefault("max_turns", most)
            seats[name] = seat
        return seats

    async def open(self, stack: AsyncExitStack) -> None:
        """Start the tools that all episodes share; they end with the stack."""
        env = self._loaders.load_environment(self._config)
        self._shared = await stack.enter_async_context(env.shared_tools())

    async def play(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Play an episode.

        Args:
            asked: ``id``, ``index`` of the task, and where the policy answers: ``base_url``, ``api_key``, ``model``.

        Returns:
            ``reward``, ``metrics`` and ``answer``.

        Raises:
            EpisodeError: It failed, or nothing of it was scored.
        """
        variable = KEY_VARIABLE.format(asked["id"])
        os.environ[variable] = asked["api_key"]
        try:
            client = import_module("verifiers.v1.configs.client").EvalClientConfig(
                base_url=asked["base_url"], api_key_var=variable
            )
            context = import_module("verifiers.v1.clients").ModelContext(model=asked["model"], client=client)
            # Each episode has an environment of its own, whose connections end with it.
            env = self._loaders.load_environment(self._config)
            env.shared_tools = lambda: nullcontext(self._shared)
            env.setup = self._setting_up(env.setup, client)
            async with env.serving():
                episode = await env.run_episode(self.tasks[asked["index"]], context)
                if not env.complete(episode):
                    raise EpisodeError("; ".join(_failures(episode)) or "verifiers counts the episode as not complete")
        finally:
            del os.environ[variable]
        return _result(episode)

    def _setting_up(self, setup: Callable[[Any], Any], client: Any) -> Callable[[Any], Any]:
        """Return ``setup`` with what follows from it: seats that it does not train are answered apart."""

        async def set_up(agents: Any) -> None:
            await setup(agents)
            for agent in (getattr(agents, name) for name in self._seat_names):
                if not agent.trainable and agent.ctx.client is client:
                    agent.ctx = replace(agent.ctx, model=self._untrained)

        return set_up


def _provide_chat_harness() -> None:
    """Let verifiers find our harness by its id, as it finds those of packages."""
    found = util.spec_from_file_location(CHAT_HARNESS, Path(__file__).with_name("verifiers_chat.py"))
    assert found is not None and found.loader is not None
    sys.modules[CHAT_HARNESS] = module = util.module_from_spec(found)
    found.loader.exec_module(module)


def _failures(episode: Any) -> Iterator[str]:
    """Yield what went wrong in an episode."""
    for error in episode.errors:
        yield f"{error.type}: {error.message}"
    for trace in episode.traces:
        for error in () if trace.ok else trace.errors:
            yield f"{trace.agent.name}: {error.type}: {error.message}"
        if trace.is_timeout:
            yield f"{trace.agent.name}: {trace.stop_condition}"


def _result(episode: Any) -> dict[str, Any]:
    """Return what the trained seats of an episode came to, each number as their mean.

    Raises:
        EpisodeError: No seat is trained, or one of them was not scored.
    """
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    if not trained:
        raise EpisodeError("the environment trains none of its seats")
    for trace in trained:
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing or not trace.rewards:
            raise EpisodeError(f"{trace.agent.name}: not scored: {', '.join(missing) or 'its task has no reward'}")
    numbers: dict[str, list[float]] = {}
    for trace in trained:
        scores = {name: reward.score for name, reward in trace.rewards.items()}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        told = {**metrics, **scores, "turns": float(trace.num_turns), "truncated": float(trace.is_truncated)}
        for name, value in told.items():
            numbers.setdefault(name, []).append(value)
    return {
        "reward": fmean(trace.reward for trace in trained),
        "metrics": {name: fmean(values) for name, values in numbers.items()},
        "answer": trained[0].last_reply,
    }


class Service:
    """Plays what its input asks for, any number of episodes at the same time.

    Args:
        stage: What is played.
        say: Writes an answer.
    """

    def __init__(self, stage: Stage, say: Callable[[Mapping[str, Any]], None]) -> None:
        self._stage = stage
        self._say = say
        self._playing: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until the input ends, which it does with the run."""
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)

        threading.Thread(target=read, daemon=True).start()
        async with AsyncExitStack() as stack:
            await self._stage.open(stack)
            while (line := await lines.get()) is not None:
                self._take(json.loads(line))
            for task in self._playing.values():
                task.cancel()
            await asyncio.gather(*self._playing.values(), return_exceptions=True)

    def _take(self, asked: Mapping[str, Any]) -> None:
        if "cancel" in asked:
            if asked["cancel"] in self._playing:
                self._playing[asked["cancel"]].cancel()
            return
        number = asked["id"]
        self._playing[number] = asyncio.create_task(self._answer(asked))
        self._playing[number].add_done_callback(lambda _: self._playing.pop(number))

    async def _answer(self, asked: Mapping[str, Any]) -> None:
        try:
            answer = await self._stage.play(asked)
        except asyncio.CancelledError:
            answer = {"error": "it was stopped"}
        except Exception as error:
            answer = {"error": str(error) if isinstance(error, EpisodeError) else f"{type(error).__name__}: {error}"}
        self._say({"id": asked["id"], **answer})


def main() -> int:
    """Load the taskset, say how many tasks it has, and serve."""
    # What tasksets print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    told = json.loads(sys.argv[1])
    sys.path[:0] = told["paths"]
    # Tools of a taskset are processes of their own, which import it too.
    os.environ["PYTHONPATH"] = os.pathsep.join([*told["paths"], *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    try:
        stage = Stage(told)
    except (Exception, SystemExit) as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return 1
    say({"tasks": len(stage.tasks)})
    asyncio.run(Service(stage, say).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
