"""YAML files, and folders of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config.errors import ConfigError
from roll.convert import read


def test_numbers_are_numbers_as_in_a_native_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("a: {lr: 1e-6, text: '1e-6', also: '${a.lr}', home: '${oc.env:NOBODY_SETS_THIS}/x'}\n")

    tree = read([path]).tree["a"]

    assert (tree["lr"], tree["text"], tree["also"]) == (1e-6, "1e-6", 1e-6)


@pytest.mark.parametrize(
    ("text", "message"), [("- 1\n", "no keys"), ("a: [\n", "no YAML"), ("a: ${b}\n", "Interpolation key")]
)
def test_what_cannot_be_read_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read([path])


def test_a_folder_wants_the_name_of_one_of_its_configurations(tmp_path: Path) -> None:
    (tmp_path / "sokoban.yaml").write_text("max_steps: 3\n")

    assert read([tmp_path, "sokoban"]).tree == read([tmp_path, "sokoban.yaml"]).tree == {"max_steps": 3}
    with pytest.raises(ConfigError, match=r"name one of its configurations after it \(sokoban\)"):
        read([tmp_path])
    with pytest.raises(ConfigError, match="choose from sokoban"):
        read([tmp_path, "lake"])
    with pytest.raises(ConfigError, match="no such file"):
        read([tmp_path / "nothing.yaml"])
