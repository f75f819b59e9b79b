"""The texts around an observation, with placeholders that leave all other braces alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from roll.common.spelling import nearest
from roll.rendering import PICTURE, without_pictures

Show = Literal["text", "picture", "both"]
"""What the policy sees of a state."""

SYSTEM_PLACEHOLDERS = frozenset({"instruction", "max_response_length", "max_steps"})
TURN_PLACEHOLDERS = frozenset(
    {"turn_idx", "observation", "actions_left", "max_response_length", "max_steps", "instruction"}
)

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class Templates:
    """What the policy is told.

    Only a known name in braces is a placeholder: JSON in a template, and anything in an observation, stays as it is.
    ``{{name}}`` writes ``{name}``.

    Attributes:
        agent_system_template: The system message; ``{instruction}``, ``{max_response_length}`` (tokens) and
            ``{max_steps}`` are filled in. Empty for no system message.
        agent_template: The message of every turn; also ``{turn_idx}`` (from 1), ``{observation}`` and
            ``{actions_left}`` (this turn included).
        show: What stands for ``{observation}``: its text, the environment's picture, or the picture above the text.

    Raises:
        ValueError: If a template has an unknown placeholder, or ``agent_template`` never shows the observation.
    """

    agent_system_template: str = "{instruction}"
    agent_template: str = "{observation}"
    show: Show = "text"
    _system: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _turn: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        system = _parts("agent_system_template", self.agent_system_template, SYSTEM_PLACEHOLDERS)
        turn = _parts("agent_template", self.agent_template, TURN_PLACEHOLDERS)
        if "observation" not in turn[1::2]:
            raise ValueError("agent_template has no {observation}: the policy would never see the environment")
        object.__setattr__(self, "_system", system)
        object.__setattr__(self, "_turn", turn)

    def system(self, values: Mapping[str, object]) -> str:
        """Return the system message for ``values`` (keys: ``SYSTEM_PLACEHOLDERS``)."""
        return _fill(self._system, values)

    def turn(self, values: Mapping[str, object]) -> str:
        """Return the message of a turn for ``values`` (keys: ``TURN_PLACEHOLDERS``)."""
        if self.show != "text":
            values = {**values, "observation": self._with_picture(str(values["observation"]))}
        return _fill(self._turn, values)

    def _with_picture(self, observation: str) -> str:
        return PICTURE if self.show == "picture" else f"{PICTURE}\n{without_pictures(observation)}"


def _parts(key: str, template: str, known: frozenset[str]) -> tuple[str, ...]:
    """Split into literal text at even and placeholder names at odd positions."""
    parts = [""]
    position = 0
    for match in _PLACEHOLDER.finditer(template):
        parts[-1] += template[position : match.start()]
        position = match.end()
        escaped, name = match.groups()
        if escaped is not None:
            parts[-1] += "{" + escaped + "}"
            continue
        if name not in known:
            close = nearest(name, known)
            advice = f"did you mean {{{close}}}?" if close else f"known: {', '.join(sorted(known))}."
            raise ValueError(
                f"{key}: unknown placeholder {{{name}}}; {advice} Write {{{{{name}}}}} for the literal text."
            )
        parts += [name, ""]
    parts[-1] += template[position:]
    return tuple(parts)


def _fill(parts: tuple[str, ...], values: Mapping[str, object]) -> str:
    return "".join(str(values[part]) if index % 2 else part for index, part in enumerate(parts))
