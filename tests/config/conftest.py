from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from roll.config import AgenticConfig, ConfigError, load

EXAMPLES = Path(__file__).resolve().parents[2] / "roll" / "presets" / "config"


@pytest.fixture
def fails() -> Callable[..., ConfigError]:
    """Load a configuration that must be refused, and return the error."""

    def check(text: str, **options: object) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            load(OmegaConf.create(text), **options)  # type: ignore[arg-type]
        return caught.value

    return check


@pytest.fixture
def loads() -> Callable[[str], AgenticConfig]:
    """Load a configuration from YAML text."""
    return lambda text: load(OmegaConf.create(text))
