"""Where metrics go, and that a resumed run leaves no trace of what it did twice."""

from __future__ import annotations

import json
import math
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from roll.config.trackers import TRACKERS
from roll.tracking import make_trackers, read_metrics, register_tracker


@pytest.fixture
def registry() -> Iterator[None]:
    """Undo what a test registers."""
    with TRACKERS.restored():
        yield


def steps(path: Path) -> list[int]:
    return [record["step"] for record in read_metrics(path)]


def log_steps(log_dir: Path, numbers: range, resume_step: int | None = None) -> Path:
    with make_trackers("jsonl", log_dir=log_dir, resume_step=resume_step) as tracker:
        for step in numbers:
            tracker.log({"reward/mean": step / 10}, step)
    return log_dir / "metrics.jsonl"


def test_jsonl_writes_one_object_per_line_at_once(tmp_path: Path) -> None:
    tracker = make_trackers("jsonl", log_dir=tmp_path / "new" / "logs")
    tracker.log({"reward/mean": 0.5, "count": 3}, 1)
    text = (tmp_path / "new" / "logs" / "metrics.jsonl").read_text()  # before close: the line is flushed
    assert text == '{"step": 1, "reward/mean": 0.5, "count": 3}\n'
    tracker.close()
    tracker.close()


def test_jsonl_writes_non_finite_values_as_null(tmp_path: Path) -> None:
    with make_trackers("jsonl", log_dir=tmp_path) as tracker:
        tracker.log({"a": math.nan, "b": math.inf, "c": 1.0}, 1)
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "a": None, "b": None, "c": 1.0}


def test_resume_drops_later_steps_so_that_none_is_there_twice(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 8))
    path = log_steps(tmp_path, range(5, 10), resume_step=4)
    assert steps(path) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_resume_drops_a_line_cut_short_by_a_kill(tmp_path: Path) -> None:
    path = log_steps(tmp_path, range(1, 5))
    with path.open("a") as file:
        file.write('{"step": 5, "rew')
    assert steps(path) == [1, 2, 3, 4]
    log_steps(tmp_path, range(5, 7), resume_step=4)
    assert steps(path) == [1, 2, 3, 4, 5, 6]


def test_fresh_run_keeps_the_file_of_an_earlier_one_aside(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 3))
    log_steps(tmp_path, range(1, 4))
    path = log_steps(tmp_path, range(1, 5))
    assert steps(path) == [1, 2, 3, 4]
    assert steps(tmp_path / "metrics.1.jsonl") == [1, 2]
    assert steps(tmp_path / "metrics.2.jsonl") == [1, 2, 3]


def test_damaged_line_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2: not a metrics record"):
        read_metrics(path)


@pytest.mark.long
@pytest.mark.heavy
def test_tensorboard_events_hold_the_scalars_and_resume_hides_later_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for numbers, resume in ((range(1, 6), None), (range(4, 7), 3)):
        time.sleep(1.01 - time.time() % 1)  # their names begin with the second, and say which one is read first
        with make_trackers("tensorboard", log_dir=tmp_path, resume_step=resume) as tracker:
            for step in numbers:
                tracker.log({"reward/mean": float(step)}, step)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert found == [(step, float(step)) for step in range(1, 7)]


def test_stdout_writes_one_compact_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with make_trackers("stdout", log_dir=tmp_path) as tracker:
        tracker.log({"reward/mean": 0.123456, "entropy": 1.0}, 7)
    assert capsys.readouterr().out == "step 7  reward/mean 0.1235  entropy 1\n"


def test_several_trackers_get_every_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with make_trackers(["stdout", "jsonl"], log_dir=tmp_path) as tracker:
        tracker.log({"a": 1.0}, 1)
    assert capsys.readouterr().out and steps(tmp_path / "metrics.jsonl") == [1]


