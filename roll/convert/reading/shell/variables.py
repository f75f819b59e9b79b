"""The variables of a script, and words with their values in them. Nothing is run."""

from __future__ import annotations

import ast
import fnmatch
import operator
import os
import re
from collections.abc import Callable, Mapping
from typing import Final

from roll.convert.reading.interpolations import kept
from roll.convert.reading.shell.words import closing, fields

Value = str | list[str]

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_REFERENCE: Final = re.compile(
    r"(?P<length>#)?(?P<indirect>!)?(?P<name>[A-Za-z_]\w*|[0-9@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.S
)
_COMMANDS: Final = {"pwd": ".", "date": "now", "whoami": "user", "hostname": "localhost", "nproc": "1"}
"""What commands of little interest answer, in place of their answers."""

_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_LARGEST: Final = 10**15


class Variables:
    """Values of names, as far as a script has set them so far.

    Attributes:
        unread: What could not be found out, as sentences.
    """

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}
        self.unread: list[str] = []

    def assign(self, word: str) -> bool:
        """Take in ``NAME=value``, ``NAME+=value`` or ``NAME=(…)``; return whether ``word`` is one of them."""
        match = re.match(r"([A-Za-z_]\w*)(\+?)=", word)
        if match is None:
            return False
        name, adds, text = match[1], bool(match[2]), word[match.end() :]
        before = self._values.get(name, [] if text.startswith("(") else "")
        value: Value
        if text.startswith("(") and text.endswith(")"):
            items = [item for each in fields(text[1:-1]) for item in self.expand(each)]
            value = [*(before if isinstance(before, list) else [before]), *items] if adds else items
        else:
            single = self.text(text)
            value = (f"{before}{single}" if isinstance(before, str) else [*before, single]) if adds else single
        self._values[name] = value
        return True

    def set(self, name: str, value: str) -> None:
        """Give ``name`` a value."""
        self._values[name] = value

    def text(self, word: str) -> str:
        """Return a word as the one text that it is where nothing is divided, as behind ``=``."""
        return " ".join(self.expand(word, divides=False))

    def expand(self, word: str, *, divides: bool = True) -> list[str]:
        """Return the words that a word becomes: quotes taken off, values put in, lists and unquoted values divided."""
        found: list[str] = [""]
        is_there = self._expand_into(word, found, quoted=False, divides=divides)
        return found if is_there or any(found) else []

    def document(self, text: str) -> str:
        """Return the text of a here-document with values in it."""
        found = [""]
        self._expand_into(text, found, quoted=True, divides=False)
        return found[0]

    def _expand_into(self, word: str, found: list[str], *, quoted: bool, divides: bool) -> bool:
        """Append what a word becomes to ``found``; return whether it stays where that is empty."""
        is_there = False
        at = 0
        while at < len(word):
            end = closing(word, at) if not (quoted and word[at] in "'\"") else at + 1
            piece = word[at:end]
            if piece[0] == "\\" and len(piece) > 1:
                found[-1] += piece if quoted and piece[1] not in '$`"\\\n' else piece[1].replace("\n", "")
            elif piece[0] == "'" and not quoted:
                found[-1] += piece[1:].removesuffix("'")
                is_there = True
            elif piece[0] == '"' and not quoted:
                self._expand_into(piece[1:].removesuffix('"'), found, quoted=True, divides=False)
                is_there = True
            elif piece[0] in "$`":
                value, end = self._value(word, at)
                self._put(value, found, divides=divides and not quoted, lists=quoted or divides)
            else:
                found[-1] += piece
            at = end
        return is_there

    def _put(self, value: Value, found: list[str], *, divides: bool, lists: bool) -> None:
        items = value if isinstance(value, list) else [value]
        if divides:
            items = [part for item in items for part in item.split()]
        elif isinstance(value, list) and not lists:
            items = [" ".join(value)]
        if items:
            found[-1] += items[0]
            found.extend(items[1:])

    def _value(self, word: str, at: int) -> tuple[Value, int]:
        """Return what the expansion at a place comes to, and the place behind it."""
        end = closing(word, at)
        if word[at] == "`":
            return self._answer(word[at + 1 : end - 1]), end
        if word.startswith("$((", at):
            return self._number(word[at + 3 : end - 2]), end
        if word.startswith("$(", at):
            return self._answer(word[at + 2 : end - 1]), end
        if word.startswith("${", at):
            return self._reference(word[at + 2 : end - 1]), end
        match = _NAME.match(word, at + 1)
        if match is not None:
            return self._lookup(match[0]), match.end()
        if word[at + 1 : at + 2] and word[at + 1] in "0123456789@*#?$!-":
            return self._reference(word[at + 1]), at + 2
        return "$", at + 1

    def _known(self, name: str) -> Value | None:
        if name in self._values:
            return self._values[name]
        return os.environ.get(name) if _NAME.fullmatch(name) else None

    def _lookup(self, name: str) -> Value:
        value = self._known(name)
        if value is None:
            return kept(name)
        return value if isinstance(value, str) else (value[0] if value else "")

    def _reference(self, inside: str) -> Value:
        match = _REFERENCE.fullmatch(inside)
        if match is None:
            self.unread.append(f"${{{inside}}} was not understood, and is left out")
            return ""
        name, index, rest = match["name"], match["index"], match["rest"]
        if not _NAME.fullmatch(name):
            # Words of the command line, of which there are none.
            known: Value | None = None
        else:
            known = self._known(name)
        if index is not None and isinstance(known, list):
            known = known if index in ("@", "*") else self._item(known, index)
        elif isinstance(known, list):
            known = known[0] if known else ""
        if match["length"]:
            return str(len(known)) if known is not None else "0"
        if match["indirect"] and isinstance(known, str):
            return self._lookup(known)
        return self._changed(name, known, rest)

    def _item(self, values: list[str], index: str) -> str | None:
        number = self._number(index)
        return values[int(number)] if number.lstrip("-").isdigit() and int(number) < len(values) else None

    def _changed(self, name: str, known: Value | None, rest: str) -> Value:
        """Return a value after what follows its name in braces: a default, a part that is cut off, a replacement."""
        empty = known in (None, "", [])
        for mark, is_unset in ((":-", empty), (":=", empty), ("-", known is None), ("=", known is None)):
            if rest.startswith(mark):
                value = self.text(rest[len(mark) :]) if is_unset else known
                if is_unset and "=" in mark:
                    self.set(name, str(value))
                return value if value is not None else ""
        if rest.startswith((":+", "+")):
            return "" if empty else self.text(rest.lstrip(":")[1:])
        if known is None:
            return kept(name) if _NAME.fullmatch(name) else []
        if not rest or rest.startswith((":?", "?")):
            return known
        if isinstance(known, list):
            return [self._cut(item, rest) for item in known]
        return self._cut(known, rest)

    def _cut(self, value: str, rest: str) -> str:
        if rest in (",,", "^^"):
            return value.lower() if rest == ",," else value.upper()
        if rest.startswith(("#", "%")):
            mark, is_longest = rest[0], rest.startswith(("##", "%%"))
            return _without(value, self.text(rest[1 + is_longest :]), from_end=mark == "%", longest=is_longest)
        if rest.startswith("/"):
            pattern, _, new = rest.lstrip("/").partition("/")
            return value.replace(self.text(pattern), self.text(new), -1 if rest.startswith("//") else 1)
        part = re.fullmatch(r":\s*(-?\d+)(?::(\d+))?", rest)
        if part is not None:
            start = int(part[1])
            return value[start:] if part[2] is None else value[start:][: int(part[2])]
        self.unread.append(f"what follows the name in ${{…{rest}}} was not understood")
        return value

    def _answer(self, command: str) -> str:
        first = command.split()[:1]
        if first and first[0] in _COMMANDS:
            return _COMMANDS[first[0]]
        echoed = re.fullmatch(r"\s*echo\s+([^|;&]*)", command)
        if echoed is not None:
            return " ".join(item for word in fields(echoed[1]) for item in self.expand(word))
        if first and first[0] in ("dirname", "basename", "realpath", "readlink", "cd"):
            return "."
        self.unread.append(f"$({' '.join(command.split())}) is not run, and is left empty")
        return ""

    def _number(self, text: str) -> str:
        """Return the value of an expression of whole numbers."""
        written = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: self.text(f"${match[1]}"), text)
        try:
            return str(
                _calculated(ast.parse(written.strip().replace("/", "//").replace("////", "//"), mode="eval").body)
            )
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            self.unread.append(f"$(({text.strip()})) was not calculated, and is left empty")
            return ""


def _without(value: str, pattern: str, *, from_end: bool, longest: bool) -> str:
    """Return ``value`` without what ``pattern`` matches at its beginning, or at its end."""
    lengths = range(len(value), -1, -1) if longest else range(len(value) + 1)
    for length in lengths:
        part = value[len(value) - length :] if from_end else value[:length]
        if fnmatch.fnmatchcase(part, pattern):
            return value[: len(value) - length] if from_end else value[length:]
    return value


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _calculated(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _calculated(node.left), _calculated(node.right)
        if isinstance(node.op, ast.Pow) and not 0 <= right <= 64:
            raise ValueError(f"{right} is no exponent")
        value = _ARITHMETIC[type(node.op)](left, right)
        if abs(value) > _LARGEST:
            raise ValueError(f"{value} is too large")
        return value
    raise ValueError(f"{ast.dump(node)} is no arithmetic of whole numbers")
