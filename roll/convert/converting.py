"""From a configuration of another system to a native one that is checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.config.composing import from_mapping
from roll.config.dialects import ROLL_FILE, ForeignKey, Guide, Translation, is_typing_mistake, translate
from roll.config.errors import Absent, ConfigError, ConfigWarning, Problem
from roll.config.kinds import check_before
from roll.config.loading import check
from roll.convert.foreign import ROLL, Foreign, detect, guide_of
from roll.convert.pipelines import config_of, pipeline_of
from roll.convert.reading.assumed import filled
from roll.convert.reading.interpolations import kept_names, prepared
from roll.convert.removing import without
from roll.convert.unknown_keys import unknown_keys
from roll.convert.unsaid import unsaid


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of a configuration.

    Attributes:
        system: The system that it was written for, a key of ``SYSTEMS``.
        pipeline: The kind of run that it became.
        native: The native keys.
        keys: What became of each foreign key.
        problems: Why the native keys are not a configuration that can be used; none: they are.
        notes: What else a reader has to know, as sentences.
    """

    system: str
    pipeline: str
    native: Mapping[str, Any]
    keys: Sequence[ForeignKey]
    problems: Sequence[Problem]
    notes: Sequence[str]

    @property
    def ok(self) -> bool:
        """Whether the native keys can be used."""
        return not self.problems


def convert(foreign: Foreign, system: str | None = None) -> Conversion:
    """Return what a configuration is in native keys.

    A key that asks for what is not here is dropped and reported. So is one that nobody here knows, unless it looks like
    a key that is known: that is taken for a typing mistake, which is a problem.

    Args:
        foreign: The configuration.
        system: Whose it is, a key of ``SYSTEMS``. ``None``: found from its keys and its program.
    """
    system = system or detect(foreign)
    conversion = _converted(foreign, system)
    left: list[ForeignKey] = []
    while waiting := _keys_of_variables(conversion):
        left += waiting
        tree = without(foreign.tree, [key.key for key in waiting])
        if tree == foreign.tree:
            break
        foreign = replace(foreign, tree=tree)
        conversion = _converted(foreign, system)
    return replace(conversion, keys=[*conversion.keys, *left]) if left else conversion


def _keys_of_variables(conversion: Conversion) -> list[ForeignKey]:
    """Return a record of every key that is a problem only because its value is a variable that is not set here."""
    found: dict[str, ForeignKey] = {}
    for problem in conversion.problems:
        names = kept_names(problem.value)
        if names:
            why = f"its value is the variable {', '.join(names)}, which nothing sets here; set it, and convert again"
            found.setdefault(problem.path, ForeignKey(problem.path, "impossible", why=why))
    return list(found.values())


def _converted(foreign: Foreign, system: str) -> Conversion:
    pipeline = pipeline_of(foreign, system)
    kind = config_of(pipeline)
    guide = guide_of(system)
    tree, unknown = (dict(foreign.tree), []) if guide is None else _known_heads(foreign.tree, guide)
    silent = unsaid(system, pipeline, tree)
    translated = translate(filled(tree, silent), kind, whose=ROLL_FILE if system == ROLL else guide)
    keys = [*(key for key in translated.keys if key.key not in silent), *unknown]
    keys += foreign.left_out
    if system == ROLL:
        keys += _native_keys(translated, foreign.tree)
    impossible = [f"{key.key}." for key in keys if key.state != "translated"]
    dropped = {problem.path for problem in translated.problems if _is_above(problem.path, impossible)}
    problems = [problem for problem in translated.problems if problem.path not in dropped]
    native = prepared({"pipeline": pipeline, **translated.data})
    native.setdefault("exp_name", foreign.path.stem)
    notes = list(foreign.unread)
    if meant := silent | translated.meant:
        said = ", ".join(f"{path}: {value}" for path, value in meant.items())
        notes.append(f"{said}: what {guide.name if guide is not None else 'ROLL'} means where a file does not say it.")
    if not problems:
        found, cautions = _check(native, translated, pipeline)
        while system == ROLL and (left_out := unknown_keys(found, kind)):
            keys = [*(key for key in keys if key.key not in {each.key for each in left_out}), *left_out]
            before, native = native, without(native, [each.key for each in left_out])
            if native == before:
                break
            found, cautions = _check(native, translated, pipeline)
        problems += found
        notes += cautions
    return Conversion(system, pipeline, native, keys, problems, notes)


def _is_above(path: str, keys: Sequence[str]) -> bool:
    return any(key.startswith(f"{path}.") for key in keys)


def _known_heads(tree: Mapping[str, Any], guide: Guide) -> tuple[dict[str, Any], list[ForeignKey]]:
    """Return the sections that a guide knows, and a record of each that it does not and that is no typing mistake."""
    kept: dict[str, Any] = {}
    unknown = []
    for head, value in tree.items():
        if head in guide.heads or is_typing_mistake(head, guide.heads):
            kept[head] = value
        else:
            unknown.append(ForeignKey(head, "impossible", why=f"no key of {guide.name} that is known here"))
    return kept, unknown


def _native_keys(translated: Translation, tree: Mapping[str, Any]) -> list[ForeignKey]:
    """Return a record of every key that is spelled here as it is there."""
    foreign = {key.key for key in translated.keys}
    found = []

    def walk(value: Any, path: str) -> None:
        if path in foreign:
            return
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else str(key))
        else:
            found.append(ForeignKey(path, "translated", (path,)))

    walk({key: value for key, value in tree.items() if key in translated.data or key in foreign}, "")
    return found


def _check(native: Mapping[str, Any], translated: Translation, pipeline: str) -> tuple[list[Problem], list[str]]:
    """Return why the native keys cannot be used, under the names that the user wrote, and what else there is to say.

    What is not on this machine is no problem of theirs: a package, a model, a file.
    """
    problems: list[Problem] = []
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        try:
            config = check(from_mapping(native), kind=config_of(pipeline))
            notes = check_before(config)
        except ConfigError as error:
            problems = [translated.as_written(problem) for problem in error.problems]
    notes = [*(str(item.message) for item in caught), *notes]
    absent = [problem for problem in problems if isinstance(problem, Absent)]
    notes += [f"{problem.path}: {problem.message} Fix: {problem.fix}" for problem in absent]
    return [replace(problem, source=None) for problem in problems if problem not in absent], notes
