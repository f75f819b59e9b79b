"""Every program on a real pseudo-terminal, run to its end: what is seen meanwhile, and what is left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal.conftest import Seen, run_to_its_end
from tests.terminal.programs import AGENTIC, EXAMPLES, ROOT
from tests.terminal.terminal import Terminal

TRACKER = """
from roll.tracking import register_tracker

@register_tracker("mine")
class MyTracker:
    def __init__(self, *, log_dir, resume_step):
        self.file = open("mine.txt", "w")

    def log(self, metrics, step):
        print(step, *sorted(metrics), file=self.file)

    def close(self):
        self.file.close()
"""
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@pytest.fixture(scope="module")
def rlvr(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A big terminal, made small while it runs."""
    return run_to_its_end("rlvr", tmp_path_factory.mktemp("rlvr"), rows=50, columns=200, resized=True)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return run_to_its_end("evaluation", tmp_path_factory.mktemp("evaluation"), rows=50, columns=200)


@pytest.fixture(scope="module")
def without_colour(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return run_to_its_end("custom_env", tmp_path_factory.mktemp("custom_env"), rows=24, columns=80, NO_COLOR="1")


@pytest.fixture(scope="module")
def dumb(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Also with a tracker of one's own, and TensorBoard's log where its option says."""
    folder = tmp_path_factory.mktemp("dumb")
    (folder / "my_tracker.py").write_text(TRACKER)
    options = ("track_with=[tensorboard,mine]", "tracker_modules=my_tracker", "tracker_kwargs.tensorboard.log_dir=tb")
    return run_to_its_end("custom_algorithm", folder, *options, rows=24, columns=80, TERM="dumb")


def assert_ended_well(seen: Seen) -> None:
    assert seen.status == 0, seen.left
    assert not [sign for sign in ("Traceback", "\x1b", "[?", "Warning:") if sign in seen.left], seen.left


def assert_picture_fits(seen: Seen, *parts: str) -> None:
    """One of the pictures on the second screen has these parts, none has half a line at its top."""
    assert any(all(part in picture for part in parts) for picture in seen.shown), seen.shown[-1:]


@pytest.mark.exhaustive
def test_the_agentic_run_shows_its_stages_and_leaves_its_summary(sokoban: Seen) -> None:
    assert_ended_well(sokoban)
    assert_picture_fits(sokoban, " roll  sokoban", "╭─ reward", "╭─ success", "◆ validation success")
    assert "step 1/1" in sokoban.left and "● done" in sokoban.left
    assert sokoban.left.splitlines()[-1].strip() == "$ tail -n 3 out/logs/metrics.jsonl"


@pytest.mark.exhaustive
def test_the_commands_of_the_summary_can_be_copied(sokoban: Seen) -> None:
    """As a terminal copies them: the lines of one command are one line, for the program did not break it."""
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", sokoban.written).decode()
    commands = re.findall(r"^ +\$ (.*?)\r?$", plain, re.MULTILINE)
    assert len(commands) == 5
    done = subprocess.run(commands[-1], shell=True, cwd=sokoban.folder, capture_output=True, text=True)
    assert done.returncode == 0 and '"step": 1' in done.stdout


@pytest.mark.exhaustive
def test_a_terminal_that_gets_smaller_is_drawn_anew(rlvr: Seen) -> None:
    assert_ended_well(rlvr)
    last = rlvr.shown[-1].splitlines()
    assert len(last) == 24 and "╮╭─ success" in rlvr.shown[-1] and last[0].rstrip().startswith(" roll  rlvr_math")
    assert all(len(line) <= 80 for line in last)
    assert "validation success" in rlvr.left and "out/logs/metrics.jsonl" in rlvr.left


def test_the_evaluation_shows_how_far_it_is_and_leaves_its_table(evaluation: Seen) -> None:
    assert_ended_well(evaluation)
    assert_picture_fits(evaluation, " roll  eval_math", "2 prompts × 4 responses")
    assert "│ arithmetic │" in evaluation.left and "out/evaluation.json" in evaluation.left
    assert not any("step 0/0" in picture or "reward" in picture for picture in evaluation.shown)


@pytest.mark.exhaustive
def test_no_color_is_heeded(without_colour: Seen) -> None:
    assert_ended_well(without_colour)
    assert not COLOUR.search(without_colour.written)
    assert_picture_fits(without_colour, " roll  custom_env", "╭─ reward")


@pytest.mark.exhaustive
def test_a_dumb_terminal_gets_lines_without_control_codes(dumb: Seen) -> None:
    assert_ended_well(dumb)
    assert b"\x1b" not in dumb.written and dumb.shown == ()
    assert re.search(r"^step 1/1  reward", dumb.left, re.MULTILINE), dumb.left


@pytest.mark.exhaustive
def test_a_tracker_of_ones_own_is_given_the_metrics(dumb: Seen) -> None:
    steps = [line.split() for line in (dumb.folder / "mine.txt").read_text().splitlines()]
    assert [step for step, *_ in steps] == ["0", "1", "1"]
    assert "val/success" in steps[0] and "reward/mean" in steps[1]


@pytest.mark.exhaustive
def test_the_summary_names_the_folder_that_the_log_is_in(dumb: Seen) -> None:
    assert " TensorBoard log tb" in dumb.left and list((dumb.folder / "tb").glob("events.*"))


def test_the_export_of_a_review_says_where_it_is(sokoban: Seen) -> None:
    words = [sys.executable, "-m", "roll", "view", "out", "--export", "out.html", "--most", "1000"]
    with Terminal(words, sokoban.folder, PYTHONPATH=str(EXAMPLES.parent)) as terminal:
        assert terminal.finish() == 0, terminal.left_behind
        terminal.assert_given_back()
        assert terminal.left_behind == "out.html"


def test_a_checkpoint_is_converted(sokoban: Seen) -> None:
    words = [sys.executable, str(EXAMPLES / "convert_checkpoint.py"), "out/checkpoints/step=000001", "converted"]
    with Terminal(words, sokoban.folder, TERM="dumb") as terminal:
        assert terminal.finish() == 0, terminal.left_behind
        terminal.assert_given_back()
        assert terminal.left_behind == "Written: converted"


def test_what_the_readme_says_first_works_on_a_terminal(tmp_path: Path) -> None:
    if subprocess.run(["make", "--question", "setup"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("`make sokoban` would install packages first: this environment was not made by make")
    small = " ".join(f"{key}={value}" for key, value in {**AGENTIC, "output_dir": tmp_path / "out"}.items())
    with Terminal(["make", "sokoban", f"ARGS={small}"], ROOT) as terminal:
        assert terminal.finish() == 0, terminal.left_behind
        terminal.assert_given_back()
        assert any(" roll  sokoban" in picture for picture in terminal.shown)
        assert "sokoban  1 step in" in terminal.left_behind and "Error" not in terminal.left_behind


HOSTILE = """
from roll.envs import Outcome, TextEnv, register_env

@register_env("hostile", max_steps=2)
class Hostile(TextEnv):
    def start(self):
        raise RuntimeError("\\x1b[2J\\x1b]0;mine\\x07\\x1b[?1049h\\x1b[?25l")

    def act(self, action):
        return Outcome("never")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["xterm-256color", "dumb"])
def test_what_an_environment_raises_is_shown_and_not_obeyed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    environments = ("env_modules=hostile", "train_env_manager.tags=[hostile]", "val_env_manager.tags=[hostile]")
    seen = run_to_its_end("agentic", tmp_path, *environments, rows=24, columns=80, TERM=kind)
    assert seen.status == 3 and "\\x1b[2J\\x1b]0;mine\\x07" in seen.left.replace("\n", "")
    assert b"\x1b[2J" not in seen.written and b"mine\x07" not in seen.written


BREAKING = HOSTILE.replace('"hostile"', '"breaking"').replace(
    '"\\x1b[2J\\x1b]0;mine\\x07\\x1b[?1049h\\x1b[?25l"', '"down"'
)


def test_alarms_stay_in_the_picture_and_are_left_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "breaking.py").write_text(BREAKING)
    tags = ("env_modules=breaking", "train_env_manager.tags=[SimpleSokoban,breaking]")
    longer = ("max_steps=13", "eval_steps=0", "save_steps=0")
    seen = run_to_its_end("agentic", tmp_path, *tags, *longer, rows=30, columns=100)
    assert_ended_well(seen)
    alarm = "step 10: 50% of the episodes of the last 5 steps broke (error_env 50%) and teach nothing."
    assert f"warning: {alarm} Their errors are in the log and in the review." in seen.left.replace("\n", "")
    *alarms, warning = re.findall(r"^ ▲ (.*)", seen.left, re.MULTILINE)
    assert any(shown.startswith(alarm) for shown in alarms) and alarm not in warning, "the last picture has both"
