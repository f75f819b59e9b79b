"""Multi-turn tasks of the Berkeley Function Calling Leaderboard: its simulated worlds, its questions, its checker."""

from __future__ import annotations

import copy
import inspect
import json
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from roll.envs.base import TextEnv
from roll.envs.errors import EnvConfigError, MissingDependencyError
from roll.tools import Tool, Toolbox, WrongCallError

CATEGORIES: Final = ("multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context")
_CHECKER: Final = "bfcl_eval.eval_checker.multi_turn_eval"
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_INSTRUCTION: Final = "Do what the user asks, with the tools that there are. Answer without a call when you are done."


class BfclEnv(TextEnv):
    """Do what a user asks, request by request, with the functions of simulated worlds: files, cars, trading, travel.

    A response with calls is answered by what the functions return; one without ends the request. After the last request
    the library's own checker compares the worlds, and what functions returned, with those of the right calls: the
    reward is 1 if they agree after every request, else 0. It needs ``pip install --no-deps bfcl-eval``.

    Args:
        category: Which tasks: one of :data:`CATEGORIES`.
        max_steps: The episode is truncated, with a reward of 0, after so many responses.
        formats: The forms of calls that are read.
        format_penalty: Unused: every response is one.
        env_instruction: Replaces what the policy is told beside the functions.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        EnvConfigError: There is no such category.
        MissingDependencyError: The package is not installed.
    """

    toolbox: Toolbox | None = None
    """Of the task that has begun."""

    def __init__(
        self,
        category: str = "multi_turn_base",
        max_steps: int | None = 40,
        formats: tuple[str, ...] = ("hermes",),
        format_penalty: float = 0.0,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(
            action_pattern="",
            worst_reward=0.0,
            format_penalty=format_penalty,
            max_steps=max_steps,
            env_instruction=env_instruction or _INSTRUCTION,
            render_mode=render_mode,
        )
        if category not in CATEGORIES:
            raise EnvConfigError(f"category={category!r}: use one of {', '.join(CATEGORIES)}")
        from roll.config.tool_use import ToolUse

        self._tasks = _tasks(category)
        self._use = ToolUse.model_validate({"formats": list(formats), "max_calls": 10 * (max_steps or 100)})

    def start(self) -> str:
        """Make the worlds of the task that the seed chooses, and ask for the first thing."""
        self.task, self.right = self._tasks[int(self.np_random.integers(len(self._tasks)))]
        self.worlds = _worlds(self.task)
        self.toolbox = Toolbox([tool for name in self.worlds for tool in self._tools(name)], self._use)
        self._called: list[list[list[str]]] = [[]]
        return self._request()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer calls, or go on to the next request; see :meth:`TextEnv.step`."""
        self._understood(action)
        assert self.toolbox is not None  # made by start
        self._steps += 1
        calls = self.toolbox.find(action)
        messages: list[dict[str, str]] | None = None
        metrics = {"tool_calls": 0.0, "tool_calls_wrong": 0.0}
        over, reward = False, 0.0
        if calls:
            self._called[-1].append([])
            answers = self.toolbox.answer(calls)
            messages = [{"role": "tool", "content": result} for result in answers.results]
            metrics |= {name: answers.metrics.get(name, 0.0) for name in metrics}
            self._observation = "\n".join(answers.results)
        elif len(self._called) < len(self.task["question"]):
            self._called.append([])
            self._observation = self._request()
        else:
            over, reward, self._observation = True, self._verdict(), "The user is gone."
        truncated = not over and self.max_steps is not None and self._steps >= self.max_steps
        self._running = not (over or truncated)
        info: dict[str, Any] = {
            "action": ", ".join(call.name for call in calls) or "answer",
            "reward_parts": {"checker": reward},
            "metrics": {"success": reward, "action_is_valid": 1.0, **metrics},
            "metrics_agg": {**self.STANDARD_METRICS, **dict.fromkeys(metrics, "sum")},
            **({} if messages is None else {"messages": messages}),
        }
        return self._observation, reward, over, truncated, info

    def _request(self) -> str:
        return "\n".join(str(message["content"]) for message in self.task["question"][len(self._called) - 1])

    def _tools(self, name: str) -> list[Tool]:
        """Return the functions of a world as tools."""
        world = self.worlds[name]
        left_out = set(self.task.get("excluded_function", ()))
        return [
            Tool(
                about["name"],
                about["description"],
                _schema(about["parameters"]),
                self._function(about["name"], getattr(world, about["name"])),
                lane=world,
            )
            for about in _functions(name)
            if about["name"] not in left_out
        ]

    def _function(self, name: str, method: Callable[..., Any]) -> Callable[[Mapping[str, Any]], str]:
        def run(arguments: Mapping[str, Any]) -> str:
            try:
                inspect.signature(method).bind(**arguments)
            except TypeError as error:
                raise WrongCallError(str(error)) from error
            written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            self._called[-1][-1].append(f"{name}({written})")
            try:
                result = method(**arguments)
            except Exception as error:  # as the checker has it
                return f"Error during execution: {error}"
            return result if isinstance(result, str) else json.dumps(result, default=str)

        return run

    def _verdict(self) -> float:
        """Let the library compare what was called with the right calls."""
        checker = _module(f"{_CHECKER}.multi_turn_checker")
        # It keeps worlds under names that begin so in a module of its own: others must not find them.
        name = f"roll{uuid.uuid4().hex}"
        try:
            found = checker.multi_turn_checker(self._called, self.right, self.task, "", name)
        finally:
            kept = vars(_module(f"{_CHECKER}.multi_turn_utils"))
            for key in [key for key in kept if key.startswith(name)]:
                del kept[key]
        return float(bool(found["valid"]))


def _worlds(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the simulated worlds of a task, by the names of their classes, as it begins."""
    settings = _module("bfcl_eval.constants.executable_backend_config")
    worlds = {}
    for name in task["involved_classes"]:
        world = getattr(_module(settings.CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in settings.STATELESS_CLASSES:
            given = copy.deepcopy(task["initial_config"].get(name, {}))
            world._load_scenario(given, long_context="long_context" in task["id"])
        worlds[name] = world
    return worlds


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON schema of what the library writes with types of Python."""

    def proper(value: Any) -> Any:
        if isinstance(value, Mapping):
            named = {key: proper(each) for key, each in value.items()}
            kind = named.get("type")
            return {**named, "type": _TYPES.get(kind, kind)} if isinstance(kind, str) else named
        return [proper(each) for each in value] if isinstance(value, list) else value

    found: dict[str, Any] = proper(parameters)
    return found


@lru_cache(maxsize=8)
def _tasks(category: str) -> list[tuple[dict[str, Any], list[list[str]]]]:
    """Return the tasks of a category, each with the right calls of every request."""
    rows, right = _lines(f"BFCL_v4_{category}.json"), _lines(f"possible_answer/BFCL_v4_{category}.json")
    calls = {each["id"]: each["ground_truth"] for each in right}
    return [(row, calls[row["id"]]) for row in rows]


@lru_cache(maxsize=32)
def _functions(name: str) -> list[dict[str, Any]]:
    files = _module("bfcl_eval.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    return _lines(f"multi_turn_func_doc/{files[name]}")


def _lines(name: str) -> list[dict[str, Any]]:
    folder = Path(str(_module("bfcl_eval").__file__)).parent / "data"
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines() if line.strip()]


def _module(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        advice = "pip install --no-deps bfcl-eval"
        raise MissingDependencyError(f"it needs the package bfcl-eval ({error}). Try: {advice}") from error
