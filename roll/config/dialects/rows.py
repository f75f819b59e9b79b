"""What a table of foreign keys is made of: guides, rows, and what a row may do with a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from roll.config.algorithm import KL_ALIASES
from roll.config.base import OUTPUT, ConfigModel
from roll.config.batch_checks import divisors_around
from roll.config.env_manager import EnvManagerConfig
from roll.config.errors import FixableError

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unused:
    """What a conversion returns for a value that changes nothing here.

    Attributes:
        reason: Why, to tell the user; empty where there is nothing to tell, because another key says the same.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Impossible:
    """What a conversion returns for a value that asks for something that is not here: a run refuses it.

    Attributes:
        reason: Why it is not possible; a sentence without full stop.
        instead: The nearest thing there is; empty where there is none. A sentence without full stop.
        stands_in: What is set in its place where a conversion goes on without it, by native key path.
    """

    reason: str
    instead: str = ""
    stands_in: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sets:
    """What a conversion returns for a value that stands for several native keys.

    Attributes:
        values: What it means, by native key path.
        fills: What goes with it where nothing else says otherwise, by native key path.
        note: What the user has to know, because it is not quite the same here; a sentence without full stop.
    """

    values: Json = field(default_factory=dict)
    fills: Json = field(default_factory=dict)
    note: str = ""


class Look:
    """What a conversion may know of the rest of the configuration.

    Attributes:
        agentic: Whether a batch is counted in trajectories (of environments) and not in prompts.
        demonstrates: Whether rows are imitated and nothing is sampled.
    """

    def __init__(self, foreign: Json, native: Json, kind: type[ConfigModel]) -> None:
        self._foreign = foreign
        self._native = native
        self._kind = kind
        self.agentic = "train_env_manager" in kind.model_fields
        self.demonstrates = "messages_key" in kind.model_fields

    def __call__(self, key: str, default: Any = None) -> Any:
        """Return the value of another key of the same guide, ``default`` where it is unset or null."""
        value = self._foreign.get(key)
        return default if value is None else value

    def kind_has(self, key: str) -> bool:
        """Tell whether the pipeline has a native key."""
        return key in self._kind.model_fields

    def has(self, section: str) -> bool:
        """Tell whether a key of the guide's ``section`` is set."""
        return any(key.startswith(f"{section}.") and value is not None for key, value in self._foreign.items())

    def native(self, path: str) -> Any:
        """Return the value of a native key that the user wrote, ``None`` where there is none."""
        value: Any = self._native
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    @property
    def kl_loss(self) -> bool:
        """Whether the native keys put the divergence into the loss."""
        return self.native("use_kl_loss") is True

    @property
    def kl_reward(self) -> bool:
        """Whether the native keys put the divergence into the reward."""
        return above_zero(self.native("init_kl_coef"))

    def responses(self, key: str) -> int:
        """Return the responses per prompt: the guide's ``key``, the native key, or its default."""
        if self.agentic:
            path, default = "train_env_manager.group_size", EnvManagerConfig.model_fields["group_size"].default
        else:
            path, default = "num_return_sequences_in_group", 1
        return self.number(key, path, default)

    def prompts(self, key: str, responses_key: str) -> int:
        """Return the prompts of a step: the guide's ``key``, or what the native keys make."""
        if self(key) is not None:
            return self.number(key, "", 0)
        batch = self.number("", "rollout_batch_size", self._kind.model_fields["rollout_batch_size"].default)
        return batch // self.responses(responses_key) if self.agentic else batch

    def number(self, key: str, path: str, default: int) -> int:
        """Return the whole number at the guide's ``key`` or else at the native ``path``.

        Raises:
            FixableError: The value is not a whole number above 0.
        """
        value = self(key) if self(key) is not None else self.native(path) if path else None
        if value is None:
            return default
        return whole(value, f"{key if self(key) is not None else path} = {value!r}")


