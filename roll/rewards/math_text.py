r"""Mathematical text in one spelling: without delimiters, spacing commands and fonts; words told apart from symbols."""

from __future__ import annotations

import re
from typing import Final

WORD_OPENS: Final = "\x02"
WORD_ENDS: Final = "\x03"
"""What stands around each word of a spelled text."""

_CHARACTERS: Final = str.maketrans(
    {
        **dict.fromkeys("−–—‒﹣－", "-"), "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/",
        "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "≈": r"\approx ",
        "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ", "±": r"\pm ", "²": "^2",
        "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "θ": r"\theta ", "∨": r"\vee ",
        "％": "%", "，": ",", "；": ";", "（": "(", "）": ")", "€": " ", "£": " ", "¥": " ", "₹": " ",
        WORD_OPENS: " ", WORD_ENDS: " ",
    }
)  # fmt: skip

_NO_SPACE = re.compile(
    r"(?<!\\)\\(?:!|displaystyle\b|textstyle\b|limits\b|left\b|right\b|[bB]ig{1,2}[lrm]?\b|mleft\b|mright\b)\.?"
)
_SPACE = re.compile(
    r"(?<!\\)\\[,;: >]|~|\\(?:quad|qquad|enspace|thinspace|hfill|newline)\b|\\[hv]space\*?\s*\{[^{}]*\}"
)
_DIGIT_GROUP = re.compile(r"(?<=\d)(?:,?(?:\\[,!;:> ]|\{,\})|,\\!)\s*(?=\d{3}(?!\d))")
_DELIMITER = re.compile(r"\\?\$|\\[()\[\]]")
_FONT = re.compile(
    r"\\(?P<font>text(?:normal|bf|it|rm|sf|tt|up)?|math(?:rm|bf|it|sf|tt|normal)|[mhf]box|boxed|bm|boldsymbol|emph)\s*"
    r"\{(?P<content>[^{}]*)\}"
)
_OLD_FONT = re.compile(r"\{\\(?:rm|bf|it)\s+([^{}]*)\}")
_LONGHAND = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:leqslant|le)(?![A-Za-z])", r"\\leq"),
        (r"\\(?:geqslant|ge)(?![A-Za-z])", r"\\geq"),
        (r"\\ne(?![A-Za-z])", r"\\neq"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\infin(?![A-Za-z])", r"\\infty"),
        (r"\\l?dots|\\cdots", r"\\ldots"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\%", "%"),
        (r"\^\{\\circ\}|\\degrees?(?![A-Za-z])", r"^\\circ"),
        (r"\*\*", "^"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*(\d)", r"\\frac\1{\2}"),
    )
)
_TWICE_ESCAPED = re.compile(r"\\\\(?=[A-Za-z])")
_BRACKET = re.compile(r"[()\[\]]|\\[{}]")
_THOUSANDS = re.compile(r"(?<![\d.,])(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+)(?![\d,]|\s+\d)")
_MIXED = re.compile(
    r"(?<![\d.,^_{/])(?P<whole>\d+)\s*(?:\s(?P<up>\d+)\s*/\s*(?P<down>\d+)"
    r"|\\frac\s*\{\s*(?P<above>\d+)\s*\}\s*\{\s*(?P<below>\d+)\s*\})(?![\d.^])"
)
_TEXT_LETTERS = re.compile(r"(?<![\\A-Za-z\x02])(?:[A-Za-z]{2,}(?!\x03)|[A-Za-z](?![\w\x03(]))")
_LETTERS = re.compile(r"(?<![\\A-Za-z_\x02])(?<!_\{)[A-Za-z]{2,}(?![A-Za-z\x03])")
_ROOT_OF = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_LONE_UNIT = re.compile(r"(?<=\d )[mgshLl](?=$|[,;])")

_FUNCTIONS: Final = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi max min lim gcd lcm mod det "
    "theta alpha beta gamma infty".split()
)
_SPELLED: Final = {"infinity": r"\infty", "inf": r"\infty", "percent": "%", "percentage": "%", "pct": "%"}
_SHORT_WORDS: Final = frozenset(
    "is of to it as at be by we so no if an on in or am pm cm mm km kg mg ml ft mi hr lb oz sq mph kph hrs lbs yr yrs "
    "kmh kw nm gb mb dr mr st nd rd th cts pts vs".split()
)


