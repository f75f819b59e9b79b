r"""Whether a response has the right shape: tags in their order, or steps one can follow."""

from __future__ import annotations

import re
from typing import Final

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.registry import register_verifier

THINK_ANSWER: Final = r"\s*<think>(.*?)</think>\s*<answer>(.*?)</answer>\s*"
"""The default of ``format``: both tags in order, white space around them free."""

STRICT_THINK_ANSWER: Final = r"<think>\n(.*?)\n</think>\n<answer>\n(.*?)\n</answer>"
"""The default of ``strict_format``: each tag on a line of its own, nothing before or after."""

STEP_MARKER: Final = (
    r"^[ \t]*(?:\*\*|#+ *)?(?:Step \d+|\d+[.)](?=\s)|[-*](?=\s)|First,|Second,|Third,|Next,|Then,|Finally,)"
)
"""The default of ``step``: a marker at the start of a line."""

_TAGS: Final = ("<think>", "</think>", "<answer>", "</answer>")


class _Shape:
    """1 if the whole response matches, else 0.

    Args:
        pattern: A regular expression for the whole response; ``.`` matches line ends too.
        each_tag_once: Whether the four tags must occur once each, so that a second one cannot hide inside the first.
        prefix: What the prompt has already opened; it is put before the response.
    """

    def __init__(self, pattern: str, each_tag_once: bool, prefix: str) -> None:
        self._pattern = _compiled(pattern, re.DOTALL)
        self._each_tag_once = each_tag_once
        self._prefix = prefix

    async def __call__(self, request: RewardRequest) -> Verdict:
        text = self._prefix + request.response
        if self._each_tag_once and any(text.count(tag) != 1 for tag in _TAGS):
            return Verdict(0.0)
        return Verdict(float(self._pattern.fullmatch(text) is not None))


@register_verifier("format")
class Format(_Shape):
    r"""``<think>…</think><answer>…</answer>`` in this order, each tag once, free white space around; 1 or 0.

    Args:
        pattern: Another regular expression for the whole response, instead of this shape (tags are then not counted).
        prefix: What the prompt has already opened (``<think>``); it is put before the response.
    """

    def __init__(self, pattern: str | None = None, prefix: str = "") -> None:
        super().__init__(THINK_ANSWER if pattern is None else pattern, pattern is None, prefix)


@register_verifier("strict_format")
class StrictFormat(_Shape):
    r"""As ``format``, with exactly the line ends of :data:`STRICT_THINK_ANSWER`; 1 or 0.

    Args:
        pattern: Another regular expression for the whole response, instead of this shape (tags are then not counted).
        prefix: What the prompt has already opened (``<think>``); it is put before the response.
    """

    def __init__(self, pattern: str | None = None, prefix: str = "") -> None:
        super().__init__(STRICT_THINK_ANSWER if pattern is None else pattern, pattern is None, prefix)


@register_verifier("step")
class Steps:
    """Share of the step markers one hopes for: ``min(1, markers / target)``.

    Args:
        target: Markers that earn the full score; more earn nothing further.
        pattern: Regular expression of a marker; ``^`` matches at each line.
    """

    def __init__(self, target: int = 3, pattern: str = STEP_MARKER) -> None:
        if target < 1:
            raise ValueError(f"target={target}: must be at least 1 marker")
        self._target = target
        self._pattern = _compiled(pattern, re.MULTILINE)

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Count the markers."""
        markers = sum(1 for _ in self._pattern.finditer(request.response))
        return Verdict(min(1.0, markers / self._target), {"markers": float(markers)})


def _compiled(pattern: str, flags: re.RegexFlag) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ValueError(f"pattern={pattern!r} is no regular expression: {error}") from error
