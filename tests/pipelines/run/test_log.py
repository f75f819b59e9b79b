"""What a run reports and remembers: records in the file of metrics, evaluations across sittings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roll.pipelines.run.log import RunLog, summarize
from roll.tracking.progress import NullProgress
from tests.e2e.support import small_config


def log_of(folder: Path, resumed: dict[str, Any] | None = None, **changes: Any) -> RunLog:
    config = small_config(folder, track_with="[jsonl]", **changes)
    return RunLog(config, NullProgress(), resumed)


def recorded(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]


def test_steps_are_recorded_as_often_as_asked_and_evaluations_always(tmp_path: Path) -> None:
    log = log_of(tmp_path, logging_steps=2)
    for step in (1, 2, 3, 4):
        log.step(step, {"reward/mean": step / 10})
    log.evaluation(3, {"val/success": 0.5})
    log.trackers.close()
    rows = recorded(tmp_path)
    assert [(row["step"], row.get("reward/mean"), row.get("val/success")) for row in rows] == [
        (2, 0.2, None),
        (4, 0.4, None),
        (3, None, 0.5),
    ]
    assert all(row["time/elapsed"] >= 0 for row in rows)


def test_the_first_and_the_last_evaluation_are_kept_over_a_resume(tmp_path: Path) -> None:
    first = log_of(tmp_path)
    first.evaluation(0, {"val/success": 0.1})
    first.step(1, {"reward/mean": 0.0})
    state = {**json.loads(json.dumps(first.state())), "step": 1, "elapsed": 1000.0}
    first.step(2, {"reward/mean": 7.0})  # after the checkpoint: the run that goes on makes this step again
    first.trackers.close()
    second = log_of(tmp_path, resumed=state)
    assert (second.before, second.evaluated) == ({"val/success": 0.1}, 0)
    second.step(2, {"reward/mean": 0.2})
    second.evaluation(2, {"val/success": 0.6})
    second.trackers.close()
    assert [(row["step"], row.get("reward/mean")) for row in recorded(tmp_path)] == [
        (0, None),
        (1, 0.0),
        (2, 0.2),
        (2, None),
    ]
    summary = summarize(small_config(tmp_path, track_with="[jsonl]"), second, 2, None)
    assert (summary.before, summary.after) == ({"val/success": 0.1}, {"val/success": 0.6})
    assert summary.seconds >= 1000.0 and summary.metrics == tmp_path / "logs" / "metrics.jsonl"


def test_what_is_said_of_workers_is_of_the_newest_step_and_after_the_end_nobodys(tmp_path: Path) -> None:
    log = log_of(tmp_path, resumed={"step": 7})
    log.note("it may hang")
    log.step(8, {})
    log.note("it may hang again")
    log.close()
    log.note("it is over")
    notes = [(row["step"], row["note"]) for row in recorded(tmp_path) if "note" in row]
    assert notes == [(7, "it may hang"), (8, "it may hang again")]
