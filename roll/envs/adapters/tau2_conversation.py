"""A conversation in a world of tau2-bench: what is said and called in it, and what its graders find."""

from __future__ import annotations

import inspect
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from roll.config.tool_use import ToolUse
from roll.envs.adapters.tau2_worlds import Party, described, module, stop_tokens, world_of
from roll.envs.errors import EnvConfigError
from roll.tools import Tool, Toolbox, WrongCallError
from roll.tools.calls import ToolCall
from roll.tools.toolbox import Answers

GREETING: Final = "Hi! How can I help you today?"
"""What the agent has said when a conversation begins, as in tau2-bench."""

_LONGEST_RESULT: Final = 100_000
"""Characters: tau2-bench cuts nothing, and a run limits what a policy reads."""


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
        domain: A domain of tau2-bench.
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
        self._world = world_of(domain, solo)
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

    def calls_of(self, speaker: Party, text: str) -> list[ToolCall]:
        """Return the calls in what somebody writes."""
        toolbox = self.toolbox if speaker == "assistant" else self.user_toolbox
        return [] if toolbox is None else toolbox.find(text)

    def answer(self, speaker: Party, calls: Sequence[ToolCall]) -> Answers:
        """Make calls of somebody, which the other does not hear of."""
        toolbox = self.toolbox if speaker == "assistant" else self.user_toolbox
        assert toolbox is not None  # there are calls
        self._made = []
        answers = toolbox.answer(calls)
        if self._made:
            self.messages.append(self._message(speaker, tool_calls=[call for call, _ in self._made]))
            self.messages += [result for _, result in self._made]
        return answers

    def say(self, speaker: Party, text: str) -> None:
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
            return world_of(self.domain, solo_mode)

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

    def _message(self, speaker: Party, **given: Any) -> Any:
        kind = self._told.AssistantMessage if speaker == "assistant" else self._told.UserMessage
        return kind(role=speaker, **given)

    def _tools(self, whose: Party, caller: Party) -> list[Tool]:
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
            for about in described(self.domain, whose)
        ]

    def _function(self, name: str, kit: Any, caller: Party) -> Callable[[Mapping[str, Any]], str]:
        def run(arguments: Mapping[str, Any]) -> str:
            try:
                inspect.signature(getattr(kit, name)).bind(**arguments)
            except TypeError as error:
                raise WrongCallError(str(error)) from error
            try:
                json.dumps(dict(arguments), allow_nan=False, ensure_ascii=False).encode()
            except ValueError as error:
                # The graders play a call again, and what is not a number is never the same.
                raise WrongCallError(f"the arguments have what JSON has not: {error}") from error
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
def tasks_of(domain: str, split: str | None, solo: bool = False, refusals: bool = True) -> tuple[Any, ...]:
    """Return the tasks of a split, or all, that can be played from their beginning to a verdict.

    Those of ``mock`` that begin in the middle of a conversation are left out, and those whose assertions raise where
    nothing was done. ``solo``: those with a ticket, and nothing that a user must be told. ``refusals``: also those in
    which the world has to stay as it is.

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
    return tuple(task for task in found if refusals or not _changes_nothing(domain, task, solo))


def _changes_nothing(domain: str, task: Any, solo: bool) -> bool:
    """Whether who calls nothing leaves the world as it should be."""
    conversation = Conversation(domain, task, ("hermes",), 1, solo)
    conversation.say("assistant" if solo else "user", stop_tokens()[0])
    return all(part == 1.0 for kind, part in conversation.grade().parts.items() if kind != "communicate")
