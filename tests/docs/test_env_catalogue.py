import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import roll.envs
from roll.envs.builtin import _TAGS, _TYPES
from tests import programs

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate_env_catalogue.py"
IDLE = {"machine": "2 x Chip", "idle": True}


@pytest.fixture(scope="module")
def catalogue() -> Any:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("generate_env_catalogue", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cost(**changes: Any) -> Mapping[str, Any]:
    """A row of figures of FrozenLake."""
    row = {"steps_per_second": 135000.0, "resets_per_second": 0.21, "kib": 1536.0, "characters": 394, "tokens": 125}
    return {**row, **IDLE, **changes}


@pytest.mark.processes
@pytest.mark.skipif(not Path("/usr/games/advent").exists(), reason="the package open-adventure is not installed")
def test_the_catalogue_shows_what_the_tags_are():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = programs.run([sys.executable, str(SCRIPT), "--check"], ROOT, environment, 120)
    assert result.returncode == 0, result.stderr  # which also has what Python says of a package that it compiles first


def test_a_tag_is_shown_with_what_was_measured_of_it(catalogue: Any) -> None:
    line = catalogue._line("FrozenLake", cost(), True)
    assert line.endswith("| 125 | 135,000 | 0.21 | 1,536 | [yes](#frozenlake) |\n")
    assert catalogue._line("FrozenLake", None, False).endswith(f"|{' not measured |' * 4} no |\n")


def test_tokens_of_another_prompt_are_not_shown(catalogue: Any) -> None:
    assert "| not measured | 135,000 |" in catalogue._line("FrozenLake", cost(characters=393), True)
    assert "| not measured | 135,000 |" in catalogue._line("FrozenLake", cost(tokens=None), True)


def test_the_page_says_on_what_and_beside_what_was_measured(catalogue: Any) -> None:
    rows = dict.fromkeys(roll.envs.TAGS, cost())
    assert catalogue._circumstances(rows).startswith("Measured on 2 × Chip, with no other work on the machine.\n")
    told = catalogue._circumstances({**rows, "Taxi": cost(idle=False)})
    assert "Measured (`Taxi`) on 2 × Chip, beside other work" in told and "`SimpleSokoban`" in told
    assert "was not installed" in catalogue._circumstances({"Taxi": cost()}) and "was not installed" not in told


def test_every_tag_and_every_type_without_one_has_its_words(catalogue: Any) -> None:
    # Other tests may have registered more than comes with the package.
    assert set(catalogue.WHAT) == {tag.name for tag in _TAGS}
    tagged = {tag.env_type for tag in _TAGS}
    assert set(catalogue.SOURCES) == tagged
    assert set(catalogue.UNTAGGED) == set(_TYPES) - tagged


def test_another_picture_is_told_from_a_stored_one(catalogue: Any, tmp_path: Path) -> None:
    image = np.full((8, 8, 3), 100, dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "level.png")
    assert catalogue.is_stored(image, tmp_path / "level.png")
    assert catalogue.is_stored(image + 1, tmp_path / "level.png")  # as another version of a library may draw it
    moved = image.copy()
    moved[:2, :2] = 255
    assert not catalogue.is_stored(moved, tmp_path / "level.png")
    assert not catalogue.is_stored(image[:4], tmp_path / "level.png")
    assert not catalogue.is_stored(image, tmp_path / "no.png")


def test_levels_that_look_alike_share_a_picture(catalogue: Any) -> None:
    image = np.zeros((4, 4, 3), dtype=np.uint8)
    assert catalogue.shared({"A": image, "B": image + 1, "C": image.copy()}) == {
        "A": "A.png",
        "B": "B.png",
        "C": "A.png",
    }


def test_pictures_are_small(catalogue: Any) -> None:
    files = list(catalogue.PICTURES.glob("*.png"))
    assert files and max(path.stat().st_size for path in files) <= 30 * 1024
