"""A run of distillation: the student comes nearer to its teachers, goes on exactly, and mistakes are told in time."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError, DistillConfig, load
from roll.pipelines.agentic import AgenticPipeline
from roll.pipelines.distill import DistillPipeline

pytestmark = pytest.mark.long  # whole runs

SMALL: dict[str, Any] = {
    "progress": "none",
    "track_with": ["jsonl"],
    "max_steps": 4,
    "save_steps": 2,
    "eval_steps": 4,
    "max_actions_per_traj": 2,
    "mini_batches": 1,
    "rollout_batch_size": 8,
    "train_env_manager.env_groups": 8,
    "val_batch_size": 4,
    "val_env_manager.env_groups": 4,
    "actor_train.training_args.lr_scheduler_type": "constant_with_warmup",
    "actor_train.training_args.warmup_ratio": 0.0,
}


def config(folder: Path, **changes: Any) -> DistillConfig:
    overrides = {
        **SMALL,
        "output_dir": str(folder),
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    loaded = load("distill_sokoban", overrides=overrides)
    assert isinstance(loaded, DistillConfig)
    return loaded


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "logs" / "metrics.jsonl").read_text().splitlines()
    timed = ("time/", "throughput/", "generation/", "weight_sync/")
    return [{key: value for key, value in json.loads(line).items() if not key.startswith(timed)} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    DistillPipeline.start(config(folder))
    return folder


def test_the_student_comes_nearer_to_its_teacher(whole: Path) -> None:
    distances = [row["train/distill/divergence"] for row in metrics(whole) if "train/distill/divergence" in row]
    assert len(distances) == 4 and distances[-1] < 0.7 * distances[0]


@pytest.mark.exhaustive
def test_a_run_goes_on_exactly_where_it_was_stopped(whole: Path, tmp_path: Path) -> None:
    DistillPipeline.start(config(tmp_path, max_steps=2))
    DistillPipeline.start(config(tmp_path, resume_from_checkpoint=True))
    steps = {row["step"]: row for row in metrics(tmp_path) if "train/loss" in row}
    wanted = {row["step"]: row for row in metrics(whole) if "train/loss" in row}
    assert steps == wanted


def test_all_tokens_as_the_likeliest_are_the_whole_vocabulary(whole: Path, tmp_path: Path) -> None:
    DistillPipeline.start(config(tmp_path, max_steps=1, eval_steps=0, save_steps=0, teacher_top_k=491))
    ours, theirs = (metrics(folder) for folder in (tmp_path, whole))
    first = [next(row for row in rows if "train/loss" in row)["train/loss"] for rows in (ours, theirs)]
    assert first[0] == pytest.approx(first[1], rel=1e-5)


def test_every_tag_has_its_own_teacher(tmp_path: Path) -> None:
    teachers = {
        "pushing": {"tag_included": ["SimpleSokoban"], "model_args": {"model_name_or_path": "toy_sokoban"}},
        "larger": {"tag_included": ["LargerSokoban"], "model_args": {"model_name_or_path": "toy_mixed"}},
    }
    changes = {"train_env_manager.tags": ["SimpleSokoban", "LargerSokoban"], "max_steps": 1, "eval_steps": 0}
    taught = config(tmp_path, teacher=None, teachers=teachers, teacher_top_k=4, **changes)
    assert taught.teachers_by_tag() == {"SimpleSokoban": "teachers.pushing", "LargerSokoban": "teachers.larger"}
    DistillPipeline.start(taught)
    assert 0 < metrics(tmp_path)[-1]["train/distill/divergence"] < 10


@pytest.mark.exhaustive
def test_what_a_teacher_said_is_stored_and_teaches_without_it(tmp_path: Path) -> None:
    once = {"max_steps": 1, "eval_steps": 0, "save_steps": 0}
    DistillPipeline.start(config(tmp_path / "first", teacher_top_k=6, store_teacher=True, divergence="jsd", **once))
    stored = tmp_path / "first" / "teacher" / "step=000001.parquet"

    changes = {"teacher": None, "teacher_data": str(stored), "divergence": "jsd", "eval_steps": 0}
    DistillPipeline.start(config(tmp_path / "second", **changes, max_steps=3))

    (first, *_), second = (metrics(tmp_path / name) for name in ("first", "second"))
    losses = [row["train/loss"] for row in second if "train/loss" in row]
    # A step has as many rows as there are: the same ones, in another order.
    assert losses[0] == pytest.approx(first["train/loss"], rel=1e-5) and losses[2] < losses[0]
    assert [row["train/epoch"] for row in second if "train/loss" in row] == [1, 2, 3]
    DistillPipeline.start(config(tmp_path / "third", **changes, max_steps=2))
    DistillPipeline.start(config(tmp_path / "third", **changes, max_steps=3, resume_from_checkpoint=True))
    assert [row["train/loss"] for row in metrics(tmp_path / "third") if "train/loss" in row] == losses

    said = mistakes(tmp_path, teacher_data=str(stored))
    assert "nobody is asked" in said
    said = mistakes(tmp_path, **{**changes, "teacher_data": str(tmp_path / "none.parquet")})
    assert "teacher_data" in said and "none.parquet" in said


def mistakes(folder: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        DistillPipeline.start(config(folder / "run", **changes))
    assert not (folder / "run").exists()
    return str(raised.value)


def test_a_teacher_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    said = mistakes(tmp_path, teacher__model_args__model_name_or_path="toy_math")
    assert "teacher.model_args.model_name_or_path" in said and "its tokenizer is not that of the policy" in said
    assert "on the level of text only" in said and "pipeline: sft" in said


def test_what_teaches_nobody_is_refused(tmp_path: Path) -> None:
    assert "nobody teaches" in mistakes(tmp_path, teacher=None)
    assert "the teacher is no model" in mistakes(tmp_path, teacher__model_args__model_name_or_path=None)
    other = {"model_args": {"model_name_or_path": "toy_mixed"}}
    said = mistakes(tmp_path, teacher=None, teachers={"FrozenLake": other})
    assert "no training step samples tag 'FrozenLake'" in said and "nobody teaches SimpleSokoban" in said
    two = {"a": {**other, "tag_included": ["SimpleSokoban"]}, "b": {**other, "tag_included": ["SimpleSokoban"]}}
    assert "has 2 teachers" in mistakes(tmp_path, teachers=two)


@pytest.mark.exhaustive
def test_the_penalty_of_reinforcement_learning_is_the_same_pull(whole: Path, tmp_path: Path) -> None:
    keys = {
        **{key: value for key, value in SMALL.items() if "scheduler" not in key and "warmup" not in key},
        "pretrain": "toy_shallow",
        "output_dir": str(tmp_path),
        "max_steps": 1,
        "eval_steps": 0,
        "train_env_manager.group_size": 1,
        "adv_estimator": "reinforce",
        "reward_normalization.grouping": "batch",
        "use_kl_loss": True,
        "kl_penalty": "full",
        "kl_loss_coef": 0.5,
    }
    teacher = {"model_args": {"model_name_or_path": "toy_sokoban"}}
    AgenticPipeline.start(load("sokoban", overrides={**keys, "reference": teacher}))
    ours, theirs = (next(row for row in metrics(folder) if "train/loss" in row) for folder in (whole, tmp_path))
    # Both saw the same episodes, with the student as it was.
    assert theirs["reward/mean"] == ours["reward/mean"]
    assert theirs["train/loss/kl"] == pytest.approx(ours["train/distill/divergence"], rel=1e-5)
    with pytest.raises(ConfigError, match="its tokenizer is not that of the policy"):
        other = {"model_args": {"model_name_or_path": "toy_math"}}
        AgenticPipeline.start(load("sokoban", overrides={**keys, "reference": other}))
