"""The live dashboard on terminals of several sizes, resized while it runs, with an episode that wants to harm it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.terminal.terminal import Terminal

RUN = r"""
import sys
from roll.tracking import RunSummary, Sample, make_progress

board = "######\n#__P_#\n######"
hostile = "Up \x1b[2J\x1b]0;mine\x07\x9b31m\x1b[?1049l\x1b[999;999H \u202egnp \r rest \x1b[38;5;1mred" + "\u6f22" * 300
with make_progress("auto") as progress:
    progress.start(4, "sokoban", "toy policy", review="roll view output/sokoban")
    with progress.stage("eval"):
        progress.rollout_progress(3, 512, 100)
        sys.stdin.readline()
    progress.eval_done(0, {"val/success": 0.5})
    for step in (1, 2):
        with progress.stage("rollout"):
            progress.sample(lambda: Sample("Lake\x1b[2J", ((board, "Left"), (board, hostile)), 1.5, "completed"))
        values = {"reward/mean": 1.0, "rollout/success": 0.5, "throughput/tokens_per_second": 9.0}
        more = {"train/policy/entropy": 0.5, "train/policy/approx_kl": 0.01, "rollout/response_tokens": 30.0}
        progress.step_done(step, values | more)
    with progress.stage("update"):
        sys.stdin.readline()
    progress.finish(RunSummary("sokoban", 4, 1.0))
"""
FRAMED = re.compile(r"[╭│╰].*[╮│╯]")
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


def next_picture(terminal: Terminal) -> None:
    """Wait until more was drawn."""
    pieces = len(terminal.shown)
    assert terminal.read_until(lambda: len(terminal.shown) > pieces)


def seen(terminal: Terminal, rows: int, columns: int, *panels: str) -> str:
    """Give the terminal this size; return the picture drawn for it, every frame whole, that shows these panels."""
    terminal.resize(rows, columns)

    def drawn() -> bool:
        framed = [line for line in terminal.screen if line[:1] in tuple("╭│╰")]
        whole = all(cell_len(line.rstrip()) == columns and FRAMED.fullmatch(line.rstrip()) for line in framed)
        shown = "\n".join(terminal.screen)
        return whole and len(framed) > 5 and all(sign in shown for sign in (*panels, "roll view output/sokoban"))

    assert terminal.read_until(drawn), "\n".join(terminal.screen)
    return "\n".join(terminal.screen)


@pytest.mark.exhaustive
@pytest.mark.parametrize("colour", [True, False])
def test_a_dashboard_shows_what_there_is_room_for(tmp_path: Path, colour: bool) -> None:
    variables = {} if colour else {"NO_COLOR": "1"}
    words = [sys.executable, "-c", RUN]
    with Terminal(words, tmp_path, rows=24, columns=80, cold=True, **variables) as terminal:
        terminal.see("the first evaluation runs  3/512")
        signs: set[str] = set()
        for _ in range(100):
            terminal.see("3/512 trajectories")
            signs |= {line[1] for line in terminal.screen if "3/512 trajectories" in line}
            next_picture(terminal)
            if len(signs) > 1:
                break
        assert len(signs) == 2, "it moves although nothing happens"
        terminal.press(b"\n")

        terminal.see("step 2/4")
        terminal.see("roll view output/sokoban")
        # The picture may still be arriving, line by line.
        assert terminal.read_until(lambda: all(name in "\n".join(terminal.screen) for name in ("reward", "success")))
        small = "\n".join(terminal.screen)
        assert "entropy" not in small and "Lake" not in small

        wide = seen(terminal, 50, 200, "response ·")
        for name in ("reward", "success", "tokens/s", "entropy", "KL", "response tokens"):
            assert f"─ {name} ─" in wide
        assert r"response · Lake\x1b[2J · step 2 · completed · score 1.50" in wide
        assert r"Up \x1b[2J\x1b]0;mine\x07\x9b31m\x1b[?1049l" in wide and "red漢" in wide
        assert "#__P_#" in wide and "Left" in wide and "roll view output/sokoban" in wide

        middle = seen(terminal, 40, 120, "Lake")
        assert "─ entropy ─" in middle and "Lake" in middle
        narrow = seen(terminal, 24, 60)
        assert "─ entropy ─" not in narrow and "roll view output/sokoban" in narrow
        terminal.press(b"\n")
        assert terminal.finish() == 0
        terminal.assert_given_back()
        assert bool(COLOUR.search(terminal.written)) is colour
        assert b"\x1b]0;" not in terminal.written and b"\x1b[2J" not in terminal.written.replace(rb"\x1b[2J", b"")
