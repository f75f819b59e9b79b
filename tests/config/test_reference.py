"""The page in docs/ holds every key, as the models have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config import AgenticConfig
from roll.config.reference import insert_reference, reference_markdown
from roll.config.validation import sections

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert insert_reference(page) == page, "run python scripts/generate_config_reference.py"


def test_every_key_is_documented() -> None:
    reference = reference_markdown()
    for path, model in sections(AgenticConfig):
        for name, field in model.model_fields.items():
            assert field.description, f"{path}.{name} has no description"
            assert f"| `{name}`" in reference, f"{path}.{name} is not in the reference"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers"):
        insert_reference("# Configuration")
