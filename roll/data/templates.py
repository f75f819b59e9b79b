"""The chat template of a data set (``data_args.template``)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from roll.data.errors import DataError


def with_template(tokenizer: Any, template: str | None) -> Any:
    """Return a tokenizer that renders conversations by ``template``.

    Args:
        tokenizer: A Hugging Face tokenizer.
        template: ``native`` or ``None`` for the tokenizer's own, the text of a Jinja template, or the path of a file
            with one.

    Returns:
        ``tokenizer`` itself, or a copy with the other template.

    Raises:
        DataError: If ``template`` is neither.
    """
    if template is None or template == "native":
        return tokenizer
    if "{{" in template or "{%" in template:
        text = template
    else:
        path = Path(template).expanduser()
        if not path.is_file():
            fix = "use `native` for the model's own template, or give the text or the file of a Jinja template."
            raise DataError(f"`template: {template}` is neither a chat template nor a file.", fix)
        text = path.read_text(encoding="utf-8")
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = text
    return changed