def spelled(text: str) -> str:
    r"""Return ``text`` in one spelling, with words marked.

    ``\dfrac12`` becomes ``\frac{1}{2}``, ``32,\!348`` becomes ``32348``, ``1 1/2`` and ``1\frac{1}{2}`` become
    ``(1+\frac{1}{2})``; ``\text{ cm}`` and ``apples`` become marked words. What is between digits stays between them:
    ``1 2`` is no ``12``.
    """
    text = text.translate(_CHARACTERS)
    is_table = r"\begin" in text
    if not is_table:
        text = _TWICE_ESCAPED.sub(r"\\", text).replace("\\\\", " ")
    text = _DIGIT_GROUP.sub(",", text)
    text = _SPACE.sub(" ", _NO_SPACE.sub("", text))
    text = _DELIMITER.sub(" ", text)
    for pattern, replacement in _LONGHAND:
        text = pattern.sub(replacement, text)
    text = _without_fonts(text)
    if not is_table:
        text = _ROOT_OF.sub(r"\\sqrt{\1}", _LETTERS.sub(_marked, text))
    text = " ".join(text.split())
    text = _LONE_UNIT.sub(lambda match: _word(match[0]), text)
    text = _THOUSANDS.sub(_ungrouped, text)
    return _MIXED.sub(_sum, text).strip()


def _ungrouped(match: re.Match[str]) -> str:
    """Return a number without separators of thousands; in brackets a comma separates coordinates."""
    before = _BRACKET.findall(match.string[: match.start()])
    in_brackets = sum(1 if each[-1] in "([{" else -1 for each in before) > 0
    return match[0].replace(" ", "") if in_brackets else re.sub(r"[, ]", "", match[0])


def folded(text: str) -> str:
    """Return a spelled text for comparison: words without case, no space but that between letters and digits."""
    text = re.sub(r"\x02([^\x03]*)\x03", lambda match: " " + match[1].casefold() + " ", text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text)


def _without_fonts(text: str) -> str:
    """Take fonts off, the innermost first; letters in them are words."""
    for _ in range(8):
        text, found = _FONT.subn(_content, _OLD_FONT.sub(r" \\text{\1} ", text))
        if not found:
            break
    return text


def _content(match: re.Match[str]) -> str:
    content = match["content"]
    before = match.string[: match.start()].rstrip()[-1:]
    is_symbol = len(content.strip()) == 1 and not (before.isdigit() or before == "}")
    if match["font"] in ("boxed", "fbox", "bm", "boldsymbol") or (match["font"].startswith("math") and is_symbol):
        return content
    mark = _unit if before.isdigit() or before == "}" else _text_word
    return f" {_TEXT_LETTERS.sub(mark, content)} "


def _text_word(match: re.Match[str]) -> str:
    is_label = len(match[0]) == 1 and match[0].isupper()
    return match[0] if is_label else _unit(match)


def _unit(match: re.Match[str]) -> str:
    return _SPELLED.get(match[0].lower(), _word(match[0]))


def _marked(match: re.Match[str]) -> str:
    run = match[0].lower()
    if match[0].isupper() and len(run) <= 3 and run not in ("and", "or", "am", "pm"):
        return match[0]  # a segment or a triangle
    if run in _SPELLED:
        return _SPELLED[run] + " "
    if run in _FUNCTIONS:
        return f"\\{run} "
    is_word = run in _SHORT_WORDS or (len(run) > 2 and any(letter in "aeiouy" for letter in run))
    return _word(match[0]) if is_word else match[0]


def _word(text: str) -> str:
    return f" {WORD_OPENS}{text}{WORD_ENDS} "


def _sum(match: re.Match[str]) -> str:
    above, below = match["up"] or match["above"], match["down"] or match["below"]
    if not 0 < int(above[:9]) < int(below[:9]):
        return match[0]  # no mixed number: 5 9/1, 1 0/2
    return rf"({match['whole']}+\frac{{{above}}}{{{below}}})"
