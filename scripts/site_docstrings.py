"""How docstrings are read for the site, where Griffe reads them otherwise: named in ``mkdocs.yml``."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Singular(griffe.Extension):
    """Takes ``Example:`` for the section that Griffe calls ``Examples:``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one class, function or module."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
