"""Chat templates by name, as text, or in a file: for models that have none, and in place of a model's own."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, TemplateSyntaxError

from roll.common.spelling import nearest
from roll.rendering.errors import ChatTemplateError

NATIVE: Final = "native"
"""The name of the tokenizer's own template."""

# Hugging Face lets templates mark what the assistant says; it means nothing to whoever only renders.
_GENERATION_TAG = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_FOLDER = Path(__file__).parent / "chat_templates"
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class _Named:
    """A template that comes with the package.

    Attributes:
        file: Which one.
        tokens: What the tokenizer must have as single tokens, or a turn would have no end.
        variables: Set before the template.
        macros: A file of macros that it uses.
    """

    file: str
    tokens: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    macros: str | None = None

    def text(self) -> str:
        """Return the Jinja source."""
        settings = "".join(f"{{%- set {name} = {value!r} -%}}" for name, value in self.variables.items())
        files = [self.file] if self.macros is None else [self.macros, self.file]
        return settings + "".join((_FOLDER / file).read_text(encoding="utf-8") for file in files)


_HELPFUL = {"default_system": "You are a helpful assistant."}
_CALLS = "hermes_calls.jinja"

NAMED: Final[Mapping[str, _Named]] = {
    "chatml": _Named("chatml.jinja", _CHATML_TOKENS, macros=_CALLS),
    "qwen2_5": _Named("qwen2_5.jinja", _CHATML_TOKENS, macros=_CALLS),
    "qwen2-vl": _Named("chatml.jinja", _CHATML_TOKENS, _HELPFUL, macros=_CALLS),
    "qwen3": _Named("qwen3.jinja", _CHATML_TOKENS, macros=_CALLS),
    "llama3": _Named("llama3.jinja", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "plain": _Named("plain.jinja"),
    "user_assistant": _Named("user_assistant.jinja"),
}
"""Templates by name. ``plain`` and ``user_assistant`` need no control tokens: they are for base models."""


def template_text(template: str) -> str:
    """Return the Jinja source of a template.

    Args:
        template: A name of :data:`NAMED`, the text of a Jinja template, or the path of a file with one.

    Raises:
        ChatTemplateError: If it is none of these, or no valid Jinja.
    """
    if template in NAMED:
        return NAMED[template].text()
    if "{{" in template or "{%" in template:
        text, where = template, "the text"
    else:
        text, where = _read(template), template
    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_GENERATION_TAG.sub("", text))
    except TemplateSyntaxError as error:
        message = f"{where} is no valid Jinja template: {error.message} (line {error.lineno})."
        raise ChatTemplateError(message, f"correct it, or use a known one: {_known()}.") from error
    return text


def with_template(tokenizer: Any, template: str | None) -> Any:
    """Return a tokenizer that renders conversations by ``template``.

    Args:
        tokenizer: A Hugging Face tokenizer.
        template: As :func:`template_text` takes it; ``native`` or ``None`` for the tokenizer's own.

    Returns:
        ``tokenizer`` itself, or a copy with the other template.

    Raises:
        ChatTemplateError: If there is no such template, or the tokenizer lacks tokens that it needs.
    """
    if template is None or template == NATIVE:
        return tokenizer
    text = template_text(template)
    missing = [token for token in _needed(template) if token not in tokenizer.get_vocab()]
    if missing:
        message = f"the tokenizer has no token {missing[0]}, with which the template {template} marks turns."
        fix = "use plain or user_assistant, which need no such tokens, or a template with this tokenizer's own."
        raise ChatTemplateError(message, fix)
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = text
    return changed


def _needed(template: str) -> tuple[str, ...]:
    return NAMED[template].tokens if template in NAMED else ()


def _read(template: str) -> str:
    path = Path(template).expanduser()
    close = nearest(template, [NATIVE, *NAMED])
    meant = f"did you mean {close}? Otherwise " if close is not None else ""
    fix = f"{meant}use {_known()}, `native` for the model's own, or the text or the file of a Jinja template."
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ChatTemplateError(f"{template!r} is no known chat template and no file.", fix) from None
    except (OSError, ValueError) as error:
        raise ChatTemplateError(f"{template!r} cannot be read: {error}.", fix) from error


def _known() -> str:
    return ", ".join(NAMED)
