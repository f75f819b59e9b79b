"""Names of estimators and losses, what each needs and reads, and the decorators with which users add their own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = Literal["advantage", "loss"]
Level = Literal["outcome", "turn", "token"]


class UnknownAlgorithmError(ValueError):
    """No algorithm is registered under the name; the message lists the known ones and the nearest."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[Function]):
    """One registered algorithm.

    Attributes:
        name: The name the configuration uses.
        function: What was decorated.
        needs: Inputs without which it cannot run (``scores``, ``group_ids``, ``values``, ``baselines``, ...).
        level: For estimators, what the function returns: ``outcome`` ``[batch]``, ``turn`` or ``token``
            ``[batch, sequence]``. Losses are ``token``.
        options: Options it reads, with their defaults (``inspect.Parameter.empty`` where one must be given).
        uses: Inputs that it takes where they are there.
        whole_step: For losses, those of ``uses`` that are computed from a whole optimiser step, and how.
    """

    name: str
    function: Function
    needs: frozenset[str]
    level: Level
    options: Mapping[str, Any] = field(default_factory=dict)
    uses: frozenset[str] = frozenset()
    whole_step: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def compares_turns(self) -> bool:
        """Whether an estimator has a baseline per turn, so that it reads what turns earned and no normalised scores."""
        return self.level == "turn" and "group_ids" in self.needs and "scores" not in self.needs

    def required_options(self) -> list[str]:
        """Return the options that have no default."""
        return [name for name, default in self.options.items() if default is inspect.Parameter.empty]

    def check_options(self, given: Iterable[str]) -> None:
        """Raise ``ValueError`` for an option that the algorithm does not read, or a required one that is missing."""
        given = set(given)
        unknown = sorted(given - set(self.options))
        if unknown:
            known = ", ".join(self.options) or "none"
            raise ValueError(f"{self.name} does not read {', '.join(unknown)}; its options: {known}.")
        missing = sorted(set(self.required_options()) - given)
        if missing:
            raise ValueError(f"{self.name} needs the options {', '.join(missing)}.")