Convert = Callable[[Any, Look], Any]
"""From a foreign value to the native one, or to :class:`Unused`, :class:`Impossible` or :class:`Sets`.

A value that is no value of the key at all is refused with a FixableError.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One key of a guide.

    Attributes:
        key: Its path as the guide writes it. A row of a section takes the whole section.
        native: The native path or paths that it sets; none for a key that is accepted and has no effect.
        note: What is good to know; for a key without effect, the reason.
        convert: From its value to the native one; ``None`` takes the value as it is.
        only: Values that are accepted, for a key without effect of which other values ask for something else.
        agrees: The native path or paths that say the same as its value, where nothing has to be set for it.
    """

    key: str
    native: str | tuple[str, ...] = ()
    note: str = ""
    convert: Convert | None = None
    only: tuple[Any, ...] | None = None
    agrees: str | tuple[str, ...] = ()

    @property
    def twins(self) -> tuple[str, ...]:
        """The native paths that a value agrees with which sets nothing."""
        agreeing = (self.agrees,) if isinstance(self.agrees, str) else self.agrees
        return agreeing or self.targets

    @property
    def targets(self) -> tuple[str, ...]:
        """The native paths."""
        return (self.native,) if isinstance(self.native, str) else self.native


@dataclass(frozen=True)
class Guide:
    """The spelling of one project.

    Attributes:
        name: The project.
        rows: Its keys.
        short: Other spellings of a beginning: what a user may write, to the path that the rows use.
        inside: Sections that are written in the keys of another guide.
        beside: Whether its keys stand beside native ones (:mod:`roll.config.dialects.beside`).
        dtype: The number format that the project computes in where a file names none.
    """

    name: str
    rows: tuple[Row, ...]
    short: Mapping[str, str] = field(default_factory=dict)
    beside: bool = False
    dtype: str | None = None
    inside: Mapping[str, Guide] = field(default_factory=dict)

    @cached_property
    def heads(self) -> dict[str, str]:
        """First keys that belong to the guide, each with the path that it stands for."""
        return {**{row.key.split(".")[0]: row.key.split(".")[0] for row in self.rows}, **self.short}

    def row(self, key: str) -> Row | None:
        """Return the row of exactly this key."""
        return self._by_key.get(key)

    def below(self, path: str) -> list[str]:
        """Return the keys that may stand directly in the section at ``path``."""
        return list(self._sections.get(path, ()))

    @cached_property
    def _by_key(self) -> dict[str, Row]:
        return {row.key: row for row in self.rows}

    @cached_property
    def _sections(self) -> dict[str, dict[str, None]]:
        found: dict[str, dict[str, None]] = {}
        for row in self.rows:
            keys = row.key.split(".")
            for depth in range(1, len(keys)):
                found.setdefault(".".join(keys[:depth]), {})[keys[depth]] = None
        for path in self.inside:
            parent, _, name = path.rpartition(".")
            found.setdefault(parent, {})[name] = None
        return found


def no_effect(reason: str, *keys: str) -> tuple[Row, ...]:
    """Return rows of keys that are accepted and do nothing, for one reason."""
    return tuple(Row(key, note=reason) for key in keys)


def unless(off: tuple[Any, ...], reason: str, instead: str = "") -> Convert:
    """Return a conversion that takes values which ask for nothing, and says of others that they are not possible."""
    return lambda value, look: Unused("it is off, as it is here") if value in off else Impossible(reason, instead)


def own_code_row(key: str) -> Row:
    """Return the row of a switch by which code in the folder of a model may run: here it never does."""
    return agreeing(
        key, "pretrain", "the code of a model comes with the package that loads it", lambda value, look: value is False
    )


def under(sections: str | tuple[str, ...], *names: str) -> tuple[str, ...]:
    """Return the paths of keys of these names in one section, or in each of several."""
    each = (sections,) if isinstance(sections, str) else sections
    return tuple(f"{section}.{name}" for section in each for name in names)


def impossible(reason: str, *keys: str, instead: str = "") -> tuple[Row, ...]:
    """Return rows of keys that ask for something that is not here; null and false ask for nothing."""

    def convert(value: Any, look: Look) -> Unused | Impossible:
        return Unused("it is off") if value is False else Impossible(reason, instead)

    return tuple(Row(key, note=f"not possible: {reason}", convert=convert) for key in keys)