@pytest.mark.parametrize("none", [None, "", []])
def test_no_tracker_writes_nothing(tmp_path: Path, none: object) -> None:
    with make_trackers(none, log_dir=tmp_path / "logs") as tracker:  # type: ignore[arg-type]
        tracker.log({"a": 1.0}, 1)
    assert not (tmp_path / "logs").exists()


def test_unknown_name_lists_the_known_and_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown tracker 'tensorbord'. Did you mean 'tensorboard'.*jsonl"):
        make_trackers("tensorbord", log_dir=tmp_path)


def test_a_name_given_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        make_trackers(["jsonl", "jsonl"], log_dir=tmp_path)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "swanlab"])
def test_missing_package_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        make_trackers(name, log_dir=tmp_path)


def test_wandb_gets_its_arguments_and_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []

    class Run:
        def define_metric(self, *names: str, **keywords: str) -> None:
            calls.append(("define", names))

        def log(self, record: dict[str, float]) -> None:
            calls.append(("log", record))

        def finish(self) -> None:
            calls.append(("finish", None))

    fake = types.ModuleType("wandb")
    fake.init = lambda **keywords: calls.append(("init", keywords)) or Run()  # type: ignore[attr-defined]
    fake.login = lambda key: calls.append(("login", key))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    kwargs = {"project": "p", "api_key": "k"}
    with make_trackers("wandb", log_dir=tmp_path, resume_step=3, tracker_kwargs=kwargs) as tracker:
        tracker.log({"a": 1.0}, 4)
    assert calls[0] == ("login", "k")
    assert calls[1] == ("init", {"project": "p", "dir": str(tmp_path), "resume": "allow"})
    assert ("log", {"a": 1.0, "step": 4}) in calls and calls[-1] == ("finish", None)


def test_tracker_kwargs_reach_the_tracker_that_takes_them(tmp_path: Path, registry: None) -> None:
    seen: dict[str, object] = {}

    @register_tracker("recorder")
    class Recorder:
        def __init__(self, *, log_dir: Path, resume_step: int | None, colour: str = "none") -> None:
            seen.update(log_dir=log_dir, resume_step=resume_step, colour=colour)

        def log(self, metrics: object, step: int) -> None: ...
        def close(self) -> None: ...

    kwargs = {"colour": "red", "jsonl": {"filename": "other.jsonl"}}
    make_trackers(["recorder", "jsonl"], log_dir=tmp_path, resume_step=2, tracker_kwargs=kwargs).close()
    assert seen == {"log_dir": tmp_path, "resume_step": 2, "colour": "red"}
    assert (tmp_path / "other.jsonl").exists() and "recorder" in TRACKERS
    with pytest.raises(ValueError, match="none of recorder, jsonl takes 'color'"):
        make_trackers(["recorder", "jsonl"], log_dir=tmp_path, tracker_kwargs={"color": "red"})


def test_log_dir_of_tracker_kwargs_wins(tmp_path: Path) -> None:
    kwargs = {"log_dir": str(tmp_path / "elsewhere")}
    make_trackers("jsonl", log_dir=tmp_path / "logs", tracker_kwargs=kwargs).close()
    assert (tmp_path / "elsewhere" / "metrics.jsonl").exists()


def test_a_taken_name_cannot_be_registered_again(registry: None) -> None:
    with pytest.raises(ValueError, match="'jsonl' is already registered by roll.tracking.local.JsonlTracker"):
        register_tracker("jsonl")(lambda **keywords: None)  # type: ignore[arg-type,return-value]


def test_one_failing_close_does_not_keep_the_others_open(tmp_path: Path, registry: None) -> None:
    @register_tracker("failing")
    class Failing:
        def __init__(self, *, log_dir: Path, resume_step: int | None) -> None: ...
        def log(self, metrics: object, step: int) -> None: ...
        def close(self) -> None:
            raise OSError("disk full")

    tracker = make_trackers(["failing", "jsonl"], log_dir=tmp_path)
    with pytest.raises(OSError, match="disk full"):
        tracker.close()
    with pytest.raises(ValueError, match="closed"):
        tracker.trackers[1].log({}, 1)
