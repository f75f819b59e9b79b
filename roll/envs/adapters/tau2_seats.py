"""Customer service of tau2-bench with a seat for the agent and one for the user, each with a model or a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from roll.envs.adapters.tau2_conversation import GREETING, Conversation, tasks_of
from roll.envs.adapters.tau2_tasks import check_domain, instruction_of, said_of
from roll.envs.adapters.tau2_users import ScriptedUser, role_of
from roll.envs.adapters.tau2_worlds import Party, stop_tokens
from roll.envs.seat_programs import Program
from roll.envs.seated import POLICY, Player, SeatedEnv
from roll.tools import Toolbox

_SPEAKERS: Final[tuple[Party, Party]] = ("assistant", "user")
_EMPTY: Final = "Your message was empty."


class Tau2Game:
    """A conversation of an agent and a user; see :class:`roll.envs.seats.Conversation`.

    A move with calls is answered by tools, and the seat is to move again; any other is heard by the other seat.

    Args:
        domain: A domain of tau2-bench.
        tasks: Those that may be played, as the package has them.
        formats: The forms of calls that are read.
        max_calls: Most calls of each seat.
    """

    seats = ("agent", "user")

    def __init__(self, domain: str, tasks: Sequence[Any], formats: Sequence[str], max_calls: int) -> None:
        self._domain, self._formats, self._max_calls = domain, tuple(formats), max_calls
        self._tasks = tasks
        self._instruction = instruction_of(domain, POLICY)
        self._start(0)

    def begin(self, luck: np.random.Generator) -> None:
        """Take the task that ``luck`` chooses; the agent has greeted the user, who is to answer."""
        self._start(int(luck.integers(len(self._tasks))))

    @property
    def turn(self) -> int | None:
        """The seat that is to move; ``None`` when the user ended the conversation."""
        return None if self.conversation.over else self._turn

    def told(self, seat: int) -> str:
        """Return what the other said, or what the tools returned."""
        return "\n".join(message["content"] for message in self._messages[seat])

    def move(self, seat: int, action: str) -> bool:
        """Make calls, or speak; return whether there was anything."""
        speaker, said = _SPEAKERS[seat], said_of(action)
        calls = self.conversation.calls_of(speaker, said)
        if calls:
            results = self.conversation.answer(speaker, calls).results
            self._messages[seat] = [{"role": "tool", "content": result} for result in results]
        elif not said and speaker == "assistant":
            self._messages[seat] = [{"role": "user", "content": _EMPTY}]
            return False
        else:
            self._turn = 1 - seat
            self.conversation.say(speaker, said or stop_tokens()[2])
            self._messages[self._turn] = [{"role": "user", "content": said}]
            if self.conversation.over:
                self._earned = self.conversation.grade().reward
        return bool(said)

    def earned(self, seat: int) -> float:
        """Return what both earn: 1 where the graders are content."""
        return self._earned

    def ending(self, seat: int) -> str:
        """Return that it is over."""
        return "The conversation is over."

    def instruction(self, seat: int) -> str:
        """Return the agent's policy, or the user's guidelines and task."""
        return role_of(self.conversation) if seat else self._instruction

    def toolbox(self, seat: int) -> Toolbox | None:
        """Return the agent's tools, or those that a user has."""
        return self.conversation.user_toolbox if seat else self.conversation.toolbox

    def messages(self, seat: int) -> list[dict[str, str]]:
        """Return what the other said, or what the tools returned."""
        return self._messages[seat]

    def _start(self, number: int) -> None:
        self.conversation = Conversation(self._domain, self._tasks[number], self._formats, self._max_calls)
        self._turn, self._earned = 1, 0.0
        self._messages: list[list[dict[str, str]]] = [[], [{"role": "user", "content": GREETING}]]


class Tau2DuoEnv(SeatedEnv):
    """Serve a customer as a policy demands, where the customer may be a policy too.

    It is ``tau2`` with two seats, ``agent`` and ``user``, which earn the same: 1 where the graders of tau2-bench are
    content, else 0. The agent speaks first, in words that are not its own; the user is told the package's guidelines
    for users and the task, and has tools in telecom. Where there is no run, the user reads out the task.

    Args:
        domain: ``airline``, ``retail``, ``telecom``, or the small ``mock``.
        tasks: A split of the package, ``train``, ``test``, ``base`` (both); ``None`` for all tasks.
        refusals: Whether tasks are played in which the world has to stay as it is.
        seats: Who is the agent, and who the user; see :class:`roll.envs.seated.SeatedEnv`.
        max_steps: The episode is truncated, with a reward of 0, after so many responses of a seat.
        formats: The forms of calls that are read.
        format_penalty: Added to the reward of an empty response.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        EnvConfigError: There is no such domain, split or player.
        MissingDependencyError: The package is not installed.
    """

    def __init__(
        self,
        domain: str = "airline",
        tasks: str | None = "train",
        refusals: bool = True,
        seats: Sequence[Player] = (POLICY, POLICY),
        max_steps: int | None = 60,
        formats: tuple[str, ...] = ("hermes",),
        format_penalty: float = 0.0,
        render_mode: str | None = "ansi",
    ) -> None:
        check_domain(domain)
        game = Tau2Game(domain, tasks_of(domain, tasks, refusals=refusals), formats, 10 * (max_steps or 100))
        options: dict[str, Any] = {"format_penalty": format_penalty, "render_mode": render_mode}
        super().__init__(game, seats, False, action_pattern="", worst_reward=0.0, max_steps=max_steps, **options)
        self._conversations = game

    @property
    def instruction(self) -> str:
        """What the first seat of the policy is told; in a run each seat is told its own."""
        return self._conversations.instruction(self.seat)

    @property
    def toolbox(self) -> Toolbox | None:
        """The tools of that seat."""
        return self._conversations.toolbox(self.seat)

    def stand_in(self, seat: int) -> Callable[[], Program]:
        """Return a user who reads out the task, or an agent who cannot do anything."""
        return partial(_ReadsOut, self._conversations) if seat else lambda: lambda told, luck: "I cannot do that."


class _ReadsOut:
    """A scripted user of the task that a game has when it begins."""

    def __init__(self, game: Tau2Game) -> None:
        self._game = game

    def speak(self, instruction: str) -> None:
        self._user = ScriptedUser(self._game.conversation)

    def __call__(self, told: str, luck: np.random.Generator) -> str:
        return self._user(told, luck)
