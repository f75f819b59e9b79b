from __future__ import annotations

import pyte
from hypothesis import given
from hypothesis import strategies as st

from roll.config.plain_text import plain_text


def test_control_codes_are_shown_and_colours_left_out() -> None:
    assert plain_text("\x1b[31mred\x1b[0m \x1b[2J\x07\x9b1A\x7f") == r"red \x1b[2J\x07\x9b1A\x7f"
    assert plain_text("half \ud83d, turned \u202e") == r"half \ud83d, turned \u202e"
    assert plain_text("two\nlines\tand ✓ ümläut 🙂") == "two\nlines\tand ✓ ümläut 🙂"


@given(st.text(st.sampled_from("\x1b[]();?0123456789ABCHJKlhmn\x07\x08\x0e\x9b\x9d\r ab"), max_size=40))
def test_a_terminal_draws_it_and_does_nothing_else(text: str) -> None:
    screen = pyte.Screen(200, 3)
    stream = pyte.Stream(screen)
    mode = set(screen.mode)
    stream.feed(plain_text(text))
    stream.feed("|")
    assert [line.rstrip() for line in screen.display] == [plain_text(text) + "|", "", ""]
    assert screen.mode == mode and screen.title == ""
