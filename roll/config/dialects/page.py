"""The tables of the dialects as the page ``docs/dialects.md`` shows them."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.guides import GUIDES
from roll.config.dialects.rows import Guide, Row
from roll.config.presets import PRESETS

BEGIN: Final = "<!-- dialects:start -->"
END: Final = "<!-- dialects:end -->"


def render_dialects() -> str:
    """Return the presets and every key of every guide as Markdown tables."""
    return "\n\n".join([_presets(), *(_guide(guide) for guide in GUIDES)])


def insert_dialects(page: str) -> str:
    """Return ``page`` with the tables between its markers replaced by those of the code.

    Raises:
        ValueError: The page has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the markers {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{render_dialects()}\n\n{END}{after}"


def _presets() -> str:
    lines = ["## Presets (`algorithm_type`)", "", "| Preset | Fills, where unset |", "|---|---|"]
    for name, settings in PRESETS.items():
        filled = ", ".join(f"`{key}: {value}`" for key, value in settings.items())
        lines.append(f"| `{name}` | {filled or 'nothing'} |")
    return "\n".join(lines)


def _guide(guide: Guide) -> str:
    lines = [f"## {guide.name}", ""]
    if guide.short:
        listed = ", ".join(f"`{short}` for `{path}`" for short, path in guide.short.items())
        lines += [f"Short forms: {listed}.", ""]
    lines += ["| Key | Here | |", "|---|---|---|"]
    lines += [_line(row) for row in guide.rows if row.targets]
    checked = [row for row in guide.rows if not row.targets and (row.only is not None or row.convert is not None)]
    if checked:
        lines += ["", "Accepted with these values only:", "", "| Key | Values | Otherwise |", "|---|---|---|"]
        lines += [f"| `{row.key}` | {_values(row)} | {_cell(row.note)} |" for row in checked]
    reasons: dict[str, list[str]] = {}
    for row in guide.rows:
        if not row.targets and row.only is None and row.convert is None:
            reasons.setdefault(row.note, []).append(f"`{row.key}`")
    if reasons:
        lines += ["", "Accepted without effect, with a warning:", ""]
        lines += [f"- {reason}: {', '.join(keys)}" for reason, keys in reasons.items()]
    return "\n".join(lines)


def _line(row: Row) -> str:
    return f"| `{row.key}` | {', '.join(f'`{target}`' for target in row.targets)} | {_cell(row.note)} |"


def _values(row: Row) -> str:
    if row.only is None:
        return "any"
    return ", ".join(f"`{_yaml(value)}`" for value in dict.fromkeys(map(_yaml, row.only)))


def _yaml(value: object) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
