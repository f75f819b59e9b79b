"""The RLVR main job, from the command line to the files it leaves."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.pipelines.rlvr import run_rlvr
from roll.trajectories.model import Trajectory
from roll.trajectories.store import read_trajectories
from tests.e2e.conftest import Run
from tests.e2e.rlvr_support import DATA, command, evaluation_command, small_config
from tests.e2e.support import rows, same, start, train_state
from tests.rings import exhaustive_but


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run from start to end."""
    folder = tmp_path_factory.mktemp("rlvr")
    done = start(command(output_dir="out"), folder, cold=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return Run(folder / "out", done)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run, killed in an update, in a rollout and in a checkpoint, and resumed each time."""
    folder = tmp_path_factory.mktemp("rlvr-resumed")
    words = command(output_dir="out", reward_modules="[sabotage]", resume_from_checkpoint="true")
    for moment in ("update:5", "rollout:2", "checkpoint:1"):
        done = start(words, folder, ROLL_TEST_KILL=moment)
        assert done.returncode == -signal.SIGKILL, (moment, done.stdout, done.stderr)
    done = start(words, folder)
    assert done.returncode == 0, done.stderr
    return Run(folder / "out", done)


def trajectories(run: Run, step: int, phase: str = "") -> list[Trajectory]:
    return read_trajectories(run.output_dir / "trajectories" / f"{phase}step={step:06d}.parquet")


def test_a_run_trains_on_graded_groups_of_responses(finished: Run) -> None:
    trained = trajectories(finished, 1)
    assert len(trained) == 16
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in trained:
        by_group.setdefault(trajectory.group_id, []).append(trajectory)
    assert [len(members) for members in by_group.values()] == [4] * 4
    for members in by_group.values():
        assert len({member.initial_hash for member in members}) == 1
        assert len({member.score for member in members}) > 1, "groups without variance were replaced"
        assert all(member.turns[0].completion_ids for member in members)
        for member in members:
            assert sum(member.turns[0].reward_parts.values()) == pytest.approx(member.score)


def test_its_metrics_are_those_of_its_trajectories(finished: Run) -> None:
    row = next(row for row in rows(finished.output_dir) if row["step"] == 1 and "reward/mean" in row)
    trained = trajectories(finished, 1)
    assert row["reward/mean"] == pytest.approx(sum(t.score or 0 for t in trained) / 16)
    assert "env/success" not in row  # there is no environment
    assert row["rollout/success"] == pytest.approx(sum(t.success for t in trained) / 16)
    assert row["rollout/prompts_consumed"] == 4 + row["rollout/groups_filtered"]


def test_no_prompt_of_an_epoch_is_used_twice_and_the_next_epoch_begins_behind_it(finished: Run) -> None:
    consumed = [int(row["rollout/prompts_consumed"]) for row in rows(finished.output_dir) if "reward/mean" in row]
    starts = [sum(consumed[:step]) for step in range(5)]
    assert starts[-1] > 14, "the run crosses the end of an epoch"
    for step in range(4):
        positions = {int(t.group_id.removeprefix("train-")) for t in trajectories(finished, step + 1)}
        assert starts[step] <= min(positions) and max(positions) == starts[step + 1] - 1


def test_evaluations_have_accuracies_per_source(finished: Run) -> None:
    evaluations = [row for row in rows(finished.output_dir) if "val/success" in row]
    assert [row["step"] for row in evaluations] == [0, 2, 4]
    graded = trajectories(finished, 4, "val_")
    assert evaluations[-1]["val/arithmetic/success"] == pytest.approx(sum(t.success for t in graded) / len(graded))
    assert (finished.output_dir / "render" / "index.html").exists()


@pytest.mark.exhaustive
def test_a_run_killed_at_three_moments_is_the_run_that_was_never_interrupted(finished: Run, resumed: Run) -> None:
    assert rows(resumed.output_dir) == rows(finished.output_dir)
    assert same(train_state(resumed.output_dir, 4), train_state(finished.output_dir, 4))
    assert [t.group_id for t in trajectories(resumed, 4)] == [t.group_id for t in trajectories(finished, 4)]


@pytest.mark.exhaustive
def test_a_run_that_is_told_to_end_saves_the_last_completed_step(tmp_path: Path) -> None:
    words = command(output_dir="out", reward_modules="[sabotage]")
    done = start(words, tmp_path, ROLL_TEST_KILL="rollout:2", ROLL_TEST_SIGNAL="SIGTERM")
    assert done.returncode == 130, done.stderr + done.stdout
    assert "The newest checkpoint is out/checkpoints/step=000001" in done.stderr
    assert "--config-name rlvr_math" in done.stderr and "resume_from_checkpoint=true" in done.stderr


def test_resuming_on_other_data_is_refused(finished: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join((DATA / "arithmetic_train.jsonl").read_text().splitlines(keepends=True)[20:40]))
    checkpoint = finished.output_dir / "checkpoints" / "step=000002"
    with pytest.raises(ConfigError, match=r"actor_train\.data_args"):
        run_rlvr(
            small_config(
                tmp_path / "out",
                actor_train__data_args__file_name=str(other),
                resume_from_checkpoint=str(checkpoint),
            )
        )


WAYS: dict[str, dict[str, Any]] = {
    "batches and packing": {
        "generate_opt_level": 0,
        "actor_train__use_sequence_packing": True,
        "actor_train__log_prob_chunk_size": 64,
        "reward_norm": "running",
        "adv_estimator": "reinforce",
        "old_log_probs": "recompute",
    },
    "additional prompts and remax": {"is_use_additional_prompts": True, "adv_estimator": "remax"},
    "critic": {"adv_estimator": "gae", "critic": {"training_args": {"learning_rate": 1e-3}}, "critic_warmup": 1},
    "reference": {"ppo_epochs": 2, "use_kl_loss": True, "kl_loss_coef": 0.01, "reference": {}},
    "full_kl": {
        "kl_penalty": "full",
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "init_kl_coef": 0.1,
        "reference": {},
    },
}
"""Keys that have nothing to do with each other share a run."""


@pytest.mark.parametrize("way", exhaustive_but(WAYS, "critic"))
def test_every_way_to_run_is_reproducible_and_learns(tmp_path: Path, way: str) -> None:
    changes = WAYS[way]
    states = []
    for name in ("first", "again"):
        run_rlvr(small_config(tmp_path / name, max_steps=2, eval_steps=0, **changes))
        states.append(train_state(tmp_path / name, 2))
    assert same(*states)
    trained = [row for row in rows(tmp_path / "first") if "reward/mean" in row]
    assert [row["step"] for row in trained] == [1, 2]
    assert trained[-1]["train/grad_norm"] > 0


@pytest.mark.exhaustive
def test_a_critic_is_trained_first_alone_and_resumes_with_the_policy(tmp_path: Path) -> None:
    critic = {"training_args": {"learning_rate": 1e-3}}
    changes = {"adv_estimator": "gae", "critic": critic, "critic_warmup": 2, "eval_steps": 0, "save_steps": 1}
    run_rlvr(small_config(tmp_path / "whole", max_steps=3, **changes))
    recorded = rows(tmp_path / "whole")
    assert ["train/grad_norm" in row for row in recorded] == [False, False, True]
    assert all(row["critic/grad_norm"] > 0 and "critic/loss" in row for row in recorded)
    run_rlvr(small_config(tmp_path / "parts", max_steps=2, **changes))
    run_rlvr(small_config(tmp_path / "parts", max_steps=3, resume_from_checkpoint=True, **changes))
    assert same(train_state(tmp_path / "parts", 3), train_state(tmp_path / "whole", 3))
    assert rows(tmp_path / "parts") == recorded


def test_domains_are_mixed_by_their_shares_and_graded_by_their_own_rubrics(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        max_steps=1,
        eval_steps=0,
        rollout_batch_size=8,
        dynamic_sampling__enable=False,
        rewards={
            "math_rule": {"tag_included": ["arithmetic"]},
            "multiple_choice": {"verifiers": {"multiple_choice": 2.0, "format": 0.5}},
        },
        actor_train__data_args__file_name=[
            str(DATA / "arithmetic_train.jsonl"),
            str(DATA / "multiple_choice_train.jsonl"),
        ],
        actor_train__data_args__domain_interleave_probs={"math_rule": 0.75, "multiple_choice": 0.25},
        prompt_length=96,
        sequence_length=160,
    )
    run_rlvr(config)
    trained = read_trajectories(tmp_path / "trajectories" / "step=000001.parquet")
    tags = [trajectory.tag for trajectory in trained]
    assert tags.count("arithmetic") == 24 and tags.count("multiple_choice") == 8
    for trajectory in trained:
        parts = set(trajectory.turns[0].reward_parts)
        assert parts == ({"math"} if trajectory.tag == "arithmetic" else {"multiple_choice", "format"})
    assert rows(tmp_path)[0]["rollout/multiple_choice/share"] == 0.25


MISTAKES = {
    "verifier": ({"rewards.math_rule.verifiers": {"maths": 1.0}}, "rewards.math_rule.verifiers.maths", "math"),
    "file": ({"actor_train.data_args.file_name": "nowhere.jsonl"}, "actor_train.data_args.file_name", "nowhere.jsonl"),
    "tag": ({"rewards.math_rule.tag_included": ["algebra"]}, "arithmetic", "algebra"),
    "length": ({"prompt_length": 4}, "arithmetic_train.jsonl, line", "4"),
    "preset": ({"algorithm_type": "dpo"}, "algorithm_type", "preferences"),
    "strategy": (
        {"actor_train.strategy_args.strategy_config": {"fsdp_sise": 2}},
        "actor_train.strategy_args.strategy_config.fsdp_sise",
        "fsdp_size",
    ),
    "option": ({"policy_loss_options": {"speed": 2}}, "policy_loss_options.speed", "no such option"),
    "group": ({"num_return_sequences_in_group": 1}, "num_return_sequences_in_group", "nobody to compare with"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_problem_with_its_place_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    changes, place, hint = MISTAKES[name]
    with pytest.raises(ConfigError) as caught:
        run_rlvr(small_config(tmp_path / "out", **changes))
    assert place in str(caught.value) and hint in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_the_data_ends_the_program_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"prompt": "1 + 1?", "ground_truth": "2"}\n{"prompt": \n')
    done = start(command(output_dir="out", actor_train__data_args__file_name="broken.jsonl"), tmp_path)
    assert done.returncode == 2, done.stderr + done.stdout
    assert "broken.jsonl, line 2" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_a_policy_and_its_recorded_responses_are_evaluated_alike(finished: Run, tmp_path: Path) -> None:
    policy = finished.output_dir / "checkpoints" / "step=000004" / "hf"
    limits = {"validation__data_args__max_samples": 6, "validation__generating_args__num_return_sequences": 2}
    done = start(evaluation_command(output_dir="sampled", pretrain=policy, **limits), tmp_path, cold=True)
    assert done.returncode == 0, done.stderr
    assert "mean@2" in done.stdout and "arithmetic" in done.stdout
    sampled = json.loads((tmp_path / "sampled" / "evaluation.json").read_text())
    stored = tmp_path / "sampled" / "trajectories" / "val_step=000000.parquet"
    done = start(evaluation_command(output_dir="graded", recorded=stored, **limits), tmp_path)
    assert done.returncode == 0, done.stderr
    graded = json.loads((tmp_path / "graded" / "evaluation.json").read_text())
    assert graded == sampled


def test_responses_in_a_data_file_are_graded_per_source(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    recorded = [
        {"prompt": "1 + 1?", "ground_truth": "2", "tag": "arithmetic", "responses": ["2", "\\boxed{2}", "3", "5"]},
        {"prompt": "2 + 2?", "ground_truth": "4", "tag": "word_problems", "responses": ["It is 4", "4.0", "4", "4"]},
    ]
    pandas.DataFrame(recorded).to_parquet(tmp_path / "responses.parquet")
    done = start(evaluation_command(output_dir="out", recorded="responses.parquet"), tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert metrics["arithmetic/mean@4"] == 0.5 and metrics["arithmetic/pass@4"] == 1.0
    assert metrics["word_problems/mean@4"] == 1.0
