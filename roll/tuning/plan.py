"""What a study is to try, checked as far as that can be done before anything runs."""

from __future__ import annotations

import math
import re
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin

from roll.config import ConfigError, ConfigWarning, Problem, RunConfig, load, require_runnable
from roll.config.errors import FixableError
from roll.config.ranges import Choice, Range, Scalar, format_value, range_in, read_range
from roll.config.validation import model_at
from roll.config.written import flat, to_mapping

FOLDER: Final = "tune"
"""Of a study, below ``output_dir``."""

_SHOWN_CHOICES: Final = 16
"""How many values of one key are checked before anything runs; of more, the first and the last."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try.

    Attributes:
        name: The configuration, as it was named.
        words: Overrides that every trial has.
        config: The configuration with them, not tuned.
        space: What is tuned: key path to range.
        metric: What decides; ``None`` for the success in validation, or what comes nearest to it.
        minimize: Whether less of it is better; ``None`` for losses.
        seed: Of the values that are tried.
        min_resource: Steps before a trial can be stopped.
        reduction_factor: Of how many trials one goes on, and by what factor the steps grow from one decision to the
            next.
        hyperband: Whether some trials are given more steps before the first decision.
    """

    name: str
    words: tuple[str, ...]
    config: RunConfig
    space: Mapping[str, Range | Choice]
    metric: str | None
    minimize: bool | None
    seed: int
    min_resource: int
    reduction_factor: int
    hyperband: bool

    @property
    def folder(self) -> Path:
        """Where the study is."""
        return self.config.output_dir / FOLDER

    @property
    def rungs(self) -> list[int]:
        """Steps after which it is decided whether a trial goes on, and those of a trial that was never stopped."""
        last = self.config.max_steps
        found, rung = [], self.min_resource
        while rung < last:
            found.append(rung)
            rung *= self.reduction_factor
        return [*found, last]

    @property
    def combinations(self) -> int | None:
        """How many different trials there can be, ``None`` for infinitely many."""
        counts = [_count(one) for one in self.space.values()]
        known = [count for count in counts if count is not None]
        return math.prod(known) if len(known) == len(counts) else None

    def declaration(self) -> dict[str, Any]:
        """Return what must be the same when the study goes on."""
        about = {
            "minimize": self.minimize,
            "seed of the study": self.seed,
            "min_resource": self.min_resource,
            "reduction_factor": self.reduction_factor,
            "hyperband": self.hyperband,
            **{f"tune.{key}": str(one) for key, one in self.space.items()},
        }
        kept = {key: value for key, value in flat(to_mapping(self.config)).items() if key.split(".")[0] not in _NOT}
        return {**about, **{key: str(value) for key, value in kept.items()}}


_NOT: Final = ("tune", "output_dir", "progress", "resume_from_checkpoint", "track_with")


def make_plan(
    name: str,
    words: Sequence[str] = (),
    *,
    metric: str | None = None,
    minimize: bool | None = None,
    seed: int = 0,
    min_resource: int | None = None,
    reduction_factor: int = 3,
    hyperband: bool = False,
) -> Plan:
    """Read and check what is to be tried.

    Args:
        name: A configuration, as :func:`roll.config.load` takes it; its section ``tune`` says what is tuned.
        words: Overrides, and ranges: ``actor_train.training_args.learning_rate=loguniform(1e-5,1e-3)``.
        metric: See :class:`Plan`, and so the others.
        minimize: See there.
        seed: See there.
        min_resource: ``None`` for a ninth of the run, and not less than the first evaluation.
        reduction_factor: 2 or more.
        hyperband: See there.

    Raises:
        ConfigError: Something is wrong with the configuration, a key or a range; nothing was begun.
    """
    ranges, fixed = _divided(words)
    refused = [word for word in fixed if word.lstrip("+").partition("=")[0] == "resume_from_checkpoint"]
    if refused:
        raise ConfigError([Problem("resume_from_checkpoint", "trials go on by themselves.", "leave it out.")])
    config = _load(name, fixed)
    require_runnable(config)
    space = {key: read_range(value) for key, value in {**config.tune, **ranges}.items()}
    if not space:
        fix = "add a section tune to the file, or KEY=loguniform(1e-5,1e-3) to the command."
        raise ConfigError([Problem("tune", "nothing says what is to be tuned.", fix)])
    if not config.trains or config.max_steps == 0:
        raise ConfigError([Problem("max_steps", "it does not train, so there is nothing to tune.", "name a training.")])
    space = {key: _whole(config, key, one) for key, one in space.items()}
    _require_sound_ends(name, fixed, space)
    first = min_resource or _first_rung(config, reduction_factor)
    problems = list(_problems(config, metric, first, reduction_factor))
    if problems:
        raise ConfigError(problems)
    return Plan(name, tuple(fixed), config, space, metric, minimize, seed, first, reduction_factor, hyperband)


