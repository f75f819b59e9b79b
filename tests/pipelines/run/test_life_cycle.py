"""The life cycle of a run that samples nothing."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from roll.config import ConfigError, RunError
from roll.distributed import Cluster, call_watch
from roll.distributed import cluster as clusters
from roll.runs.outcome import State, read_outcome
from roll.tracking.local import JsonlTracker
from tests.pipelines.run.fit import Fit, fit


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for file in sorted(folder.glob("logs/*.jsonl")) for line in file.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


@pytest.mark.processes
def test_a_run_that_is_killed_and_resumed_is_the_run_that_was_not(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.pipelines.run.fit", str(tmp_path / "killed")], capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = fit(tmp_path / "killed", resume_from_checkpoint=True)

    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")
    assert len(losses(tmp_path / "whole")) == 10
    assert whole.before == resumed.before and whole.after == resumed.after
    assert resumed.after["val/reward"] > resumed.before["val/reward"]
    states = [torch.load(tmp_path / name / "checkpoints/step=000010/fit.pt")[0] for name in ("whole", "killed")]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])

    parts = {module.split(".")[1] for module in killed.stdout.split() if module.startswith("roll.")}
    assert not parts & {"strategies", "schedulers", "env_managers", "envs", "workers", "rewards", "trajectories"}
    assert "run" in {module.split(".")[2] for module in killed.stdout.split() if module.startswith("roll.pipelines.")}


def test_what_fails_between_two_steps_leaves_the_last_complete_one_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(self: Fit, step: int) -> None:
        if step == 5:
            raise FloatingPointError("the loss is not finite.")
        await honest(self, step)

    honest = Fit.step
    monkeypatch.setattr(Fit, "step", step)
    with pytest.raises(RunError, match=r"the loss is not finite\.\nThe newest checkpoint is .*step=000004\. Continue"):
        fit(tmp_path)


def test_what_fails_in_a_change_saves_nothing_half_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(self: Fit, step: int) -> None:
        with self.changing(step):
            if step == 5:
                raise FloatingPointError("the loss is not finite.")

    monkeypatch.setattr(Fit, "step", step)
    with pytest.raises(RunError, match=r"step=000003\. Continue"):
        fit(tmp_path)


def test_a_part_that_is_given_up_is_not_somebody_who_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(self: Fit, step: int) -> None:
        with self.changing(step):
            pass
        if step == 3:
            asked = asyncio.get_running_loop().create_future()
            asked.cancel()
            await asked

    monkeypatch.setattr(Fit, "step", step)
    with pytest.raises(RuntimeError, match="nobody stopped the run"):
        fit(tmp_path)
    ended = read_outcome(tmp_path)
    assert ended is not None and ended.state is State.FAILED
    assert (tmp_path / "checkpoints/step=000003").is_dir()


def test_a_run_with_another_seed_is_not_resumed(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=1)
    with pytest.raises(ConfigError, match="seed"):
        fit(tmp_path, resume_from_checkpoint=True, seed=7)


def test_trackers_hear_of_a_worker_that_hangs_in_the_thread_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def assemble(self: Fit, cluster: Cluster) -> None:
        self.cluster = cluster
        await assembled(self, cluster)

    async def step(self: Fit, step: int) -> None:
        if step == 4:
            with self.cluster.watch.call("actor_train", ["rank 1"], "train_step"):
                await asyncio.wait_for(heard.wait(), 30)
        await honest(self, step)

    def log_note(self: JsonlTracker, text: str, step: int) -> None:
        threads.append(threading.current_thread())
        written(self, text, step)
        heard.set()

    heard, threads = asyncio.Event(), list[threading.Thread]()
    assembled, honest, written = Fit.assemble, Fit.step, JsonlTracker.log_note
    for name, method in (("assemble", assemble), ("step", step)):
        monkeypatch.setattr(Fit, name, method)
    monkeypatch.setattr(JsonlTracker, "log_note", log_note)
    monkeypatch.setattr(call_watch, "_FIRST_SECONDS", 0.1)
    monkeypatch.setattr(clusters, "CallWatch", partial(call_watch.CallWatch, look_every=0.01))
    fit(tmp_path, progress="lines")
    lines = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    (note,) = [line for line in lines if "note" in line]
    assert note["step"] == 3 and note["note"].startswith("actor_train rank 1: train_step has been under way for 0 s")
    assert f"warning: {note['note']}" in capsys.readouterr().out
    assert threads == [threading.main_thread()]
