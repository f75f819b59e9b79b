"""A student that answers prompts comes nearer to its teachers, with rewards and without, and goes on exactly."""

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError, PromptDistillConfig, load
from roll.pipelines.distill import PromptDistillPipeline
from roll.runs.stored import StoredRun
from roll.trajectories.store import read_trajectories
from tests.pipelines.noisy_model import noisy_math

pytestmark = pytest.mark.long  # whole runs

TEACHER = {"model_args": {"model_name_or_path": "toy_math"}, "strategy_args": {"strategy_name": "hf_infer"}}
TRAIN = "roll/presets/data/arithmetic_train.jsonl"


def config(folder: Path, **changes: Any) -> PromptDistillConfig:
    mapping = {
        "pipeline": "distill_prompts",
        "pretrain": noisy_math(),
        "output_dir": str(folder),
        "progress": "none",
        "track_with": ["jsonl"],
        "max_steps": 4,
        "save_steps": 2,
        "sequence_length": 96,
        "rollout_batch_size": 16,
        "mini_batches": 1,
        "teacher": TEACHER,
        "actor_train": {
            "model_args": {"disable_gradient_checkpointing": True},
            "data_args": {"file_name": [TRAIN], "max_samples": 64},
            "training_args": {"learning_rate": 3e-4, "lr_scheduler_type": "constant"},
        },
        "actor_infer": {"generating_args": {"max_new_tokens": 24}, "strategy_args": {"strategy_name": "hf_infer"}},
    }
    loaded = load(mapping, overrides={key.replace("__", "."): value for key, value in changes.items()})
    assert isinstance(loaded, PromptDistillConfig)
    return loaded


def metrics(folder: Path) -> list[dict[str, float]]:
    timed = ("time/", "throughput/", "generation/", "weight_sync/")
    return [
        {key: value for key, value in row.items() if not key.startswith(timed)}
        for row in StoredRun.open(folder).metrics()
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    PromptDistillPipeline.start(config(folder))
    return folder


def test_the_student_comes_nearer_to_its_teacher_without_any_reward(whole: Path) -> None:
    distances = [row["train/distill/divergence"] for row in metrics(whole)]
    assert len(distances) == 4 and distances[-1] < 0.7 * distances[0]


def test_what_nobody_graded_has_no_score(whole: Path) -> None:
    answers = list(read_trajectories(whole / "trajectories" / "step=000001.parquet"))
    assert len(answers) == 16 and all(each.score is None and not each.status.is_error for each in answers)
    first = metrics(whole)[0]
    assert first["rollout/response_tokens"] > 0 and first["rollout/prompts_consumed"] == 16
    assert not {"rollout/reward", "rollout/success", "reward/mean", "env/success"} & first.keys()


@pytest.mark.exhaustive
def test_a_run_goes_on_exactly_where_it_was_stopped(whole: Path, tmp_path: Path) -> None:
    PromptDistillPipeline.start(config(tmp_path, max_steps=2))
    PromptDistillPipeline.start(config(tmp_path, resume_from_checkpoint=True))

    assert metrics(tmp_path) == metrics(whole)
    weights = [run / "checkpoints/step=000004/hf/model.safetensors" for run in (tmp_path, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.exhaustive
def test_with_rewards_answers_are_graded_and_evaluated(tmp_path: Path) -> None:
    graded = {
        "rewards": {"math_rule": {"tag_included": ["arithmetic"]}},
        "validation": {"data_args": {"file_name": [TRAIN], "max_samples": 4}},
    }
    PromptDistillPipeline.start(config(tmp_path, max_steps=1, eval_steps=1, save_steps=0, **graded))

    rows = metrics(tmp_path)
    assert "rollout/success" in next(row for row in rows if "train/distill/divergence" in row)
    assert [row["val/arithmetic/success"] for row in rows if "val/success" in row]


@pytest.mark.exhaustive
def test_every_tag_of_the_rows_has_its_own_teacher(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number} + 1 = ?", "tag": ("easy", "hard")[number % 2]} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"actor_train__data_args__file_name": [str(tmp_path / "rows.jsonl")], "rollout_batch_size": 8}
    other = {**TEACHER, "model_args": {"model_name_or_path": noisy_math()}}
    two = {"teacher": None, "teachers": {"easy": other, "hard": TEACHER}}
    once = {"max_steps": 1, "save_steps": 0, "teacher_top_k": 4}

    PromptDistillPipeline.start(config(tmp_path / "own", **data, **once, **two))
    (first,) = metrics(tmp_path / "own")
    PromptDistillPipeline.start(config(tmp_path / "all", **data, **once))
    (alone,) = metrics(tmp_path / "all")
    # Half of the rows are taught by the student's own model, from which nothing divides it.
    assert 0 < first["train/distill/divergence"] < 0.8 * alone["train/distill/divergence"]


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"teacher": None}, "teacher", "nobody teaches"),
        ({"actor_train__data_args__file_name": None}, "actor_train.data_args.file_name", "no prompts to train on"),
        ({"validation": {"data_args": {"file_name": [TRAIN]}}}, "rewards", "answers of an evaluation are graded"),
        ({"dynamic_sampling__enable": True}, "dynamic_sampling.enable", "no answer has a score"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(tmp_path: Path, changes: Any, key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        config(tmp_path, **changes)
    assert any(problem.path == key for problem in error.value.problems)


def test_a_row_that_nobody_teaches_is_told_with_its_place(tmp_path: Path) -> None:
    taught = config(tmp_path, teacher=None, teachers={"words": TEACHER, "codes": TEACHER})
    with pytest.raises(ConfigError, match="belong to no domain.*'arithmetic'"):
        PromptDistillPipeline.start(taught)
