"""A script as statements of words, quotes and expansions still in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_OPERATORS: Final = ("&&", "||", ";;", "|&", ";", "|", "&", "\n")
_PAIRS: Final = {"(": ")", "{": "}"}
_REDIRECTIONS: Final = ("<<<", "<<-", "<<", "&>>", "&>", ">>", ">&", "<&", ">|", ">", "<")


@dataclass(frozen=True, slots=True)
class Statement:
    """One simple command, or a part of a compound one.

    Attributes:
        words: Its words as written.
        writes: The file that its output goes to, as written; empty: none.
        document: The text of its here-document, ``None`` where it has none.
        is_literal: Whether nothing in ``document`` is expanded.
    """

    words: tuple[str, ...]
    writes: str = ""
    document: str | None = None
    is_literal: bool = False


def statements(text: str) -> list[Statement]:
    """Return the statements of a script, in order; comments and redirections are left out."""
    return _Scanner(text).statements()


def fields(text: str) -> list[str]:
    """Return the words between the parentheses of an array, as written."""
    return [word for statement in statements(text) for word in statement.words]


def closing(text: str, start: int) -> int:
    """Return the place behind what begins at ``start``: a quoted text, an expansion, or a single character."""
    character = text[start]
    if character == "\\":
        return min(start + 2, len(text))
    if character == "'":
        end = text.find("'", start + 1)
        return len(text) if end < 0 else end + 1
    if character == "`":
        end = text.find("`", start + 1)
        return len(text) if end < 0 else end + 1
    if character == '"':
        return _until(text, start + 1, '"', in_quotes=True)
    if character == "$" and text[start + 1 : start + 2] in _PAIRS:
        return _until(text, start + 2, _PAIRS[text[start + 1]])
    return start + 1


def _until(text: str, position: int, end: str, *, in_quotes: bool = False) -> int:
    opening = {closed: opened for opened, closed in _PAIRS.items()}.get(end)
    depth = 1
    while position < len(text):
        character = text[position]
        if character == end:
            depth -= 1
            if not depth:
                return position + 1
        elif character == opening:
            depth += 1
        elif not (in_quotes and character == "'"):
            position = closing(text, position)
            continue
        position += 1
    return len(text)


class _Scanner:
    """Goes once over the text of a script."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._found: list[Statement] = []
        self._words: list[str] = []
        self._word = ""
        self._writes = ""
        self._waiting: list[tuple[str, bool, bool]] = []

    def statements(self) -> list[Statement]:
        while self._at < len(self._text):
            self._step()
        self._end_statement()
        return self._found

    def _step(self) -> None:
        text, at = self._text, self._at
        if text.startswith("\\\n", at):
            self._at += 2
        elif text[at] in " \t":
            self._end_word()
            self._at += 1
        elif text[at] == "#" and not self._word:
            self._at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif text[at] == "(" and self._word.endswith("="):
            self._take(_until(text, at + 1, ")"))
        elif self._redirection() or self._operator():
            return
        else:
            self._take(closing(text, at))

    def _take(self, end: int) -> None:
        self._word += self._text[self._at : end]
        self._at = end

    def _operator(self) -> bool:
        found = next((each for each in _OPERATORS if self._text.startswith(each, self._at)), None)
        if found is None:
            return False
        self._at += len(found)
        self._end_statement()
        if found == ";;":
            self._found.append(Statement((";;",)))
        if found == "\n":
            self._read_documents()
        return True

    def _redirection(self) -> bool:
        found = next((each for each in _REDIRECTIONS if self._text.startswith(each, self._at)), None)
        if found is None:
            return False
        self._word = "" if self._word.isdigit() else self._word
        self._end_word()
        self._at += len(found)
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        target = self._raw_word()
        if found in ("<<", "<<-"):
            name = target.strip("'\"").replace("\\", "")
            self._waiting.append((name, name != target, found == "<<-"))
        elif found in (">", ">>", ">|", "&>"):
            self._writes = target
        return True

    def _raw_word(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;|&<>":
            self._at = closing(self._text, self._at)
        if self._at == start and self._text.startswith("&", self._at):
            self._at += 1
        return self._text[start : self._at]

    def _end_word(self) -> None:
        if self._word:
            self._words.append(self._word)
        self._word = ""

    def _end_statement(self) -> None:
        self._end_word()
        if self._words:
            self._found.append(Statement(tuple(self._words), self._writes))
        self._words, self._writes = [], ""

    def _read_documents(self) -> None:
        for name, is_literal, is_indented in self._waiting:
            lines = []
            while self._at < len(self._text):
                line, _, _ = self._text[self._at :].partition("\n")
                self._at += len(line) + 1
                line = line.lstrip("\t") if is_indented else line
                if line == name:
                    break
                lines.append(line)
            if self._found:
                last = self._found[-1]
                self._found[-1] = Statement(last.words, last.writes, "\n".join(lines), is_literal)
        self._waiting = []
