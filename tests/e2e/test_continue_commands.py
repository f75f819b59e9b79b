"""The command that a run prints to go on with, typed in: for files and keys in the spelling of other guides."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.e2e.support import ROOT, command, rows, start

TRINITY = """
project: {project}
name: run
checkpoint_root_dir: out
continue_from_checkpoint: true
"""

NATIVE = ("exp_name:", "output_dir:", "max_steps:")


def trinity_file(project: str) -> str:
    """The configuration of Sokoban with the folders in the spelling of Trinity-RFT."""
    lines = (ROOT / "roll" / "presets" / "config" / "sokoban.yaml").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith(NATIVE)) + TRINITY.format(project=project)


def continue_with(output: str, folder: Path) -> None:
    """Type in the command that is printed for the checkpoint."""
    (line,) = (line.strip() for line in output.splitlines() if "resume_from_checkpoint=true" in line)
    done = start(shlex.split(line.removeprefix("$ ")), folder)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.exhaustive
def test_the_printed_command_goes_on_in_the_spelling_of_file_and_command_line(tmp_path: Path) -> None:
    for project in ("one", "two"):
        (tmp_path / f"{project}.yaml").write_text(trinity_file(project))
    words = [word for word in command("--config-dir", str(tmp_path), config="one") if not word.startswith("max_steps=")]
    done = start([*words, "eval_steps=0", "trainer.total_training_steps=1", "trainer.resume_mode=disable"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in rows(tmp_path / "out" / "one" / "run")] == [1]
    continue_with(done.stdout, tmp_path)
    assert [row["step"] for row in rows(tmp_path / "out" / "one" / "run")] == [1, 2]
    # Another project with the same name does not take up these weights.
    other = ["two" if word == "one" else word for word in words]
    done = start([*other, "eval_steps=0", "max_steps=0"], tmp_path)
    assert "No checkpoint in out/two/run/checkpoints to resume from" in done.stdout
