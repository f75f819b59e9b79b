"""What a person sees while a run works, on and off a terminal."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from roll.tracking import LineProgress, LiveDashboard, NullProgress, RunSummary, make_progress
from roll.tracking import dashboard as dashboard_module
from roll.tracking.braille import braille_curve
from roll.tracking.dashboard_state import RunState
from roll.tracking.dashboard_view import draw
from roll.tracking.summary import before_after_table, print_summary
from roll.tracking.wording import format_duration

METRICS = {
    "reward/mean": 1.25,
    "rollout/success": 0.5,
    "throughput/tokens_per_second": 4321.0,
    "time/update": 2.0,
    "time/rollout": 4.0,
    "time/step": 6.5,
}


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def filled_state(steps: int = 34, total: int = 60) -> RunState:
    state = RunState("sokoban", "toy policy, 64 groups of 8", total, begun=0.0)
    state.add_validation(0, {"val/success": 0.551, "val/reward": 1.0})
    for step in range(1, steps + 1):
        success = 0.5 + step / 200
        values = {"reward/mean": step / 10, "rollout/success": success, "throughput/tokens_per_second": 4000.0 + step}
        state.add_step(step, values, {"update": 2.0, "rollout": 4.0, "log_probs": 1.0})
    state.add_validation(steps, {"val/success": 0.74, "val/reward": 2.0})
    state.stage = ("rollout", 195.0)
    state.rollout = (312, 512, 8000)
    state.message = "reference model is loaded but no term uses it"
    return state


def plain(state: RunState, width: int, height: int, now: float = 200.0) -> list[str]:
    return [line.plain for line in draw(state, width, height, now)]


@pytest.mark.parametrize("size", [(80, 24), (120, 32), (200, 60), (60, 14), (40, 9), (20, 5)])
@pytest.mark.parametrize("steps", [0, 1, 34, 60, 90])
def test_the_picture_fits_every_terminal(size: tuple[int, int], steps: int) -> None:
    width, height = size
    state = filled_state(steps, total=90) if steps else RunState("sokoban", "toy", 90)
    lines = draw(state, width, height, 200.0)
    assert 0 < len(lines) <= height
    assert max(line.cell_len for line in lines) <= width


def test_the_picture_tells_all_at_80_by_24() -> None:
    lines = plain(filled_state(), 80, 24)
    text = "\n".join(lines)
    assert "step 34/60" in text and "57%" in text
    assert f"eta {format_duration(200 / 34 * 26)}" in text
    assert "3.40" in text and "67.0%" in text  # latest reward and success
    assert "validation success  55.1% → 74.0%  +18.9 points  (after step 34)" in text
    assert "rollout 4.0 s 57%" in text and "update 2.0 s 29%" in text and "= 7.0 s per step" in text
    assert "rollout  5 s   312/512 trajectories   1,600 tokens/s" in text
    assert lines[-1].endswith("reference model is loaded but no term uses it")
    assert "◆" in text and any("\u2800" < char <= "\u28ff" for char in text)


def test_stage_bar_shares_the_width_in_proportion() -> None:
    line = next(line for line in draw(filled_state(), 82, 24, 200.0) if "█" in line.plain)
    cells = {str(span.style): span.end - span.start for span in line.spans}
    assert sum(cells.values()) == 80
    assert cells == {"cyan": round(80 * 4 / 7), "blue": 11, "green": 80 - 46 - 11}


def test_missing_and_nan_metrics_leave_gaps_not_errors() -> None:
    state = RunState("r", "", 10)
    state.add_step(1, {"reward/mean": math.nan}, {})
    state.add_step(2, {}, {})
    state.add_validation(2, {})
    text = "\n".join(plain(state, 80, 24))
    assert "nan" not in text and "not yet evaluated" in text


def test_only_the_last_sixty_steps_are_drawn() -> None:
    state = filled_state(90, total=200)
    assert list(state.steps) == list(range(31, 91))


def test_a_rising_line_rises_and_has_no_holes() -> None:
    rows = braille_curve([0.0, 1.0, 2.0, 3.0], 4, 2, 0.0, 3.0)
    assert rows[0][0] == "\u2800" and rows[1][-1] == "\u2800"
    assert rows[1][0] != "\u2800" and rows[0][-1] != "\u2800"
    assert all(any(row[column] != "\u2800" for row in rows) for column in range(4))


def test_a_flat_line_keeps_its_row_and_unused_slots_stay_empty() -> None:
    (row,) = braille_curve([1.0] * 5, 10, 1, 0.0, 2.0, slots=10)
    assert len(row) == 10 and row[-4:] == "\u2800" * 4 and "\u2800" not in row[:4]


def test_stages_are_timed_and_taken_once() -> None:
    clock = Clock()
    progress = NullProgress(clock)
    for seconds in (2.0, 3.0):
        with progress.stage("rollout"):
            clock.now += seconds
    with pytest.raises(RuntimeError), progress.stage("update"):
        clock.now += 1.0
        raise RuntimeError
    assert progress.take_stage_seconds() == {"rollout": 5.0, "update": 1.0}
    assert progress.take_stage_seconds() == {}


def test_lines_off_a_terminal_say_step_values_stages_and_eta() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, clock)
    progress.start(60, "sokoban", "toy")
    clock.now += 10
    progress.step_done(1, METRICS)
    progress.eval_done(1, {"val/success": 0.75, "val/reward": 2.0})
    assert stream.getvalue().splitlines() == [
        "sokoban  toy  60 steps",
        "step  1/60  reward 1.250  success 50.0%  tokens/s 4,321  rollout 4.0s  update 2.0s  eta 9:50",
        "eval after step 1  success 75.0%  reward 2.000",
    ]


def test_a_resumed_run_expects_the_time_of_its_own_steps() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, clock)
    progress.start(60, "sokoban", first_step=50)
    clock.now += 10
    progress.step_done(51, {})
    assert "resumed after step 50" in stream.getvalue() and stream.getvalue().endswith("eta 1:30\n")


def test_stages_the_metrics_do_not_time_are_timed_by_the_display() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, clock)
    progress.start(2, "r")
    with progress.stage("eval"):
        clock.now += 3
    progress.step_done(1, {"time/rollout": 4.0})
    progress.step_done(2, {"time/rollout": 4.0})
    assert "rollout 4.0s  eval 3.0s" in stream.getvalue().splitlines()[1]
    assert "eval" not in stream.getvalue().splitlines()[2]


def test_auto_is_live_only_on_a_capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(dashboard_module.sys, "stdout", Terminal())
    assert isinstance(make_progress("auto"), LiveDashboard)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress("auto"), LineProgress)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(dashboard_module.sys, "stdout", io.StringIO())
    assert isinstance(make_progress("auto"), LineProgress)
    assert type(make_progress("none")) is NullProgress
    with pytest.raises(ValueError, match="'fancy' is unknown; known are auto, live, lines, notebook, none"):
        make_progress("fancy")  # type: ignore[arg-type]


def summary(tmp_path: Path) -> RunSummary:
    return RunSummary(
        title="sokoban",
        steps=60,
        seconds=425.0,
        before={"val/success": 0.551, "val/reward": 1.0, "val/turns": 6.5},
        after={"val/success": 0.781, "val/reward": 4.0},
        checkpoint=tmp_path / "checkpoints",
        checkpoint_command="python train.py resume_from_checkpoint=true",
        tensorboard=tmp_path / "logs",
        trajectories=tmp_path / "trajectories",
        pages=tmp_path / "my pages",
    )


def test_summary_compares_before_and_after_and_gives_a_command_for_each_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    print_summary(summary(tmp_path), Console(file=stream, width=60))
    text = stream.getvalue()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    assert rows == [
        ["", "before", "after", "change"],
        ["validation success", "55.1%", "78.1%", "+23.0 points"],
        ["validation reward", "1.00", "4.00", "+3.00"],
        ["turns per episode", "6.50", "–", "–"],
    ]
    commands = [line.strip().removeprefix("$ ") for line in text.splitlines() if line.strip().startswith("$")]
    assert commands[:3] == [
        "python train.py resume_from_checkpoint=true",
        "tensorboard --logdir logs",
        "python -m roll view trajectories",
    ]
    assert commands[3].endswith("open 'my pages/index.html'")


def test_summary_of_a_run_without_anything_is_only_its_title() -> None:
    stream = io.StringIO()
    print_summary(RunSummary("r", 0, 0.0), Console(file=stream, width=80))
    assert stream.getvalue().split() == ["r", "0", "steps", "in", "0:00"]


def test_answers_of_one_turn_get_no_row_of_turns() -> None:
    def rows(before: float, after: float) -> int:
        return before_after_table({"val/turns": before}, {"val/turns": after}).row_count

    assert rows(1.0, 1.0) == 0 and rows(1.0, 2.0) == 1


def test_a_run_that_does_not_train_has_no_steps() -> None:
    out = io.StringIO()
    LineProgress(out).start(0, "eval_math", "2 prompts")
    LineProgress(out).start(1, "short")
    assert out.getvalue() == "eval_math  2 prompts\nshort  1 step\n"
    state = RunState("eval_math", "2 prompts", 0, stage=("eval", 0.0), rollout=(1, 4, 0))
    text = "\n".join(plain(state, 80, 24))
    assert "25%" in text and "1/4" in text and not [word for word in ("step", "reward", "tokens") if word in text]


def test_control_codes_in_a_warning_are_shown_and_not_obeyed() -> None:
    out, live = io.StringIO(), LiveDashboard(Console(file=Terminal(), force_terminal=True))
    for progress in (LineProgress(out), live):
        progress.warning("the game said \x1b[2J\x1b]0;mine\x07")
    assert out.getvalue() == "warning: the game said \\x1b[2J\\x1b]0;mine\\x07\n"
    assert "said \\x1b[2J" in plain(live.state, 80, 24)[-1] and "\x1b" not in "".join(plain(live.state, 80, 24))


ALARM = (
    "step 10: 50% of the episodes of the last 5 steps broke (error_env 50%) and teach nothing. Their errors are told."
)


def test_an_alarm_is_read_whole_and_no_warning_covers_it() -> None:
    live = LiveDashboard(Console(file=Terminal(), force_terminal=True))
    live.state = filled_state()
    live.alarm(ALARM)
    live.warning("step 11: 8 of 16 episodes failed")
    *_, first, second, last = plain(live.state, 80, 24)
    assert f"{first.strip()} {second.strip()}" == f"▲ {ALARM}" and last.strip() == "▲ step 11: 8 of 16 episodes failed"
    assert plain(live.state, 80, 12)[-1].startswith(" ▲ step 10: 50% of the episodes")
    live.alarm("step 11: " + "word " * 200)
    *_, one, _, two, end, last = plain(live.state, 80, 24)
    assert one.startswith(" ▲ step 10: 50%") and two.startswith(" ▲ step 11: word") and end.rstrip().endswith("…")
    assert last.strip() == "▲ step 11: 8 of 16 episodes failed" and len(plain(live.state, 80, 24)) <= 24


def test_every_alarm_is_left_on_the_terminal_when_it_is_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveDashboard(Console(file=Terminal(), force_terminal=True, width=80))
    live.start(20, "sokoban")
    for step in (10, 12):
        live.alarm(f"step {step}: \x1b[2J {'what goes wrong, ' * 20}")
    live.close()
    live.close()
    _, _, left = live._console.file.getvalue().rpartition("\x1b[?1049l")  # type: ignore[attr-defined]
    told = [line for line in left.splitlines() if line.startswith("warning: ")]
    assert [line[:25] for line in told] == ["warning: step 10: \\x1b[2J", "warning: step 12: \\x1b[2J"]
    assert all(line.count("what goes wrong") == 20 for line in told), "one line, to be copied"


def test_without_a_dashboard_an_alarm_is_a_warning() -> None:
    out = io.StringIO()
    LineProgress(out).alarm("step 10: it drifts")
    assert out.getvalue() == "warning: step 10: it drifts\n"
