"""What a launch script gives to the program that trains."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from roll.config.errors import ConfigError, Problem
from roll.convert.foreign import Foreign
from roll.convert.reading.interpolations import without_kept
from roll.convert.reading.overrides import is_override, tree_of
from roll.convert.reading.shell.conditions import holds
from roll.convert.reading.shell.variables import Variables
from roll.convert.reading.shell.words import Statement, statements
from roll.convert.reading.yaml_file import parse_yaml, read_yaml

_DECLARING: Final = ("export", "local", "declare", "readonly", "typeset")
_FILE_OPTIONS: Final = ("--config-file", "--config_file", "--config", "-c")
_FOLDER_OPTIONS: Final = ("--config-path", "--config_path", "--config-dir", "--config_dir", "-cp", "-cd")
_NAME_OPTIONS: Final = ("--config-name", "--config_name", "-cn")
_SYSTEMS: Final = (
    "verl",
    "roll",
    "trinity",
    "chatlearn",
    "mindspeed",
    "pipeline",
    "train",
    "main_",
    "sft",
    "grpo",
    "ppo",
)
"""Parts of the names of programs that train."""

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(slots=True)
class _Launch:
    """A command that starts a program.

    Attributes:
        program: The module or script.
        words: What it is given.
    """

    program: str
    words: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Branch:
    """A compound command that a statement is in.

    Attributes:
        kind: Its first word.
        is_open: Whether its statements count now.
        was_open: Whether a branch of it has counted already.
        subject: Of ``case``: the text that is compared.
    """

    kind: str
    is_open: bool
    was_open: bool = False
    subject: str = ""


def read_script(path: Path) -> Foreign:
    """Return the keys that a launch script sets: those of the file that it names, changed by its overrides.

    Nothing is run. Variables have the values that the script gives them, else those of the environment; what only the
    machine of the script knows is kept as a variable, or told in ``unread``.

    Raises:
        ConfigError: It starts no program with a configuration.
    """
    reader = _Reader()
    for statement in statements(path.read_text(encoding="utf-8", errors="replace")):
        reader.take(statement)
    launch = max(reader.launches, key=lambda each: len(each.words), default=None)
    if launch is None:
        message = "it starts no program that trains (python -m verl.trainer.main_ppo …, python start.py …)."
        fix = "name the script that does, or a file of its overrides, one a line."
        raise ConfigError([Problem("INPUT", message, fix, str(path))])
    overrides = [word for word in launch.words if not word.startswith("-") and is_override(word)]
    notes = list(dict.fromkeys(reader.variables.unread))
    base = None
    named = _named_file(launch.words)
    if named is not None:
        base = reader.documents.get(named)
        found = _found(named, path.parent) if base is None else None
        if found is not None:
            base = dict(read_yaml(found).tree)
        elif base is None:
            notes.append(f"{named} is not there, so that its keys are missing")
    return Foreign(tree_of(overrides, base), path, launch.program, tuple(notes))


class _Reader:
    """Follows a script from statement to statement.

    Attributes:
        variables: Their values so far.
        launches: Commands that start a program.
        documents: YAML that the script writes into files itself, by file.
    """

    def __init__(self) -> None:
        self.variables = Variables()
        self.launches: list[_Launch] = []
        self.documents: dict[str, dict[str, object]] = {}
        self._branches: list[_Branch] = []

    def take(self, statement: Statement) -> None:
        """Take in one statement."""
        words = list(statement.words)
        while words and self._is_structure(words):
            words = words[1:] if words[0] in ("then", "else", "do", "{", "(") else []
        if words and all(branch.is_open for branch in self._branches):
            self._command(replace(statement, words=tuple(words)))

    def _is_structure(self, words: Sequence[str]) -> bool:
        """Follow compound commands; return whether the first word belongs to one."""
        first = words[0]
        counts = all(branch.is_open for branch in self._branches)
        inner = self._branches[-1] if self._branches else None
        if first == "if":
            outcome = holds(words[1:], self.variables) if counts else False
            self._branches.append(_Branch("if", bool(outcome), bool(outcome)))
        elif first in ("elif", "else") and inner is not None and inner.kind == "if":
            outcome = True if first == "else" else holds(words[1:], self.variables)
            inner.is_open = not inner.was_open and bool(outcome)
            inner.was_open |= inner.is_open
        elif first in ("for", "while", "until", "select"):
            self._branches.append(_Branch("loop", True))
            if first == "for" and len(words) > 3 and words[2] == "in" and counts:
                # One run is converted: the first.
                self.variables.set(words[1], (self.variables.expand(words[3]) or [""])[0])
        elif first == "case":
            self._branches.append(_Branch("case", False, subject=without_kept(self.variables.text(words[1]))))
        elif first == ";;" and inner is not None:
            inner.is_open = False
        elif inner is not None and inner.kind == "case" and first.endswith(")"):
            patterns = [self.variables.text(each) for each in first.rstrip(")").lstrip("(").split("|")]
            matches = any(fnmatch.fnmatchcase(inner.subject, pattern) for pattern in patterns)
            inner.is_open = matches and not inner.was_open
            inner.was_open |= inner.is_open
            if len(words) > 1:
                self.take(Statement(tuple(words[1:])))
        elif first in ("fi", "done", "esac") or (first == "}" and inner is not None):
            if self._branches:
                self._branches.pop()
        elif first == "function" or first.endswith("()") or (len(words) > 1 and words[1] == "()"):
            self._branches.append(_Branch("function", False))
        else:
            return first in ("then", "do", "{", "(") and not (first == "{" and inner is not None)
        return True

    def _command(self, statement: Statement) -> None:
        words = list(statement.words)
        if statement.document is not None and statement.writes:
            self._document(statement)
            return
        if words[0] in _DECLARING:
            for word in words[1:]:
                self.variables.assign(word)
            return
        if all(_ASSIGNMENT.match(word) for word in words):
            for word in words:
                self.variables.assign(word)
            return
        expanded = [item for word in words for item in self.variables.expand(word)]
        self.launches += _launches(expanded)

    def _document(self, statement: Statement) -> None:
        assert statement.document is not None
        text = statement.document
        text = text if statement.is_literal else self.variables.document(text)
        target = self.variables.text(statement.writes)
        if target.endswith((".yaml", ".yml")):
            self.documents[target] = parse_yaml(text, target)


def _launches(words: Sequence[str]) -> Iterator[_Launch]:
    """Yield the program that a command starts, if it is one that has a configuration."""
    for index, word in enumerate(words):
        behind = list(words[index + 1 :])
        if word == "-m" and behind and _trains(behind[0], behind[1:]):
            yield _Launch(behind[0], behind[1:])
            return
        if word.endswith(".py") and "=" not in word and _trains(word, behind):
            yield _Launch(word, behind)
            return
        if word.rpartition("/")[2] == "trinity" and behind[:1] == ["run"]:
            yield _Launch("trinity", behind[1:])
            return


def _trains(program: str, words: Sequence[str]) -> bool:
    has_overrides = sum(is_override(word) and "." in word.partition("=")[0] for word in words) > 0
    has_file = any(word.partition("=")[0] in (*_FILE_OPTIONS, *_NAME_OPTIONS) for word in words)
    return has_overrides or (has_file and any(part in program.lower() for part in _SYSTEMS))


def _named_file(words: Sequence[str]) -> str | None:
    """Return the configuration that a command names, as written."""
    given: dict[str, str] = {}
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in (*_FILE_OPTIONS, *_FOLDER_OPTIONS, *_NAME_OPTIONS):
            given[option] = value if equals else next(iter(words[index + 1 : index + 2]), "")
    file = next((given[option] for option in _FILE_OPTIONS if option in given), None)
    if file is not None:
        return file
    name = next((given[option] for option in _NAME_OPTIONS if option in given), None)
    folder = next((given[option] for option in _FOLDER_OPTIONS if option in given), "")
    return None if name is None else str(Path(folder) / name)


def _found(named: str, folder: Path) -> Path | None:
    """Return a file that a script names: from where it stands or from a folder above; also with ``/`` written ``_``."""
    names = [named, *(f"{named}{suffix}" for suffix in (".yaml", ".yml"))]
    places = [folder, *folder.resolve().parents[:3]]
    flat = [name.lstrip("./").replace("/", "_") for name in names]
    for place in places:
        for name in (*names, *flat):
            path = place / name
            if path.suffix in (".yaml", ".yml") and path.is_file():
                return path
    return None
