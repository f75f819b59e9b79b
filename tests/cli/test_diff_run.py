"""``roll diff-run``, called as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.cli.app import main

pytestmark = pytest.mark.long

VERL = """python3 -m verl.trainer.main_ppo
algorithm.adv_estimator=grpo
data.train_files=examples/data/arithmetic_train.jsonl
data.train_batch_size=16
data.max_prompt_length=96
data.max_response_length=48
actor_rollout_ref.model.path=toy_math
actor_rollout_ref.rollout.n=8
actor_rollout_ref.rollout.name=hf_infer
actor_rollout_ref.actor.ppo_mini_batch_size=8
"""


@pytest.mark.exhaustive
def test_dialects_are_compared_and_the_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text(VERL)
    second.write_text(VERL + "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum\n")
    with pytest.raises(SystemExit) as left:
        main(["diff-run", str(first), str(second), "--json"])
    assert left.value.code == 3
    found = json.loads(capsys.readouterr().out)
    assert [list(cause["keys"]) for cause in found["causes"]] == [["loss_agg_mode"]]
    assert found["causes"][0]["stage"] == "loss"


def test_what_does_not_learn_from_scores_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["diff-run", "sft_sokoban", "sft_sokoban"])
    assert left.value.code == 2
    assert "does not learn from scores" in capsys.readouterr().err
