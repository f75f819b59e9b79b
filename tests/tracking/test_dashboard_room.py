"""What the dashboard does with the room it has, and the episode it shows."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.console import Console

from roll.pipelines.reporting.sample import sample_of
from roll.tracking import LiveDashboard, Sample
from roll.tracking.dashboard_state import CURVES, RunState
from roll.tracking.dashboard_view import draw
from roll.trajectories.model import Status, Trajectory, Turn

BOARD = "######\n#__P_#\n#_X__#\n#__O_#\n######"
EPISODE = Sample("SimpleSokoban", tuple((f"{BOARD}\nTurn {turn}", "Up") for turn in range(8)), 1.25, "completed")


def state(sample: Sample | None = EPISODE, steps: int = 3) -> RunState:
    found = RunState("sokoban", "toy policy", 60, review="roll view output/sokoban")
    for step in range(1, steps + 1):
        found.add_step(step, {curve.metrics[0]: float(step) for curve in CURVES}, {"rollout": 4.0})
    found.stage, found.rollout = ("rollout", 190.0), (1, 8, 100)
    found.sample = None if sample is None else ("step 4", sample)
    return found


def picture(width: int, height: int, of: RunState | None = None, now: float = 200.0) -> list[str]:
    lines = [line.plain for line in draw(of or state(), width, height, now)]
    assert len(lines) <= height and all(cell_len(line) <= width for line in lines)
    assert all(cell_len(line) == width for line in lines if line[:1] in tuple("╭│╰"))
    return lines


def charts(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return [curve.name for curve in CURVES if f"─ {curve.name} ─" in text]


@pytest.mark.parametrize(
    ("width", "height", "names", "shows_episode"),
    [
        (60, 24, 2, False),
        (80, 24, 2, False),
        (80, 50, 6, True),
        (120, 24, 3, False),
        (120, 40, 6, True),
        (200, 50, 6, True),
    ],
)
def test_a_bigger_terminal_shows_more_curves_and_an_episode(
    width: int, height: int, names: int, shows_episode: bool
) -> None:
    lines = picture(width, height)
    assert charts(lines) == [curve.name for curve in CURVES[:names]]
    assert any("response · SimpleSokoban · step 4 · completed · score 1.25" in line for line in lines) is shows_episode
    assert any(line.endswith("roll view output/sokoban") for line in lines)


@pytest.mark.parametrize("sample", [EPISODE, Sample("math", (("漢" * 500, "字" * 900),)), Sample("e", (("", ""),))])
@pytest.mark.parametrize("size", [(20, 30), (37, 60), (110, 33), (113, 47), (200, 50), (301, 90)])
def test_the_frames_are_whole_whatever_is_in_them(sample: Sample, size: tuple[int, int]) -> None:
    picture(*size, state(sample))


def test_the_last_turns_stand_side_by_side_and_an_answer_beside_its_question() -> None:
    lines = picture(120, 40)
    assert any(line.count("#__P_#") >= 5 for line in lines)
    assert any("Turn 7" in line for line in lines) and not any("Turn 0" in line for line in lines)
    lines = picture(120, 40, state(Sample("math", (("What is 2 + 3?", "<think>five</think>\n5"),))))
    assert any("What is 2 + 3?" in line and "<think>five</think>" in line for line in lines)


def test_what_is_not_shown_of_a_long_answer_is_counted() -> None:
    lines = picture(120, 40, state(Sample("math", (("?", "\n".join(str(number) for number in range(100))),))))
    shown = next(line for line in lines if "more lines" in line)
    rows = sum(1 for line in lines if line.startswith("│") and "│ " in line and line.count("│") == 3)
    assert f"… {100 - rows + 1} more lines" in shown


def test_strangers_text_is_shown_and_not_obeyed_however_long_it_is() -> None:
    hostile = "\x1b[2J\x1b]0;mine\x07\x9b31m\r\u202e" + "x" * 1_000_000
    lines = picture(200, 50, state(Sample(hostile[:20], ((hostile, hostile), ("?", hostile)))))
    assert not set("".join(lines)) & set("\x1b\x07\x9b\r\u202e")
    assert any(r"\x1b[2J" in line for line in lines)


def test_curves_without_values_leave_their_room_to_others() -> None:
    found = RunState("sft", "toy", 10)
    found.add_step(1, {"train/loss": 2.0, "throughput/tokens_per_second": 10.0}, {})
    assert charts(picture(80, 24, found)) == ["tokens/s", "loss"]


def test_one_sees_that_the_run_lives_before_its_first_evaluation_is_done() -> None:
    found = state(steps=0)
    found.stage, found.rollout, found.heard = ("eval", 100.0), (12, 256, 900), 195.0
    text = "\n".join(picture(80, 24, found))
    assert "validation success  the first evaluation runs  12/256" in text and "none finished" not in text
    signs = {picture(80, 24, found, now)[-3][1] for now in (200.0, 200.5, 201.0)}
    assert len(signs) == 2
    assert "none finished for 25 s" in "\n".join(picture(80, 24, found, 220.0))


def test_a_command_that_does_not_fit_is_left_out_rather_than_cut() -> None:
    found = state()
    found.review = "roll view " + "x" * 80
    assert "roll view" not in "\n".join(picture(80, 24, found))
    assert found.review in "\n".join(picture(120, 24, found))


def test_the_first_episode_of_each_rollout_and_each_evaluation_stays_to_be_read() -> None:
    live, made = LiveDashboard(Console(force_terminal=True)), []
    live.state.total_steps = 5

    def make(name: str) -> Sample:
        made.append(name)
        return Sample(name, (("?", "!"),))

    for stage, names in (("eval", "ab"), ("rollout", "cd"), ("update", ""), ("rollout", "e")):
        with live.stage(stage):
            for name in names:
                live.sample(lambda name=name: make(name))
        if stage == "eval":
            assert live.state.sample == ("evaluation after step 0", Sample("a", (("?", "!"),)))
        if stage == "update":
            live.step_done(1, {})
    assert made == ["a", "c", "e"] and live.state.sample is not None and live.state.sample[0] == "step 2"


def test_a_question_is_what_was_observed_or_the_last_message() -> None:
    turns = [Turn([1], [2], [-0.1], observation="board", response="Up"), Turn([1], [2], [-0.1], response="Left")]
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "2 + 3?"}]
    episode = Trajectory("tag", "g", 0, 1, turns=turns, status=Status.TRUNCATED_TURNS, score=0.5, messages=messages)
    assert sample_of(episode) == Sample("tag", (("board", "Up"), ("2 + 3?", "Left")), 0.5, "truncated turns")
    assert sample_of(Trajectory("tag", "g", 0, 1)).turns == (("", ""),)
