"""Programs that have seats of games: one of this file, a function of yours, or a model behind an endpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, Final, Protocol, runtime_checkable

import httpx
import numpy as np

from roll.common.unavailable import UnavailableError
from roll.envs.errors import EnvConfigError
from roll.tools import Toolbox

Program = Callable[[str, np.random.Generator], str]
"""Returns a move, as the game wants it: of what the seat is told since its last move, with luck of the episode."""

_MOVE: Final = re.compile(r"\[[^\[\]]*\]")
_OFFERED: Final = re.compile(r"(?:available|valid|legal|possible)[^:\n]*:(.*)", re.IGNORECASE | re.DOTALL)
_SYSTEM: Final = "Play the game. Answer with your move in square brackets as the game asks for it."
_RANDOM: Final = "random"
_KEYS: Final = ("url", "model", "api_key", "temperature", "max_tokens", "seconds")


@runtime_checkable
class Speaker(Protocol):
    """A program that can be told its part in a conversation apart from what others say in it."""

    def speak(self, instruction: str) -> None:
        """Take part in a conversation, with free speech in place of moves in brackets."""
        ...

    def __call__(self, told: str, luck: np.random.Generator) -> str:
        """Return what it says."""
        ...


def instructed(program: Program, instruction: str, toolbox: Toolbox | None) -> str:
    """Tell a program its part in a conversation, tools included; return what is to stand before what it hears first."""
    told = [instruction, *([] if toolbox is None else [toolbox.description()])]
    if isinstance(program, Speaker):
        program.speak("\n\n".join(told))
        return ""
    return "\n\n".join([*told, ""])


def random_move(told: str, luck: np.random.Generator) -> str:
    """Return one of the moves that the game lists last, or of any that it names; ``[0]`` where it names none."""
    offered = list(_OFFERED.finditer(told))
    moves = _MOVE.findall(offered[-1][1] if offered else told) or _MOVE.findall(told) or ["[0]"]
    return str(moves[int(luck.integers(len(moves)))])


class EndpointProgram:
    """A model that is asked in the form of OpenAI: another one, or a checkpoint of a run that a server holds.

    It is told what the game has said since its last move, after what was said before. Its last words in square brackets
    are the move; an answer without any is given to the game as it is, which refuses it.

    Args:
        url: Where the API begins, such as ``http://127.0.0.1:8000/v1``.
        model: The model's name there.
        api_key: Sent as a bearer token, if any.
        temperature: Of its sampling; the seed of each request is drawn from the episode's luck.
        max_tokens: Tokens of an answer.
        seconds: For an answer.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 512,
        seconds: float = 60.0,
    ) -> None:
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._asked = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._client = httpx.Client(timeout=seconds, headers=headers)
        self._said: list[dict[str, str]] = [{"role": "system", "content": _SYSTEM}]
        self._speaks = False

    def speak(self, instruction: str) -> None:
        """Take part in a conversation, told this first: whole answers are its moves."""
        self._said, self._speaks = [{"role": "system", "content": instruction}], True

    def __call__(self, told: str, luck: np.random.Generator) -> str:
        """Ask for a move.

        Raises:
            UnavailableError: There is no answer in time, or the server says that it has none now.
            RuntimeError: It refuses the request.
        """
        self._said.append({"role": "user", "content": told})
        asked = {**self._asked, "messages": self._said, "seed": int(luck.integers(1 << 31))}
        try:
            answer = self._client.post(self._url, json=asked)
        except httpx.TransportError as error:
            raise UnavailableError(f"the seat of {self._url}: {type(error).__name__}: {error}") from error
        if answer.status_code == 429 or answer.status_code >= 500:
            raise UnavailableError(f"the seat of {self._url} answers {answer.status_code}: {answer.text[:200]}")
        try:
            text = str(answer.raise_for_status().json()["choices"][0]["message"]["content"] or "")
        except (httpx.HTTPStatusError, ValueError, KeyError, IndexError, TypeError) as error:
            raise RuntimeError(f"the seat of {self._url} answers {answer.status_code}: {answer.text[:200]}") from error
        self._said.append({"role": "assistant", "content": text})
        spoken = text.rpartition("</think>")[2]
        moves = [] if self._speaks else _MOVE.findall(spoken)
        return str(moves[-1]) if moves else spoken

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def is_program(given: object) -> bool:
    """Whether what has a seat is a program, or an endpoint: ``random``, ``module:function``, a mapping."""
    return isinstance(given, Mapping) or given == _RANDOM or (isinstance(given, str) and ":" in given)


def program_of(given: str | Mapping[str, Any]) -> Callable[[], Program]:
    """Return what makes the program that has a seat for an episode.

    Args:
        given: ``"random"``, ``"module:function"``, or the options of :class:`EndpointProgram`.

    Raises:
        EnvConfigError: There is no such program.
    """
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(_KEYS))
        if unknown or not {"url", "model"} <= set(given):
            raise EnvConfigError(f"seats: {dict(given)}: an endpoint has url, model, and {', '.join(_KEYS[2:])}")
        return lambda: EndpointProgram(**given)
    if given == _RANDOM:
        return lambda: random_move
    try:
        found = resolve_name(given) if ":" in given else None
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvConfigError(f"seats: {given!r}: {error}") from error
    if not callable(found):
        raise EnvConfigError(f"seats: {given!r}: name random, a module:function, or an endpoint (url, model)")
    return lambda: found
