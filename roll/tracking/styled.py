"""Lines of styled text, and frames around them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

_FRAME_STYLE = "bright_black"


def styled(text: str, style: str) -> Text:
    """Return text whose style ends with it: the style of ``Text(text, style)`` would pass to what is appended."""
    return Text().append(text, style)


def framed(lines: Iterable[Text], width: int, title: Text) -> list[Text]:
    """Return the lines in a frame that is ``width`` cells wide, each cut or filled to fit."""
    inner = max(0, width - 4)
    title = title.copy()
    title.truncate(max(0, width - 6), overflow="ellipsis")
    head = styled("╭─ ", _FRAME_STYLE).append_text(title)
    head.append(f" {'─' * (width - 5 - title.cell_len)}╮", _FRAME_STYLE)
    body = []
    for line in lines:
        fitted = line.copy()
        fitted.truncate(inner, overflow="ellipsis", pad=True)
        body.append(styled("│ ", _FRAME_STYLE).append_text(fitted).append(" │", _FRAME_STYLE))
    return [head, *body, styled(f"╰{'─' * (width - 2)}╯", _FRAME_STYLE)]