def agreeing(
    key: str, native: str | tuple[str, ...], reason: str, is_so: Callable[[Any, Look], bool] | None = None
) -> Row:
    """Return the row of a key that sets nothing, since the native keys say the same where ``is_so``.

    Args:
        key: Its path.
        native: The native path or paths that it agrees with.
        reason: What to tell where it says something else.
        is_so: Whether a value says the same; ``None``: where it is true.
    """

    def convert(value: Any, look: Look) -> Unused:
        return Unused("" if (value is True if is_so is None else is_so(value, look)) else reason)

    return Row(key, note=reason, convert=convert, agrees=native)


def plain(section: str, target: str, **names: str) -> tuple[Row, ...]:
    """Return rows of keys in ``section`` that have the same value under another name in ``target``."""
    prefix = f"{target}." if target else ""
    return tuple(Row(f"{section}.{key}", f"{prefix}{native}") for key, native in names.items())


def choices(names: Mapping[Any, Any]) -> Convert:
    """Return a conversion by table; a value that is not in it is left for the validation of the native key."""
    return lambda value, look: names.get(value, value) if isinstance(value, str | bool) else value


def whole(value: Any, name: str) -> int:
    """Return ``value`` if it is a whole number above 0.

    Raises:
        FixableError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FixableError(f"{name} must be a whole number above 0.", "write a whole number.")
    return value


def share(total: int, part: Any, what: str) -> int:
    """Return how often ``part`` goes into ``total``.

    Raises:
        FixableError: It does not divide it; names sizes that do.
    """
    size = whole(part, "the size")
    if total % size:
        raise FixableError(
            f"{total} {what} of a step cannot be cut into parts of {size}.",
            f"use {' or '.join(map(str, divisors_around(total, size)))}.",
        )
    return total // size


def off_below_one(value: Any, look: Look) -> Any:
    """Turn -1, which other guides use for never, into 0."""
    return 0 if isinstance(value, int) and not isinstance(value, bool) and value < 0 else value


def above_zero(value: Any) -> bool:
    """Tell whether ``value`` is a number above 0, by which other guides turn a term on."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def negated(value: Any, look: Look) -> Any:
    """Turn a switch around."""
    return not value if isinstance(value, bool) else value


def dropped_if(off: tuple[Any, ...]) -> Convert:
    """Return a conversion that drops values by which other guides say that something is off."""
    return lambda value, look: Unused() if value in off else value


def same_as(key: str, native: str, default: Any) -> Convert:
    """Return a conversion for a key that has to agree with ``key``, since both are the one native key here."""

    def convert(value: Any, look: Look) -> Any:
        other = look(key, look.native(native))
        other = default if other is None else other
        if value != other:
            raise FixableError(
                f"actor and critic share {native} here, and the actor's is {other!r}.",
                f"set it to {other!r}, or change {key}.",
            )
        return Unused()

    return convert


def kl_kind(value: Any, look: Look | None = None) -> Any:
    """Return the native name of a divergence estimate, so that two spellings of one do not seem to differ."""
    return KL_ALIASES.get(value, value) if isinstance(value, str) else value


SCHEDULES: Final[Mapping[str, str]] = {"constant": "constant_with_warmup"}
"""Learning-rate schedules: elsewhere ``constant`` has the warm-up that the warm-up keys ask for."""

TRAIN_STRATEGIES: Final[Mapping[str, str]] = {
    "fsdp": "fsdp_train",
    "fsdp2": "fsdp_train",
    "megatron": "megatron_train",
    "deepspeed": "deepspeed_train",
}

GENERATION_STRATEGIES: Final[Mapping[str, str]] = {
    "hf": "hf_infer",
    "vllm_async": "vllm",
    "sglang_async": "sglang",
}

TRACKERS: Final[Mapping[str, str]] = {"console": "stdout"}


def folder_of(root: str | None, *names: Any) -> str:
    """Return the folder below ``root`` (``None``: ours) that a guide keeps for a run of these names.

    A guide that continues whatever is in its folder tells runs apart by it: where the names were no part of ours, a
    run would take up the weights of another one.

    Raises:
        FixableError: A name is no text.
    """
    parts = [root if root is not None else str(OUTPUT)]
    for name in names:
        if name is not None and not isinstance(name, str):
            raise FixableError(f"{name!r} is no name of a folder.", "write text, in quotes if it looks like a number.")
        parts += [name] if name else []
    return str(Path(*parts))
