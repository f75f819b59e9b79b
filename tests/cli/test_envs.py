"""``roll envs``: what it prints, how it is played, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from roll.cli.app import main

BROKEN = str(Path(__file__).parents[1] / "certificates")


def called(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["envs", *words])
    return int(left.value.code or 0)


def test_list_shows_every_tag_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("list") == 0
    table = capsys.readouterr().out
    assert "SimpleSokoban" in table and "Push every box onto a target." in table
    assert called("list", "--json") == 0
    rows = {row["tag"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["FrozenLake"]["max_steps"] == 10
    assert rows["FrozenLake"]["class"] == "roll.envs.frozen_lake:FrozenLakeEnv"


def test_show_gives_the_prompt_as_the_policy_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("show", "FrozenLakeThink", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["user"].startswith("Turn 1:\nP") and "Think within 256 tokens" in facts["user"]
    assert facts["instruction"] in facts["system"]
    assert facts["example_response"] == "<think>your thoughts</think><answer>Left</answer>"


def test_play_takes_bare_actions_and_whole_responses_from_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("up\n<answer>Down</answer>\n:hint\nnonsense\n:again\n:quit\n"))
    assert called("play", "SimpleSokoban") == 0
    out = capsys.readouterr().out
    assert out.count("Seed 0") == 2 and "Turn 2: reward -0.1" in out
    assert "to go)" in out and "No action in that. Actions: Up, Down, Left, Right." in out


@pytest.mark.processes
def test_a_person_plays_in_a_terminal() -> None:
    here, there = pty.openpty()
    words = [sys.executable, "-c", "from roll.cli.app import main; main()", "envs", "play", "FrozenLake"]
    playing = subprocess.Popen(words, stdin=there, stdout=there, stderr=there, close_fds=True)
    os.close(there)
    os.write(here, b"right\n:quit\n")
    seen = b""
    while True:
        try:
            part = os.read(here, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    assert playing.wait(60) == 0
    os.close(here)
    assert b"> " in seen and b"Turn 1: reward" in seen and b":hint" in seen


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("FrozenLake", 0),
        ("broken_envs:NanReward", 3),
        ("SimpleSokobann", 2),
        pytest.param("nowhere:Env", 2, marks=pytest.mark.exhaustive),
    ],
)
def test_check_says_by_its_exit_code_whether_it_is_fit(
    name: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", BROKEN)
    assert called("check", name, "--json") == code
    out, error = capsys.readouterr()
    if code == 2:
        assert not out and name.partition(":")[0] in error
    else:
        certificate = json.loads(out)
        assert certificate["fit"] is (code == 0)
        assert (
            "rewards.finite" in [each["check"] for each in certificate["findings"] if each["status"] == "failed"]
        ) is (code == 3)
