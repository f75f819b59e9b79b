"""What a study is to try: every mistake is a problem of the configuration, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config import ConfigError
from roll.config.errors import FixableError
from roll.config.ranges import Choice, Range
from roll.tuning.plan import make_plan, seconds_in

pytestmark = pytest.mark.long  # whole studies

RATE = "actor_train.training_args.learning_rate"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.exhaustive
def test_ranges_of_file_and_command_line_come_together_and_other_words_hold_for_every_trial() -> None:
    Path("mine.yaml").write_text(
        f"defaults: [sokoban, _self_]\ntune:\n  {RATE}: {{low: 1e-4, high: 1e-2, log: true}}\n  mini_batches: [1, 2]\n"
    )
    plan = make_plan("mine", ["mini_batches=2,4", "seed=7", "max_steps=24", "eval_steps=8", "pg_clip=uniform(0.1,0.3)"])
    assert plan.space == {RATE: Range(1e-4, 1e-2, log=True), "mini_batches": Choice((2, 4)), "pg_clip": Range(0.1, 0.3)}
    assert plan.words == ("seed=7", "max_steps=24", "eval_steps=8") and plan.config.seed == 7
    assert plan.folder == Path("output/sokoban/tune")
    assert plan.rungs == [8, 24] and plan.combinations is None


@pytest.mark.exhaustive
def test_a_key_that_takes_whole_numbers_is_given_whole_ones() -> None:
    plan = make_plan("sokoban", ["mini_batches=uniform(1,8)", f"{RATE}=uniform(1,2)"])
    assert [type(plan.space[key].low) for key in ("mini_batches", RATE)] == [int, float]  # type: ignore[union-attr]
    assert make_plan("sokoban", ["mini_batches=uniform(1,8)", "pg_clip=0.1,0.2"]).combinations == 16


def test_decisions_come_at_evaluations() -> None:
    plan = make_plan("sokoban", ["pg_clip=0.1,0.2", "max_steps=500", "eval_steps=10"])
    assert plan.rungs == [60, 180, 500]
    plan = make_plan("sokoban", ["pg_clip=0.1,0.2", "max_steps=64", "eval_steps=4"], reduction_factor=4)
    assert plan.rungs == [4, 16, 64]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed=1"], "nothing says what is to be tuned"),
        (["actor_train.training_args.learning_ratee=loguniform(1e-5,1e-3)"], "did you mean"),
        ([f"{RATE}=uniform(-1,1)"], "greater than"),
        ([f"{RATE}=loguniform(1e-3,1e-5)"], "nothing between"),
        (["mini_batches=uniform(1.5,8)"], "whole numbers"),
        (["adv_estimator=grpo,grppo"], "did you mean"),
        (["pg_clip=0.1,0.2", "eval_steps=0"], "compared by their evaluations"),
        (["pg_clip=0.1,0.2", "max_steps=0"], "nothing to tune"),
        (["pg_clip=0.1,0.2", "resume_from_checkpoint=true"], "trials go on by themselves"),
        (["pg_clip=0.1,0.2", "max_stepz=3"], "max_steps"),
        (["pg_clip=gauss(1,2)"], "cannot be read"),
    ],
)
def test_mistakes_are_named_before_anything_runs(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan("sokoban", words)
    assert said in str(refused.value).lower() and not Path("output").exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("2h", 7200), ("90s", 90), ("1h30m", 5400), ("15", 900), ("0.5h", 1800)]
)
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "0m", "5x", "inf"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(FixableError, match="no time"):
        seconds_in(text)
