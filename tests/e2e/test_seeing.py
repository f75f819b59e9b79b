"""A run leaves traces of all its episodes and profiles of the steps that were asked for, and goes on with them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from roll.config import ConfigError
from roll.pipelines.agentic import run_agentic
from tests.e2e.support import small_config

SEEN = {
    "max_steps": 2,
    "save_steps": 1,
    "eval_steps": 0,
    "tracing": "file",
    "profile": "{steps: [2], roles: [actor_train, actor_infer], memory: true}",
}


def test_a_run_is_traced_and_profiled(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_agentic(small_config(out, **SEEN))
    (path,) = (out / "profile").rglob("*.*")  # on a CPU no snapshot beside it
    assert path == out / "profile" / "step=000002" / "actor_train-0.json"
    events = json.loads(path.read_text())["traceEvents"]
    computed = Counter(event.get("name") for event in events)
    assert computed["aten::mm"] + computed["aten::addmm"] > 10 and any("Backward" in str(name) for name in computed)
    allocated = [event["args"]["Bytes"] for event in events if event.get("name") == "[memory]"]
    assert max(allocated) > 1000 and min(allocated) < -1000, "taken and given back"
    before = json.loads((out / "logs" / "trace.json").read_text())
    begun = Counter(event["name"] for event in before if event["ph"] == "b")
    assert begun["trajectory"] == begun["reset"] == begun["train"] == begun["store"] == begun["turn 1"] == 2 * 16
    assert begun["generate"] == begun["environment"] >= begun["turn 1"] and begun["rollout"] == begun["update"] == 2
    run_agentic(small_config(out, **{**SEEN, "max_steps": 3, "resume_from_checkpoint": "true"}))
    after = json.loads((out / "logs" / "trace.json").read_text())
    assert after[: len(before)] == before
    assert Counter(event["name"] for event in after if event["ph"] == "b")["trajectory"] == 3 * 16


@pytest.mark.exhaustive
def test_a_role_that_the_run_does_not_have_is_an_error_that_names_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)profile.roles.0.*did you mean 'actor_train'"):
        small_config(tmp_path / "out", profile="{steps: [1], roles: [actor_trian]}")


HALF_BREAKS = {
    "actor_train.training_args.learning_rate": 1e-9,  # a policy that answers goes on to
    "env_modules": "[tests.e2e.broken_envs]",
    "train_env_manager.tags": "[steady,raises]",
    "val_env_manager.tags": "[steady]",
    "train_env_manager.env_groups": 2,
    "rollout_batch_size": 8,
    "max_steps": 11,
    "save_steps": 0,
    "eval_steps": 0,
}


def test_an_alarm_of_a_run_is_in_its_log_and_in_the_trackers_that_keep_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_agentic(small_config(tmp_path, **HALF_BREAKS, progress="lines", track_with="[jsonl,tensorboard,stdout]"))
    shown = capsys.readouterr().out.splitlines()
    (said,) = [line for line in shown if "of the episodes of the last" in line and line.startswith("warning")]
    assert said.startswith("warning: step 10: 50% of the episodes of the last 5 steps broke (error_env 50%)")
    words = said.removeprefix("warning: step 10: ")
    assert f"step 10  {words}" in shown, "of the tracker to standard output"
    rows = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [row for row in rows if "note" in row] == [{"step": 10, "note": words}]
    assert [row.get("alarm/errors") for row in rows if "note" not in row] == [None] * 9 + [1.0, 1.0]
    board = EventAccumulator(str(tmp_path / "logs"))
    board.Reload()
    (note,) = board.Tensors("notes/text_summary")
    assert (note.step, make_ndarray(note.tensor_proto).item().decode()) == (10, words)
    assert [(event.step, event.value) for event in board.Scalars("alarm/errors")] == [(10, 1.0), (11, 1.0)]
