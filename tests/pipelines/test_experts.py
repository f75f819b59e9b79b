"""Runs that learn from an expert's answers beside their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from tests.e2e import support
from tests.e2e.rlvr_support import DATA, small_config
from tests.e2e.support import same, train_state

pytestmark = pytest.mark.long  # whole runs

WORKED = {"path": "roll.models.toy.worked_exercises", "name": "WorkedExercises", "kwargs": {"problems": 7}}


def mixed(folder: Path, **changes: Any) -> Any:
    expert = {"expert_data_ratio": 0.3, "data_args": {"custom_cls": WORKED}}
    quick = {"max_steps": 4, "eval_steps": 0, "mini_batches": 2, "dynamic_sampling__enable": "false"}
    return small_config(folder, **{"policy_loss": "mix", "expert": expert, **quick, **changes})


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for row in support.rows(folder) if "train/loss" in row]


@pytest.mark.exhaustive
def test_a_run_with_an_expert_goes_on_exactly_where_it_was_stopped(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    chord = {"policy_loss": "chord", "policy_loss_options": {"mu_decay_steps": 4, "mu_peak": 0.6}, "save_steps": 0}
    run_rlvr(mixed(whole, max_steps=2, **chord))
    run_rlvr(mixed(parts, max_steps=1, **chord))
    run_rlvr(mixed(parts, max_steps=2, resume_from_checkpoint=True, **chord))
    found = rows(whole)
    # To 8 responses of an optimiser step come 4 rows: 3 would be 27 % of 11.
    assert [row["expert/rows"] for row in found] == [8.0] * 2
    assert [row["expert/epoch"] for row in found] == pytest.approx([8 / 7, 16 / 7])
    assert [row["train/policy/mu"] for row in found] == pytest.approx([0.5268, 0.35], abs=1e-4)
    assert rows(parts) == found
    assert same(train_state(parts, 2), train_state(whole, 2))


@pytest.mark.exhaustive
def test_a_batch_has_what_is_sampled_what_is_replayed_and_what_an_expert_wrote_also_when_a_run_goes_on(
    tmp_path: Path,
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    replay = {"experience__fresh_share": 0.5, "experience__uses": 2, "save_steps": 0}
    run_rlvr(mixed(whole, max_steps=3, **replay))
    run_rlvr(mixed(parts, max_steps=2, **replay))
    run_rlvr(mixed(parts, max_steps=3, resume_from_checkpoint=True, **replay))
    found = rows(whole)
    assert [row["rollout/groups_replayed"] for row in found] == [0, 2, 2], "of four groups of four responses"
    assert [row["expert/rows"] for row in found] == [8] * 3
    assert [row["batch/samples"] for row in found] == [16] * 3, "and those of the expert beside them"
    assert all(row["train/expert/nll"] > 0 for row in found)
    assert same(train_state(parts, 3), train_state(whole, 3))


def test_an_expert_is_imitated(tmp_path: Path) -> None:
    file = tmp_path / "words.jsonl"
    file.write_text('{"prompt": "1 + 1 = ?", "response": "I do not know"}\n')
    changes = {"policy_loss_options": {"mu": 1.0}, "actor_train__training_args__learning_rate": 1e-3, "save_steps": 0}
    run_rlvr(mixed(tmp_path / "run", max_steps=2, expert={"data_args": {"file_name": str(file)}}, **changes))
    said = [row["train/expert/nll"] for row in rows(tmp_path / "run")]
    assert said[-1] < 0.9 * said[0]


def test_an_expert_who_answered_the_same_prompts_joins_every_group(tmp_path: Path) -> None:
    worked = {**WORKED, "kwargs": {"problems": 14}}
    expert = {"join": "groups", "data_args": {"custom_cls": worked}}
    run_rlvr(mixed(tmp_path, policy_loss="luffy", expert=expert, max_steps=1, save_steps=0))
    (row,) = rows(tmp_path)
    assert row["expert/rows"] == 4.0 and row["batch/samples"] == 16 + 4 and row["train/expert/nll"] > 0
    assert row["rollout/reward"] == row["reward/mean"]


@pytest.mark.parametrize(
    ("answer", "earned"),
    [pytest.param("{answer}", 1.1, marks=pytest.mark.exhaustive), ("7{answer}", 0.1)],
    ids=["right", "wrong"],
)
def test_an_experts_answer_is_graded_as_the_policys_are(answer: str, earned: float, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    problems = [json.loads(line) for line in (DATA / "arithmetic_train.jsonl").read_text().splitlines()[:14]]
    said = "<think>so</think><answer>" + answer + "</answer>"
    rows_of_file = [{"prompt": row["prompt"], "response": said.format(answer=row["ground_truth"])} for row in problems]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows_of_file))
    expert = {"join": "groups", "score": "graded", "data_args": {"file_name": str(file)}}
    run_rlvr(mixed(tmp_path / "run", policy_loss="luffy", expert=expert, max_steps=1, save_steps=0))
    (row,) = rows(tmp_path / "run")
    assert row["expert/rows"] == 4.0 and row["expert/score"] == pytest.approx(earned)


def test_other_answers_of_experts_do_not_continue_a_run(tmp_path: Path) -> None:
    run_rlvr(mixed(tmp_path, max_steps=1))
    other = {"data_args": {"custom_cls": {**WORKED, "kwargs": {"problems": 8}}}}
    with pytest.raises(ConfigError, match=r"(?s)expert\.data_args.*7 rows then, 8"):
        run_rlvr(mixed(tmp_path, expert=other, resume_from_checkpoint=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy_loss": "ppo"}, "policy_loss ppo knows no experts"),
        ({"policy_loss": "luffy"}, "rows beside the batch have none"),
        ({"expert": {"join": "groups", "data_args": {"file_name": "x.jsonl"}}}, "which members of groups are not"),
        (
            {"adv_estimator": "reinforce", "expert": {"join": "groups", "data_args": {"file_name": "x.jsonl"}}},
            "compared with those of its group",
        ),
        ({"expert": {"score": "excellent", "data_args": {"file_name": "x.jsonl"}}}, "expert.score"),
        ({"expert": None}, "mix learns from what experts wrote, and nothing says where that is"),
        ({"expert": {}}, "expert.data_args.file_name"),
        ({"expert": {"data_args": {"file_name": "x.jsonl", "prompt": "question"}}}, "use expert.prompt_key"),
        ({"expert": {"data_args": {"file_name": "x.jsonl"}, "text_key": "a", "messages_key": "b"}}, "expert.text_key"),
        ({"expert": {"data_args": {"file_name": "nowhere.jsonl"}}}, "nowhere.jsonl"),
    ],
)
def test_what_is_wrong_with_an_expert_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        run_rlvr(mixed(tmp_path / "run", **changes))
    assert said in str(raised.value) and "Fix: " in str(raised.value)


def test_games_that_a_teacher_played_stand_beside_those_of_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "games.jsonl"
    game = [{"role": "user", "content": "a board"}, {"role": "assistant", "content": "<answer>Right</answer>"}]
    file.write_text("".join(json.dumps({"messages": game * turns}) + "\n" for turns in (1, 2, 3)))
    config = support.small_config(
        tmp_path / "run",
        **{"policy_loss": "mix", "expert.data_args.file_name": str(file), "expert.expert_data_ratio": 0.2},
        **{"max_steps": 1, "save_steps": 0, "eval_steps": 0},
    )
    run_agentic(config)
    (row,) = rows(tmp_path / "run")
    assert row["expert/rows"] == 4.0 and row["train/expert/nll"] > 0


@pytest.mark.parametrize(
    ("sampled", "ratio", "expected"),
    [(256, 0.2, 64), (768, 0.11, 95), (8, 0.5, 8), (8, 0.3, 4), (1, 0.01, 1), (16, 0.2, 4)],
)
def test_the_fewest_rows_that_are_their_share(sampled: int, ratio: float, expected: int) -> None:
    from roll.config.expert import ExpertConfig

    found = ExpertConfig(expert_data_ratio=ratio).rows_beside(sampled)
    assert found == expected
    assert found >= ratio * (sampled + found) - 1e-9 and found - 1 < ratio * (sampled + found - 1) + 1e-9


def test_games_of_an_expert_are_not_graded(tmp_path: Path) -> None:
    expert = {"expert.join": "groups", "expert.score": "graded", "expert.data_args.file_name": "x.jsonl"}
    with pytest.raises(ConfigError, match=r"(?s)expert\.score.*this run plays"):
        run_agentic(support.small_config(tmp_path, **{"policy_loss": "luffy", "adv_estimator": "grpo", **expert}))