class Registry(Generic[Function]):
    """Algorithms of one kind by name."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[Function]] = {}

    def add(self, entry: Entry[Function]) -> None:
        """Register ``entry``; the same function may be registered again, another one under its name may not.

        Raises:
            ValueError: The name is taken by another function.
        """
        present = self._entries.get(entry.name)
        if present is not None and not _same_origin(present.function, entry.function):
            raise ValueError(
                f"{self.kind} {entry.name!r} is already registered by {_origin(present.function)}: choose another name."
            )
        self._entries[entry.name] = entry

    def remove(self, name: str) -> None:
        """Forget ``name`` (for tests and notebooks)."""
        self.get(name)
        del self._entries[name]

    def added(self) -> tuple[Entry[Function], ...]:
        """Return what was registered from outside this package."""
        return tuple(entry for entry in self._entries.values() if not entry.function.__module__.startswith("roll."))

    def get(self, name: str) -> Entry[Function]:
        """Return the entry called ``name``.

        Raises:
            UnknownAlgorithmError: There is none.
        """
        if name in self._entries:
            return self._entries[name]
        close = difflib.get_close_matches(str(name), self._entries, n=1, cutoff=0.4)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownAlgorithmError(
            f"unknown {self.kind} {name!r}.{hint} Known: {', '.join(self.names())}. "
            f"To add your own, decorate it with @register_{self.kind}({name!r}) and name its module in "
            "algorithm_modules."
        )

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


ADVANTAGES: Registry[Callable[..., Any]] = Registry("advantage")
LOSSES: Registry[Callable[..., Any]] = Registry("loss")


def register_advantage(
    name: str, *, needs: Iterable[str] = (), level: Level = "outcome"
) -> Callable[[Function], Function]:
    """Register an advantage estimator under ``name``.

    The function takes an :class:`~roll.algorithms.advantages.AdvantageInputs` first; its other parameters are its
    options. It returns ``[batch]`` for ``level="outcome"``, ``[batch, sequence]`` or ``(advantages, returns)`` else::

        @register_advantage("centred", needs=("scores",))
        def centred(inputs, *, strength=1.0):
            return strength * (inputs.scores - inputs.scores.mean())

    Args:
        name: The name for ``adv_estimator``.
        needs: Fields of the inputs that must not be ``None``.
        level: What it returns.
    """

    def decorate(function: Function) -> Function:
        options = _options(function, skip=1)
        ADVANTAGES.add(Entry(name, function, frozenset(needs), level, options))
        return function

    return decorate


def register_loss(
    name: str,
    *,
    needs: Iterable[str] = (),
    uses: Iterable[str] = (),
    whole_step: Mapping[str, Callable[..., Any]] | None = None,
) -> Callable[[Function], Function]:
    """Register a policy loss under ``name``.

    The function takes ``(log_probs, old_log_probs, advantages, mask)`` first, each ``[batch, sequence]``, and returns
    ``(loss [batch, sequence], metrics)``, not aggregated. Parameters named in ``needs`` are further tensors of the
    batch (``turn_ids``, ``expert``); the others are its options::

        @register_loss("squared")
        def squared(log_probs, old_log_probs, advantages, mask, *, scale=1.0):
            return -scale * advantages * log_probs, {}

    Args:
        name: The name for ``policy_loss``.
        needs: Further tensors it takes by keyword.
        uses: Further tensors that it takes by keyword where the batch has them.
        whole_step: Tensors of that kind that depend on all tokens of an optimiser step, each with the function that
            computes it from ``(old_log_probs, advantages, mask)`` and those of the loss's options that it has
            parameters for, and a ``generator`` if it has one. It is called before the step is split into
            micro-batches, so that their size never changes a gradient.
    """
    needed, prepared = frozenset(needs), dict(whole_step or {})
    used = frozenset(uses) | frozenset(prepared)

    def decorate(function: Function) -> Function:
        options = {key: value for key, value in _options(function, skip=4).items() if key not in needed | used}
        LOSSES.add(Entry(name, function, needed, "token", options, used, prepared))
        return function

    return decorate


def registry(kind: Kind) -> Registry[Callable[..., Any]]:
    """Return the registry of ``kind`` with the built-in algorithms in it."""
    import roll.algorithms.advantages
    import roll.algorithms.losses  # noqa: F401 - both register their algorithms

    return ADVANTAGES if kind == "advantage" else LOSSES


def unused_options(name: str, given: Iterable[str], kind: Kind = "advantage") -> list[str]:
    """Return the options of ``given`` that the algorithm ``name`` ignores, in the order given.

    Raises:
        UnknownAlgorithmError: There is no such algorithm.
    """
    read = registry(kind).get(name).options
    return [option for option in given if option not in read]


def used_options(name: str, given: Mapping[str, Any], kind: Kind = "advantage") -> dict[str, Any]:
    """Return the part of ``given`` that the algorithm ``name`` reads.

    Raises:
        UnknownAlgorithmError: There is no such algorithm.
    """
    read = registry(kind).get(name).options
    return {option: value for option, value in given.items() if option in read}


def _options(function: Callable[..., Any], skip: int) -> dict[str, Any]:
    """Return the parameters after the first ``skip``, with defaults."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if any(parameter.kind in variadic for parameter in parameters):
        raise ValueError(f"{function.__qualname__}: spell the options out; *args and **kwargs would hide wrong ones.")
    return {parameter.name: parameter.default for parameter in parameters}


def _origin(function: Callable[..., Any]) -> str:
    """Return where a function comes from, for people."""
    return f"{function.__module__}.{function.__qualname__}"


def _same_origin(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Whether both are the same definition, read more than once: a module reloaded, or run as a script and imported."""
    if first.__qualname__ != second.__qualname__:
        return False
    if first.__module__ == second.__module__:
        return True
    files = [inspect.getsourcefile(function) for function in (first, second)]
    return files[0] is not None and files[1] is not None and Path(files[0]).resolve() == Path(files[1]).resolve()
