"""Whole runs of a policy that sees: Sokoban as pictures, and what such runs leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from roll.config import ConfigError, SFTConfig, load
from roll.config.strategies import is_installed
from roll.generation.pictures import frame_picture
from roll.pipelines.agentic import run_agentic
from roll.pipelines.checks.rows import check_rows
from roll.pipelines.rlvr import run_rlvr
from roll.rendering import PICTURE
from roll.replay.replaying import replay
from roll.runs.stored import StoredRun
from tests.e2e.rlvr_support import small_config as small_prompts
from tests.e2e.support import rows, same, small_config, train_state
from tests.models.tiny_vision import make_tiny_vision
from tests.pictures import SIDE, encoded

SMALL = {
    "max_steps": 2,
    "save_steps": 1,
    "eval_steps": 2,
    "rollout_batch_size": 4,
    "train_env_manager.env_groups": 2,
    "train_env_manager.group_size": 2,
    "val_batch_size": 2,
    "val_env_manager.env_groups": 2,
    "mini_batches": 1,
    "old_log_probs": "recompute",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision(tmp_path_factory.mktemp("vision") / "model", most_tokens=36)


def config_of(folder: Path, output_dir: Path, show: str = "picture", **changes: Any) -> Any:
    shown = {"pretrain": folder, "custom_env.SimpleSokoban.show": show}
    return small_config(output_dir, **{**SMALL, **shown, **changes})


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("runs") / "pictures"
    run_agentic(config_of(folder, output_dir))
    return output_dir


def test_trainer_and_sampler_agree_on_what_is_said_of_pictures(finished: Path) -> None:
    recorded = [row for row in rows(finished) if "sampler/log_prob_difference_max" in row]
    assert [row["step"] for row in recorded] == [1, 2]
    assert all(row["sampler/log_prob_difference_max"] < 1e-4 for row in recorded)
    assert all(row["rollout/errors"] == 0 for row in recorded)


def test_what_the_policy_saw_is_stored_and_comes_out_the_same_again(finished: Path) -> None:
    run = StoredRun.open(finished)
    for trajectory in run.episodes(1, "train"):
        assert all([picture.tokens for picture in turn.pictures] == [36] for turn in trajectory.turns)
        assert all(turn.pictures[0].data == frame_picture(turn.frame) for turn in trajectory.turns)
    found = replay(run, step=2, phase="train")
    assert found.same and found.draws
    assert all(each.log_probs.equal == each.log_probs.compared > 0 for each in found.episodes)


def test_a_checkpoint_can_be_played_with_as_it_is(finished: Path, tmp_path: Path) -> None:
    saved = finished / "checkpoints" / "step=000002" / "hf"
    run_agentic(config_of(saved, tmp_path / "next", show="both", old_log_probs="sampler"))
    assert [row["step"] for row in rows(tmp_path / "next") if "rollout/errors" in row] == [1, 2]


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_run(folder: Path, finished: Path, tmp_path: Path) -> None:
    run_agentic(config_of(folder, tmp_path / "again"))
    assert rows(tmp_path / "again") == rows(finished)
    assert same(train_state(tmp_path / "again", 2), train_state(finished, 2))


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"pretrain": "toy"}, "pretrain", "it reads text alone, and custom_env.SimpleSokoban.show shows"),
        pytest.param(
            {"actor_infer.strategy_args.strategy_name": "vllm"},
            "actor_infer.strategy_args.strategy_name",
            "it reads text alone",
            marks=pytest.mark.skipif(not is_installed("vllm"), reason="vLLM is not installed, which is said first"),
        ),
        (
            {"adv_estimator": "gae", "critic.strategy_args.strategy_name": "fsdp_train"},
            "adv_estimator",
            "a critic reads text alone",
        ),
        ({"custom_env.SimpleSokoban.env_config.render_mode": "ansi"}, "env_config", "draws no picture"),
    ],
)
def test_what_has_no_place_for_pictures_is_said_at_the_start(
    folder: Path, tmp_path: Path, changes: dict[str, str], key: str, message: str
) -> None:
    given = {**SMALL, "pretrain": folder, "custom_env.SimpleSokoban.show": "picture", **changes}
    with pytest.raises(ConfigError) as caught:
        run_agentic(small_config(tmp_path, **given))
    assert key in str(caught.value) and message in str(caught.value)


def colours(path: Path, count: int) -> Path:
    """Rows that ask for the colour of a picture."""
    names = {"red": (255, 0, 0), "green": (0, 255, 0)}
    rows = []
    for number in range(count):
        name, colour = list(names.items())[number % 2]
        picture = np.full((2 * SIDE, 3 * SIDE, 3), colour, dtype=np.uint8)
        shown = {"images": [encoded(picture)], "tag": "all"}
        rows.append({"prompt": "<image> Which colour?", "ground_truth": str(len(name)), **shown})
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


ROWS = {
    "max_steps": 2,
    "save_steps": 2,
    "eval_steps": 2,
    "rollout_batch_size": 2,
    "num_return_sequences_in_group": 2,
    "prompt_length": 64,
    "actor_train.data_args.image_key": "images",
    "actor_train.data_args.max_samples": 4,
    "dynamic_sampling.enable": "false",
    "old_log_probs": "recompute",
    "rewards": {"all": {"verifiers": {"math": 1.0}}},
}


def answering(folder: Path, data: Path, output_dir: Path, **changes: Any) -> Any:
    files = {"actor_train.data_args.file_name": data, "validation.data_args.file_name": data}
    return small_prompts(output_dir, **{**ROWS, **files, "pretrain": str(folder), **changes})


def test_prompts_with_pictures_are_answered_and_learned_from(folder: Path, tmp_path: Path) -> None:
    data = colours(tmp_path / "colours.parquet", 4)
    run_rlvr(answering(folder, data, tmp_path / "run"))
    recorded = [row for row in rows(tmp_path / "run") if "sampler/log_prob_difference_max" in row]
    assert len(recorded) == 2 and all(row["sampler/log_prob_difference_max"] < 1e-4 for row in recorded)
    run = StoredRun.open(tmp_path / "run")
    for trajectory in run.episodes(1, "train"):
        (turn,) = trajectory.turns
        assert [picture.tokens for picture in turn.pictures] == [6] and turn.frame is not None
        assert PICTURE in trajectory.messages[-1]["content"]
    assert replay(run, step=2, phase="train").same


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"pretrain": "toy"}, "pretrain", "it reads text alone, and actor_train.data_args.image_key shows"),
        ({"tools": ["calculator"]}, "tools", "tools are called in conversations of text"),
    ],
)
def test_rows_with_pictures_that_nobody_could_read_are_refused(
    folder: Path, tmp_path: Path, changes: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_rlvr(answering(folder, colours(tmp_path / "colours.parquet", 2), tmp_path / "run", **changes))
    assert key in str(caught.value) and message in str(caught.value)


def test_rows_that_are_imitated_have_no_pictures(folder: Path, tmp_path: Path) -> None:
    keys = {"pipeline": "sft", "pretrain": str(folder), "output_dir": str(tmp_path), "progress": "none"}
    data = {"file_name": str(colours(tmp_path / "colours.parquet", 2)), "image_key": "images"}
    with pytest.raises(ConfigError, match="rows are imitated and compared as text"):
        check_rows(load({**keys, "actor_train": {"data_args": data}}, kind=SFTConfig))