def word(key: str, value: Scalar) -> str:
    """Return what sets a key, on the command line of a trial."""
    return f"{key}={format_value(value)}"


def seconds_in(text: str) -> float:
    """Return the seconds that ``30m``, ``2h``, ``90s`` or ``1h30m`` are; a number alone counts minutes.

    Raises:
        FixableError: It is no time.
    """
    found = re.fullmatch(r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s)?", text.strip().lower())
    try:
        if text.strip() and found is None:
            seconds = 60 * float(text)
        else:
            parts = [float(part or 0) for part in (found.groups() if found else ())]
            seconds = sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=False))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise FixableError(f"{text!r} is no time.", "write 30m, 2h or 90s.")
    return seconds


def _divided(words: Sequence[str]) -> tuple[dict[str, Range | Choice], list[str]]:
    """Return the ranges of a command line by their keys, and its other words."""
    ranges: dict[str, Range | Choice] = {}
    fixed: list[str] = []
    problems = []
    for each in words:
        key, _, value = each.partition("=")
        try:
            found = range_in(value)
        except FixableError as error:
            problems.append(Problem(key, error.message, error.fix, value))
            continue
        if found is None:
            fixed.append(each)
        else:
            ranges[key.lstrip("+")] = found
    if problems:
        raise ConfigError(problems)
    return ranges, fixed


def _load(name: str, words: Sequence[str]) -> RunConfig:
    """Return a checked configuration. What is unusual about it, its trials say themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        loaded: RunConfig = load(name, overrides=list(words))
    return loaded


def _whole(config: RunConfig, key: str, one: Range | Choice) -> Range | Choice:
    """Return a range of whole numbers where the key takes no others."""
    if isinstance(one, Choice) or not _takes_whole_only(config, key):
        return one
    if one.low != int(one.low) or one.high != int(one.high) or (one.step or 1) != int(one.step or 1):
        problem = Problem(f"tune.{key}", f"the key takes whole numbers, not {one}.", "write whole numbers.", str(one))
        raise ConfigError([problem])
    return Range(int(one.low), int(one.high), one.log, None if one.step is None else int(one.step))


def _takes_whole_only(config: RunConfig, key: str) -> bool:
    *above, name = key.split(".")
    model = model_at(type(config), above)
    field = None if model is None else model.model_fields.get(model.key_aliases.get(name, name))
    if field is None:
        return False
    kinds = set(_parts(field.annotation))
    return int in kinds and float not in kinds


def _parts(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _require_sound_ends(name: str, fixed: Sequence[str], space: Mapping[str, Range | Choice]) -> None:
    """Check that the configuration can be used with both ends of every range, and with every choice.

    Raises:
        ConfigError: Lists every problem.
    """
    problems: dict[tuple[str, str], Problem] = {}
    for key, one in space.items():
        for value in _ends(one):
            try:
                require_runnable(_load(name, [*fixed, word(key, value)]))
            except ConfigError as error:
                for problem in error.problems:
                    problems.setdefault((problem.path, problem.message), problem)
    if problems:
        raise ConfigError(list(problems.values()))


def _ends(one: Range | Choice) -> tuple[Scalar, ...]:
    if isinstance(one, Range):
        return (one.low, one.high)
    return one.values if len(one.values) <= _SHOWN_CHOICES else (one.values[0], one.values[-1])


def _first_rung(config: RunConfig, factor: int) -> int:
    every = max(1, config.eval_steps)
    ninth = config.max_steps / max(2, factor) ** 2
    return max(every, math.ceil(ninth / every) * every)


def _problems(config: RunConfig, metric: str | None, first: int, factor: int) -> Iterator[Problem]:
    if (metric is None or metric.startswith("val/")) and not 0 < config.eval_steps <= config.max_steps:
        fix = f"set eval_steps to a part of max_steps={config.max_steps}, or decide by a metric of training (--metric)."
        yield Problem(
            "eval_steps", "trials are compared by their evaluations, and there is none.", fix, config.eval_steps
        )
    if first < 1:
        yield Problem("--min-resource", "trials need a step.", "write 1 or more.", first)
    if factor < 2:
        yield Problem("--reduction-factor", "one of so many trials goes on.", "write 2 or more.", factor)


def _count(one: Range | Choice) -> int | None:
    if isinstance(one, Choice):
        return len(one.values)
    step = one.step or (1 if isinstance(one.low, int) and isinstance(one.high, int) and not one.log else None)
    if isinstance(one.low, int) and isinstance(one.high, int) and one.log:
        return one.high - one.low + 1
    return None if step is None else math.floor((one.high - one.low) / step + 1e-9) + 1
