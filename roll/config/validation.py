"""Turning pydantic's findings into problems that name the key path, the value and the nearest valid key."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from roll.common.spelling import nearest
from roll.config.base import ConfigModel
from roll.config.errors import UNSET, FixableError, Problem, choose_from

_EXPECTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping",
    "list_type": "a list",
    "model_type": "a section",
}

_FIXES: Mapping[str, str] = {
    "int_type": "write a whole number.",
    "float_type": "write a number.",
    "finite_number": "write a number that is neither infinite nor .nan.",
    "bool_type": "write true or false.",
    "string_type": "write text, in quotes if it looks like a number.",
    "dict_type": "write a mapping (key: value).",
    "list_type": "write a list ([a, b]).",
    "model_type": "write a section (indented key: value lines).",
    "missing": "add the key.",
}


def validation_problems(error: ValidationError, data: Mapping[str, Any], kind: type[ConfigModel]) -> list[Problem]:
    """Return one problem per faulty key.

    Args:
        error: What pydantic found when ``kind`` validated ``data``.
        data: The plain values that were validated.
        kind: The model.
    """
    by_path: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        by_path.setdefault(_key_path(detail["loc"], data, kind), []).append(detail)
    return [_problem(path, details, kind) for path, details in by_path.items()]


def valid_keys(kind: type[ConfigModel]) -> list[str]:
    """Return the keys of ``kind``, aliases included."""
    return [*kind.model_fields, *kind.key_aliases]


def model_at(kind: type[ConfigModel], path: Sequence[str]) -> type[ConfigModel] | None:
    """Return the model of the section at ``path``, ``None`` if the path leads to plain values."""
    current: Any = kind
    for key in path:
        if isinstance(current, type) and issubclass(current, ConfigModel):
            field = current.model_fields.get(current.key_aliases.get(key, key))
            current = _section(field.annotation) if field is not None else None
        elif get_origin(current) is dict:
            current = _section(get_args(current)[1])
        else:
            return None
    return current if isinstance(current, type) and issubclass(current, ConfigModel) else None


def sections(kind: type[ConfigModel], prefix: str = "") -> Iterator[tuple[str, type[ConfigModel]]]:
    """Yield the key path and model of ``kind`` and of every section below it."""
    yield prefix, kind
    for name, field in kind.model_fields.items():
        section = _section(field.annotation)
        path = f"{prefix}.{name}" if prefix else name
        if get_origin(section) is dict:
            section, path = _section(get_args(section)[1]), f"{path}.<name>"
        if isinstance(section, type) and issubclass(section, ConfigModel):
            yield from sections(section, path)


def suggest_key(kind: type[ConfigModel], path: Sequence[str]) -> str:
    """Return the fix for the unknown key at ``path``.

    A key that exists elsewhere under exactly this name was put in the wrong section; otherwise the nearest key of the
    same section was meant.
    """
    parent, name = ".".join(path[:-1]), path[-1]
    model = model_at(kind, path[:-1])
    close = nearest(name, valid_keys(model)) if model is not None else None
    elsewhere = sorted(
        (f"{prefix}.{name}".strip(".") for prefix, section in sections(kind) if name in valid_keys(section)),
        key=lambda place: (not place.startswith(f"{path[0]}."), place.count(".")),
    )
    if elsewhere and (not close or close.lower() != name.lower()):
        return f"the key belongs elsewhere: use {elsewhere[0]}."
    if close:
        return f"did you mean {f'{parent}.{close}' if parent else close}?"
    where = f"{parent} has the keys {', '.join(valid_keys(model))}" if parent and model else "no key is similar"
    return f"{where}. Remove it; values of your own for interpolation go under variables:."


def _section(annotation: Any) -> Any:
    """Return the model or mapping type inside ``annotation`` (``X | None`` → ``X``)."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [_section(item) for item in get_args(annotation)]
        return next((item for item in inner if item is not None), None)
    if get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, ConfigModel)):
        return annotation
    return None


def _key_path(location: tuple[int | str, ...], data: Mapping[str, Any], kind: type[ConfigModel]) -> tuple[str, ...]:
    """Drop what pydantic adds to a location (union branches), and return to the spelling that the user wrote."""
    path: list[str] = []
    current: Any = data
    for step in location:
        model = model_at(kind, path)
        if isinstance(current, Mapping):
            spellings = [alias for alias, key in model.key_aliases.items() if key == step] if model else []
            present = next((key for key in [step, *spellings] if key in current), None)
            if present is None and (model is None or step not in valid_keys(model)):
                continue
            path.append(str(present if present is not None else step))
            current = current.get(present)
        elif isinstance(current, Sequence) and not isinstance(current, str) and isinstance(step, int):
            path.append(str(step))
            current = current[step] if step < len(current) else None
    return tuple(path)


def _problem(path: tuple[str, ...], details: list[ErrorDetails], kind: type[ConfigModel]) -> Problem:
    detail = details[0]
    key = ".".join(path)
    value = UNSET if detail["type"] == "missing" else detail["input"]
    if detail["type"] == "extra_forbidden":
        return Problem(key, "unknown key.", suggest_key(kind, path), value)
    if detail["type"] == "literal_error":
        return _literal_problem(key, detail, value)
    if detail["type"] == "value_error":
        error = detail["ctx"]["error"]
        if isinstance(error, FixableError):
            return Problem(key, error.message, error.fix, value)
        return Problem(key, f"{error}.", "correct the value.", value)
    message = " or ".join(dict.fromkeys(_must(item) for item in details))
    fix = _without_quotes(value, {item["type"] for item in details}) or _fix(details)
    return Problem(key, f"{message} (found {_type_name(value)}).", fix, value)


def _literal_problem(key: str, detail: ErrorDetails, value: Any) -> Problem:
    field_values = str(detail["ctx"]["expected"])
    names = [part.strip().strip("'") for part in field_values.replace(" or ", ", ").split(",")]
    return Problem(key, "not one of the allowed values.", choose_from(str(value), names), value)


def _fix(details: Sequence[ErrorDetails]) -> str:
    fixes = dict.fromkeys(
        _FIXES.get(item["type"]) or f"write a value that {_must(item).replace('must be', 'is', 1)}." for item in details
    )
    return " Or ".join(fixes)


def _without_quotes(value: Any, expected: set[str]) -> str | None:
    """Return the fix for a number that is written as text, ``None`` for anything else."""
    if not isinstance(value, str) or not expected & {"int_type", "float_type"}:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not isfinite(number) or ("float_type" not in expected and not value.strip().lstrip("+-").isdigit()):
        return None
    return f"leave out the quotes: write {value.strip()}, not {value!r}."


def _must(detail: ErrorDetails) -> str:
    """Return what pydantic expects, as the rest of a sentence: "must be greater than 1"."""
    if detail["type"] in _EXPECTED:
        return f"must be {_EXPECTED[detail['type']]}"
    text = detail["msg"]
    return text.replace("Input should be", "must be", 1) if text.startswith("Input") else text[:1].lower() + text[1:]


def _type_name(value: Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true/false", dict: "a mapping"}
    return "nothing" if value is None or value is UNSET else names.get(type(value), f"a {type(value).__name__}")
