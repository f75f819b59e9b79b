"""Verifiers that grade in the event loop: no response may keep it."""

from __future__ import annotations

import time

import pytest
from reward_support import asked, verdict

from roll.rewards import make_verifier

PIECES = [
    "\n", " ", "\t", "x ", "1", "1,111", "- ", ".", "(", "(A", "answer ", "answer:", "option ", "<think>", "</think>",
    "<answer>", "#### ", "**", "Step 1", "\\boxed{", "answer A ",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", ["base_acc", "format", "strict_format", "step", "multiple_choice"])
def test_no_response_keeps_the_event_loop(name: str) -> None:
    """Time in proportion to the text: what is quadratic would take minutes here."""
    verifier = make_verifier(name)
    truth = "A" if name == "multiple_choice" else "7"
    for start in ("", "x", "answer", "<think>"):
        for piece in PIECES:
            text = start + piece * (60_000 // len(piece)) + "y"
            began = time.process_time()
            verdict(verifier, asked(text, truth, row={"choices": ["one", "two"]}))
            assert time.process_time() - began < 3, repr(text[:20])
