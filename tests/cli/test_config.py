"""``roll config``: what it shows is what a run would use, and it names what became of keys of other guides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.cli.app import main
from roll.config import load
from roll.config.written import to_mapping

VERL = """
defaults: [rlvr_math, _self_]
algorithm: {gamma: 0.9}
actor_rollout_ref: {actor: {clip_ratio: 0.3}}
trainer: {balance_batch: true}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def roll(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["config", *words])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def parsed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(roll(capsys, *words, "--json")[1])


@pytest.mark.long
def test_what_is_shown_is_a_configuration_of_the_same_run(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = roll(capsys, "show", "sokoban", "max_steps=3")
    assert code == 0 and "max_steps: 3  # command line\n" in text
    assert any("mini_batches: 2  #" in line and "sokoban.yaml:" in line for line in text.splitlines())
    (elsewhere / "shown.yaml").write_text(text)
    assert load("shown.yaml") == load("sokoban", max_steps=3)
    assert parsed(capsys, "show", "sokoban") == json.loads(json.dumps(to_mapping(load("sokoban")), default=str))


def test_a_sound_configuration_is_said_to_be_with_its_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    said = "eval_math can be used: pipeline evaluation, eval_math.\n  evaluate  every validation prompt × 4 responses\n"
    assert roll(capsys, "check", "eval_math") == (0, said, "")
    assert "  update    256 trajectories → 1 × 2 optimiser steps of 128" in roll(capsys, "check", "sokoban")[1]
    assert parsed(capsys, "check", "sokoban") == {
        "usable": True,
        "pipeline": "agentic",
        "warnings": [],
        "translated": {},
    }


@pytest.mark.long
def test_what_only_the_run_would_find_is_found_before(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = roll(capsys, "check", "rlvr_math", "actor_train.data_args.file_name=[nowhere.jsonl]")
    assert code == 2 and "actor_train.data_args.file_name = 'nowhere.jsonl'" in err and str(elsewhere) in err
    code, _, err = roll(capsys, "check", "sokoban", "train_env_manager.tags=[SimpleSokobann]")
    assert code == 2 and "unknown environment tag 'SimpleSokobann'" in err
    code, _, err = roll(capsys, "check", "three_stages", "stages.rl.val_env_manager.tags=[Chess]")
    assert code == 2 and "stages.rl.val_env_manager.tags" in err


def test_keys_of_other_guides_are_shown_with_what_they_became(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "verl.yaml").write_text(VERL)
    code, out, _ = roll(capsys, "check", "verl.yaml")
    assert code == 0
    assert ["actor_rollout_ref.actor.clip_ratio", "→", "pg_clip:", "0.3"] in [line.split() for line in out.splitlines()]
    assert "trainer.balance_batch: no effect here" in out
    found = parsed(capsys, "check", "verl.yaml")
    assert found["translated"]["algorithm.gamma"] == {"key": "gamma", "value": 0.9}


def test_what_cannot_be_used_has_code_2_and_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = roll(capsys, "check", "sokoban", "max_stepz=3", "seed=x")
    assert (code, out) == (2, "") and "2 problems" in err and "[command line: seed=x]" in err
    code, out, err = roll(capsys, "check", "sokoban", "max_stepz=3", "--json")
    found = json.loads(out)
    assert (code, err, found["usable"]) == (2, "", False)
    assert found["problems"][0]["path"] == "max_stepz" and "max_steps" in found["problems"][0]["fix"]
    assert roll(capsys, "check", "sokobann")[0] == 2


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "max_steps",
            "max_steps  (integer, by default 500; agentic, distill, distill_prompts, distill_rows, dpo, evaluation, "
            "multi_stage, reward_model, rlvr, sample, sft)\n"
            "  Training steps of the run.",
        ),
        ("group_size", "train_env_manager.group_size  (integer, by default 8; evaluation 1; agentic, distill, sample)"),
        ("actor_train.training_args", "Its keys: learning_rate, "),
        ("num_return_sequences_in_group", "num_return_sequences_in_group  (integer"),
        ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.kl_coef  (of verl)\n  sets init_kl_coef"),
    ],
)
def test_a_key_is_explained_wherever_it_stands(key: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = roll(capsys, "explain", key)
    assert code == 0 and said in out


def test_a_key_that_there_is_not_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = roll(capsys, "explain", "max_stepz")
    assert (code, out) == (2, "") and "Did you mean max_steps" in err


@pytest.mark.long
def test_the_difference_of_two_configurations_is_their_keys(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "run").mkdir()
    (elsewhere / "run" / "config.yaml").write_text("defaults: [sokoban, _self_]\nexp_name: sokoban\nseed: 5\n")
    assert roll(capsys, "diff", "sokoban", "run") == (0, "seed: 42 → 5\n", "")
    assert parsed(capsys, "diff", "sokoban", "run") == [{"key": "seed", "first": "42", "second": "5"}]
    assert roll(capsys, "diff", "run", "run")[1] == "run and run say the same.\n"
