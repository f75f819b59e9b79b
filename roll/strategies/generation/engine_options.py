"""The ``strategy_config`` of a generation engine, checked against the engine's own arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.common.spelling import nearest
from roll.config.dialects import is_typing_mistake
from roll.config.errors import ConfigError, Problem

DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""What engines call the number formats."""


SET_HERE: Final = "roll sets this argument of the engine itself."


class EngineProblem(Problem):
    """An argument that an engine is not told here: it follows from other keys, or this version has no such argument."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """What an engine can be told.

    Attributes:
        engine: Name of the engine, for people.
        source: Import path of what has the arguments as fields.
        owned: Arguments that follow from the rest of a configuration, and where to set them.
        length_key: The argument that bounds the tokens of a sequence.
        installed: Returns the names of all arguments of the installed engine; raises ``ImportError`` if there is none.
    """

    engine: str
    source: str
    owned: Mapping[str, str]
    length_key: str
    installed: Callable[[], list[str]]

    def check(
        self,
        options: Mapping[str, Any] | None,
        *,
        max_length: int | None = None,
        names: Iterable[str] | None = None,
        path: str = "actor_infer.strategy_args.strategy_config",
    ) -> dict[str, Any]:
        """Return a ``strategy_config`` as a plain mapping, if the engine would take every key.

        Args:
            options: The mapping; ``None`` for all defaults.
            max_length: Tokens that a sequence of the run may have; the engine's bound must not be below.
            names: What the engine takes; ``None`` asks the installed one.
            path: The key path of the mapping, for errors.

        Raises:
            ConfigError: A key is unknown, or is decided by another key of the configuration. All problems at once.
            ImportError: The engine is not installed.
        """
        given = dict(options or {})
        known = set(names if names is not None else self.installed()) if given else set()
        problems: list[Problem] = []
        for key, value in given.items():
            where = f"{path}.{key}"
            if key in self.owned:
                problems.append(EngineProblem(where, SET_HERE, self.owned[key], value))
            elif key not in known:
                message = f"{self.engine}'s engine has no such argument."
                what = Problem if is_typing_mistake(key, known) else EngineProblem
                problems.append(what(where, message, self._nearest(key, known), value))
        longest = given.get(self.length_key)
        if max_length is not None and isinstance(longest, int) and 0 < longest < max_length:
            message = f"the run's sequences have up to {max_length} tokens, which is more."
            fix = "raise it, leave it out, or lower sequence_length."
            problems.append(Problem(f"{path}.{self.length_key}", message, fix, longest))
        if problems:
            raise ConfigError(problems)
        return given

    def _nearest(self, key: str, known: set[str]) -> str:
        close = nearest(key, sorted(known))
        hint = f"did you mean {close!r}? " if close else ""
        return f"{hint}The arguments are the fields of {self.source}."
