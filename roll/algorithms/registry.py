"""Names of estimators and losses, what each needs and reads, and the decorators with which users add their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from roll.common.registry import Registry

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = Literal["advantage", "loss"]
Level = Literal["outcome", "turn", "token"]


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
        """Check the names of the options given.

        Raises:
            ValueError: The algorithm does not read one, or a required one is missing.
        """
        given = set(given)
        unknown = sorted(given - set(self.options))
        if unknown:
            known = ", ".join(self.options) or "none"
            raise ValueError(f"{self.name} does not read {', '.join(unknown)}; its options: {known}.")
        missing = sorted(set(self.required_options()) - given)
        if missing:
            raise ValueError(f"{self.name} needs the options {', '.join(missing)}.")


ADVANTAGES: Registry[Entry[Callable[..., Any]]] = Registry(
    "advantage",
    modules=("roll.algorithms.advantages",),
    advice="To add your own, decorate it with @register_advantage({name!r}) and name its module in algorithm_modules.",
)
LOSSES: Registry[Entry[Callable[..., Any]]] = Registry(
    "loss",
    modules=("roll.algorithms.losses",),
    advice="To add your own, decorate it with @register_loss({name!r}) and name its module in algorithm_modules.",
)


def registry(kind: Kind) -> Registry[Entry[Callable[..., Any]]]:
    """Return the registry of ``kind``."""
    return ADVANTAGES if kind == "advantage" else LOSSES


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
        ADVANTAGES.add(name, Entry(name, function, frozenset(needs), level, options), definition=function)
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
        LOSSES.add(name, Entry(name, function, needed, "token", options, used, prepared), definition=function)
        return function

    return decorate


def unused_options(name: str, given: Iterable[str], kind: Kind = "advantage") -> list[str]:
    """Return the options of ``given`` that the algorithm ``name`` ignores, in the order given.

    Raises:
        UnknownNameError: There is no such algorithm.
    """
    read = registry(kind).get(name).options
    return [option for option in given if option not in read]


def used_options(name: str, given: Mapping[str, Any], kind: Kind = "advantage") -> dict[str, Any]:
    """Return the part of ``given`` that the algorithm ``name`` reads.

    Raises:
        UnknownNameError: There is no such algorithm.
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
