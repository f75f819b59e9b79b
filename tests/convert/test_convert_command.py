"""``roll convert`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from roll.cli.convert import app

_TEXT = """verl.trainer.main_ppo
data.train_files=train.parquet
actor_rollout_ref.model.path=${oc.env:MODEL_OF_ANOTHER_MACHINE}
custom_reward_function.path=grade.py
actor_rollout_ref.rollout.n=4
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of overrides in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("grade.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1\n"
    )
    Path("job.txt").write_text(_TEXT)
    return "job.txt"


def test_the_configuration_goes_to_a_file_and_the_report_beside_it(job: str) -> None:
    result = CliRunner().invoke(app, [job, "--out", "native/job.yaml"])

    assert result.exit_code == 0, result.output
    assert "5 translated" not in result.stdout
    assert "actor_rollout_ref.rollout.n" in result.stderr
    native = yaml.safe_load(Path("native/job.yaml").read_text())
    assert native["num_return_sequences_in_group"] == 4
    assert native["pretrain"] == "${oc.env:MODEL_OF_ANOTHER_MACHINE}"


def test_what_cannot_be_used_ends_with_code_2(job: str) -> None:
    Path(job).write_text(f"{_TEXT}actor_rollout_ref.rollout.temprature=1\n")

    result = CliRunner().invoke(app, [job, "--json"])

    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["problems"]


def test_a_system_that_there_is_not_is_refused(job: str) -> None:
    result = CliRunner().invoke(app, [job, "--from", "word"])

    assert result.exit_code == 2
    assert "'word' is none of roll, verl" in " ".join(result.stderr.split())
