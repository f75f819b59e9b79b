"""A run that plays Sokoban and answers sums in the same steps."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from roll.trajectories.store import read_trajectories
from tests.e2e.support import command, rows, same, start, train_state

MIXED = {
    "output_dir": "out",
    "rewards": "{sums:{tag_included:[arithmetic],verifiers:{format:1.0}}}",
    "prompts_per_step": 6,
    "num_return_sequences_in_group": 2,
    "actor_train__data_args__file_name": "examples/data/sums_train.jsonl",
    "actor_train__data_args__max_samples": 10,
    "validation__data_args__file_name": "examples/data/sums_val.jsonl",
    "validation__data_args__max_samples": 5,
}
"""Four steps of four levels and six prompts, so that the ten prompts come round twice."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from start to end."""
    folder = tmp_path_factory.mktemp("whole")
    done = start(command(**MIXED), folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.mark.exhaustive
def test_a_killed_mixture_goes_on_with_the_same_levels_and_prompts_to_the_same_weights(
    whole: Path, tmp_path: Path
) -> None:
    words = command(**MIXED, env_modules="[sabotage]", resume_from_checkpoint="true")
    killed = start(words, tmp_path, ROLL_TEST_KILL="rollout:3")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    done = start(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "out") == rows(whole)
    assert same(train_state(tmp_path / "out", 4), train_state(whole, 4))


def test_every_step_has_both_kinds_in_their_shares(whole: Path) -> None:
    names = []
    for step in range(1, 5):
        trajectories = list(read_trajectories(whole / "trajectories" / f"step={step:06d}.parquet"))
        members = Counter((each.tag, each.group_id) for each in trajectories)
        assert Counter(tag for tag, _ in members) == {"SimpleSokoban": 4, "arithmetic": 6}
        assert {(tag, size) for (tag, _), size in members.items()} == {("SimpleSokoban", 4), ("arithmetic", 2)}
        names += [name for _, name in members]
    assert len(set(names)) == len(names)


def test_both_kinds_are_evaluated_and_shown(whole: Path) -> None:
    last = [row for row in rows(whole) if "val/success" in row][-1]
    assert {"val/SimpleSokoban/success", "val/arithmetic/success", "val/sums/correct", "val/mean@1"} <= last.keys()
    assert last["val/sums/share"] == pytest.approx(5 / (6 + 5))
    assert "val/env/success" in last and "val/verifier/format" in last
    pages = "".join(path.read_text() for path in (whole / "render").rglob("*.html"))
    assert "SimpleSokoban" in pages and "arithmetic" in pages
