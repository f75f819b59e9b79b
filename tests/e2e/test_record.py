"""What a run leaves of itself: enough to start the same run again, and to see what a resumed one changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from roll.pipelines.agentic import run_agentic
from tests.e2e.support import command, rows, same, small_config, start, train_state

ONE_STEP = {"max_steps": 1, "eval_steps": 0}


FROM_PYTHON = """
from roll.config import load
from roll.pipelines.agentic import run_agentic

run_agentic(load("first/config.yaml", output_dir="second"))
"""


@pytest.mark.exhaustive
def test_the_recorded_configuration_gives_the_same_run_again(tmp_path: Path) -> None:
    done = start(command(output_dir="first", **ONE_STEP), tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "first" / "config.yaml").read_text()
    assert "max_steps: 1  # command line" in text and "start_agentic_pipeline.py --config-name sokoban" in text
    assert "sokoban.yaml:" in text and "# rpc_timeout: 3600" in text
    about = json.loads((tmp_path / "first" / "run.json").read_text())
    assert about["config"]["rpc_timeout"] == 3600 and about["versions"]["torch"]

    # From Python, and by the program from the folder of the record.
    (tmp_path / "again.py").write_text(FROM_PYTHON)
    done = start([sys.executable, "again.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    again = command("--config-dir", str(tmp_path / "first"), config="config")
    again = [word for word in again if "=" not in word]
    done = start([*again, "output_dir=third"], tmp_path)
    assert done.returncode == 0, done.stderr
    for other in ("second", "third"):
        assert rows(tmp_path / other) == rows(tmp_path / "first")
        assert same(train_state(tmp_path / other, 1), train_state(tmp_path / "first", 1))

    # The same text is in every checkpoint, and in TensorBoard.
    recorded = (tmp_path / "second" / "config.yaml").read_text()
    assert (tmp_path / "second" / "checkpoints" / "step=000001" / "config.yaml").read_text() == recorded
    events = EventAccumulator(str(tmp_path / "second" / "logs")).Reload()
    (shown,) = events.Tensors("config/text_summary")
    listed = shown.tensor_proto.string_val[0].decode()
    assert [line.removeprefix("    ") for line in listed.splitlines()] == recorded.splitlines()


def test_resuming_lists_what_is_other_than_in_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_agentic(small_config(out, **ONE_STEP))
    changed = {"max_steps": 2, "actor_train.training_args.learning_rate": 1e-3}
    config = small_config(out, **{**ONE_STEP, **changed}, resume_from_checkpoint="true", progress="lines")
    run_agentic(config)
    said = capsys.readouterr().out
    assert "made with other settings, now changed:" in said
    listed = said.partition("now changed:\n")[2].splitlines()[:3]
    assert listed[:2] == ["  max_steps: 1 → 2", "  actor_train.training_args.learning_rate: 0.0003 → 0.001"]
    assert not listed[2].startswith("  ")
    about = json.loads((out / "run.json").read_text())
    assert about["continued_from"].endswith("step=000001")
    run_agentic(config.model_copy(update={"max_steps": 2}))
    assert "made with other settings" not in capsys.readouterr().out
