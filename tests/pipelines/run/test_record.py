"""The command, the commit and the versions that a run is recorded with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from roll.config import AgenticConfig
from roll.config.loading import check
from roll.pipelines.run.record import RunRecord


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def recorded(**keys: object) -> RunRecord:
    words = ["start.py", "--config-name", "x", "tracker_kwargs.wandb.api_key=sk-1", "exp_name='my run'"]
    return RunRecord.of(check(OmegaConf.create(keys), kind=AgenticConfig, command=words))


def test_the_commit_of_the_working_directory_and_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert recorded().about["git"] is None
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "x")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "untracked").write_text("1")
    assert recorded().about["git"] == {"repository": str(tmp_path), "commit": commit, "changed": False}
    (tmp_path / "a.py").write_text("2")
    record = recorded()
    assert record.about["git"]["changed"] and f"# commit {commit} with changes" in record.text


def test_command_and_versions_are_recorded_without_secrets(tmp_path: Path) -> None:
    record = recorded(tracker_kwargs={"wandb": {"api_key": "sk-1"}}, exp_name="my run")
    record.write(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    command = "python start.py --config-name x 'tracker_kwargs.wandb.api_key=***' 'exp_name='\"'\"'my run'\"'\"''"
    assert about["command"] == command and f"# $ {command}" in (tmp_path / "config.yaml").read_text()
    assert {"roll", "python", "torch", "transformers"} <= about["versions"].keys()
    assert "sk-1" not in (tmp_path / "run.json").read_text() + (tmp_path / "config.yaml").read_text()


def test_a_checkpoint_without_a_record_has_no_differences(tmp_path: Path) -> None:
    assert recorded().differences(tmp_path) == []
    recorded(seed=1).write(tmp_path)
    assert recorded(seed=2).differences(tmp_path) == ["seed: 1 → 2"]
