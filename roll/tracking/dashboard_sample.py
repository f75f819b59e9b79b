"""The dashboard's look at an episode: what the policy was asked and what it answered, as it is written."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from roll.config.plain_text import plain_text
from roll.tracking.progress import Sample
from roll.tracking.styled import framed, styled

LEAST_HEIGHT = 5

_MOST_CHARACTERS = 8000  # more fits on no screen, and a line may be long
_BETWEEN = " │ "
_SIDE_BY_SIDE = 100


def sample_panel(when: str, sample: Sample, width: int, height: int) -> list[Text]:
    """Return an episode in a frame of ``height`` lines: turns side by side, or a question beside its answer.

    Args:
        when: What it is of.
        sample: Text of strangers: control codes in it are shown and not obeyed.
        width: Cells.
        height: Lines, the frame included.
    """
    parts = [plain_text(sample.title), when, sample.outcome]
    parts += [] if sample.score is None else [f"score {sample.score:.2f}"]
    title = styled("response", "bold").append("".join(f" · {part}" for part in parts if part), "dim")
    inner, rows = width - 4, height - 2
    asked = [_lines(asked, last=True) for asked, _ in sample.turns]
    answered = [_lines(answer, last=False) for _, answer in sample.turns]
    if len(sample.turns) > 1:
        widest = max(cell_len(line) for block in (*asked, *answered) for line in block)
        each = max(12, min(widest, (inner - len(_BETWEEN)) // 2))
        fit = max(1, (inner + len(_BETWEEN)) // (each + len(_BETWEEN)))
        columns = [_turn(*turn, each, rows) for turn in list(zip(asked, answered, strict=True))[-fit:]]
    elif inner >= _SIDE_BY_SIDE:
        each = (inner - len(_BETWEEN)) // 2
        question = [styled(line, "dim") for line in _wrapped(asked[0], each)[-rows:]]
        columns = [_padded(question, each, rows), _padded(_answer(answered[0], each, rows), each, rows)]
    else:
        columns = [_turn(asked[0], answered[0], inner, rows)]
    body = [styled(_BETWEEN, "bright_black").join(cells) for cells in zip(*columns, strict=True)]
    return framed(body, width, title)


def _lines(text: str, *, last: bool) -> list[str]:
    """Return the last or the first lines of a text, fit for a terminal, without the empty ones around them."""
    part = text[-_MOST_CHARACTERS:] if last else text[:_MOST_CHARACTERS]
    return plain_text(part).expandtabs(4).strip("\n ").split("\n") if part.strip() else []


def _wrapped(lines: list[str], width: int) -> list[str]:
    return [piece for line in lines for piece in (chop_cells(line, width) or [""])]


def _answer(lines: list[str], width: int, rows: int) -> list[Text]:
    """Return the first rows of an answer; where there are more, the last one says so."""
    if not lines:
        return [styled("(empty)", "dim")]
    wrapped = _wrapped(lines, width)
    shown = [styled(line, "bold") for line in wrapped[:rows]]
    if len(wrapped) > rows:
        shown[-1] = styled(f"… {len(wrapped) - rows + 1} more lines", "dim")
    return shown


def _turn(asked: list[str], answered: list[str], width: int, rows: int) -> list[Text]:
    """Return the end of a question above its answer, which gets at least a good half of the room."""
    question = _wrapped(asked, width)
    answer = _answer(answered, width, max(rows - len(question), (rows + 1) // 2))
    kept = question[-(rows - len(answer)) :] if rows > len(answer) else []
    return _padded([*(styled(line, "dim") for line in kept), *answer], width, rows)


def _padded(lines: list[Text], width: int, rows: int) -> list[Text]:
    """Return exactly ``rows`` lines of exactly ``width`` cells."""
    padded = []
    for line in lines:
        fitted = styled(set_cell_size(line.plain, width), str(line.spans[0].style) if line.spans else "")
        padded.append(fitted)
    return padded + [Text(" " * width)] * (rows - len(padded))
