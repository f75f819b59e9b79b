"""A run that learns from preferences: from files and from runs, whatever the reference is, and resumed exactly."""

import json
from pathlib import Path

import numpy as np
import pytest

from roll.config import ConfigError, DPOConfig
from roll.pipelines.dpo import DPOPipeline
from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.store import trajectory_path, write_trajectories
from tests.pipelines import row_runs
from tests.pipelines.row_runs import row_config

pytestmark = pytest.mark.long  # whole runs

SUMS = [(a, b) for a in range(1, 4) for b in range(1, 5)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    lines = [{"prompt": f"{a} + {b} = ?", "chosen": str(a + b), "rejected": str(a + b + 1)} for a, b in SUMS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def config(rows: Path, folder: Path, **changes) -> DPOConfig:
    return row_config(
        "dpo",
        rows,
        folder,
        changes,
        batch={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        held_out=6,
        sequence_length=64,
        save_steps=0,
        eval_steps=3,
    )


def metrics(folder: Path, of: str = "train") -> list[dict[str, float]]:
    return row_runs.metrics(folder, f"{of}/loss")


@pytest.fixture(scope="module")
def whole(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps."""
    folder = tmp_path_factory.mktemp("whole")
    summary = DPOPipeline.start(config(rows, folder))
    assert summary.steps == 3 and summary.after["val/loss"] < summary.before["val/loss"]
    return folder


def test_a_run_learns_which_answers_are_better(whole: Path) -> None:
    before, after = metrics(whole, "val")

    assert before["val/loss"] == pytest.approx(np.log(2)) and before["val/rewards/margins"] == 0
    assert after["val/rewards/accuracies"] > 0.6 and after["val/rewards/margins"] > 0
    assert (
        after["val/logps/chosen"] - after["val/logps/rejected"]
        > before["val/logps/chosen"] - (before["val/logps/rejected"])
    )
    first = metrics(whole)[0]
    assert first["train/loss"] == pytest.approx(np.log(2)) and first["train/rows"] == 4
    assert (whole / "checkpoints/step=000003/hf/tokenizer.json").is_file()


def test_stored_log_probs_are_those_of_a_second_model_also_after_a_stop(
    rows: Path, whole: Path, tmp_path: Path
) -> None:
    stored = {"reference_log_probs": "stored"}
    DPOPipeline.start(config(rows, tmp_path, max_steps=2, **stored))
    DPOPipeline.start(config(rows, tmp_path, max_steps=3, resume_from_checkpoint=True, **stored))

    for one, other in zip(metrics(tmp_path), metrics(whole), strict=True):
        assert one == {name: pytest.approx(value, rel=1e-5, abs=1e-7) for name, value in other.items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["model", "stored"])
def test_a_run_that_is_resumed_goes_on_exactly(rows: Path, tmp_path: Path, kind: str) -> None:
    changes = {"reference_log_probs": kind, "eval_steps": 0}
    DPOPipeline.start(config(rows, tmp_path / "whole", max_steps=4, **changes))
    DPOPipeline.start(config(rows, tmp_path / "parts", max_steps=2, **changes))
    DPOPipeline.start(config(rows, tmp_path / "parts", max_steps=4, resume_from_checkpoint=True, **changes))

    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    weights = [tmp_path / part / "checkpoints/step=000004/hf/model.safetensors" for part in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_adapters_that_are_switched_off_are_the_reference(rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    changes = {"actor_train__model_args__lora_rank": 4, "eval_steps": 0, "max_steps": 2}
    assert config(rows, tmp_path, **changes).reference_kind == "adapters"
    DPOPipeline.start(config(rows, tmp_path / "adapters", **changes))
    DPOPipeline.start(config(rows, tmp_path / "model", reference_log_probs="model", **changes))

    one, other = (metrics(tmp_path / kind) for kind in ("adapters", "model"))
    assert one[1]["train/rewards/margins"] != 0
    for a, b in zip(one, other, strict=True):
        assert a == {name: pytest.approx(value, rel=1e-5, abs=1e-7) for name, value in b.items()}


@pytest.mark.parametrize("kind", ["kto", pytest.param("orpo", marks=pytest.mark.exhaustive)])
def test_other_losses_learn_from_the_same_pairs(rows: Path, tmp_path: Path, kind: str) -> None:
    DPOPipeline.start(config(rows, tmp_path, loss_type=kind, max_steps=3))

    before, after = metrics(tmp_path, "val")
    assert after["val/loss"] < before["val/loss"]
    assert ("val/kl" in after) == (kind == "kto") and ("val/nll" in after) == (kind == "orpo")


def test_groups_of_a_run_are_pairs(tmp_path: Path, rows: Path) -> None:
    def answered(group: int, episode: int, said: str, score: float | None, status=Status.COMPLETED) -> Trajectory:
        asked = [{"role": "user", "content": f"{group} + 1 = ?"}]
        turns = [Turn([1], [2], [0.0], response=said)]
        return Trajectory("sums", f"g{group}", episode, 0, turns=turns, score=score, status=status, messages=asked)

    members = [
        *(answered(1, 0, "2", 1.0), answered(1, 1, "3", 0.0), answered(1, 2, "4", 0.5)),
        *(answered(2, 0, "3", 0.0), answered(2, 1, "4", 0.0)),
        *(answered(3, 0, "4", 1.0), answered(3, 1, "", -1.0, Status.ERROR_ENV), answered(3, 2, "5", 0.2)),
    ]
    run = tmp_path / "run"
    write_trajectories(trajectory_path(run, 1, "train"), members, step=1, phase="train", run="run")

    DPOPipeline.start(config(run, tmp_path / "out", max_steps=1, eval_steps=0))
    assert metrics(tmp_path / "out")[0]["train/rows"] == 4
    with pytest.raises(ConfigError, match="scores differ enough"):
        DPOPipeline.start(config(run, tmp_path / "none", pair_margin=1.0))


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"beta": 0}, "beta", "nothing is learned"),
        ({"label_smoothing": 0.5}, "label_smoothing", "wrong"),
        ({"reference_log_probs": "adapters"}, "reference_log_probs", "no adapters"),
        ({"reference_log_probs": "stored", "loss_type": "kto"}, "reference_log_probs", "other prompts"),
        ({"reference_log_probs": "stored", "reference": {}}, "reference", "its own reference"),
        ({"actor_train__data_args__messages": "talk"}, "actor_train.data_args.messages", "chosen_key"),
        ({"actor_train__data_args__file_name": None}, "actor_train.data_args.file_name", "nothing to learn from"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_read(rows, tmp_path, changes, key, said) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        config(rows, tmp_path, **changes)

    assert any(problem.path.startswith(key) for problem in error.value.problems)


def test_a_pair_that_no_pass_has_room_for_is_said_before_a_model_loads(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="computed in one pass"):
        DPOPipeline.start(config(rows, tmp_path, actor_train__training_args__max_tokens_per_microbatch=20))


def test_an_evaluation_that_cannot_be_is_said_before_a_model_loads(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Sokoban"):
        DPOPipeline.start(config(rows, tmp_path, evaluation={"val_env_manager": {"tags": ["Sokobann"]}}))
    assert not (tmp_path / "run.json").exists()


def test_keys_that_the_loss_does_not_read_are_said(rows: Path, tmp_path: Path) -> None:
    with pytest.warns(match="label_smoothing: has no effect with loss_type: ipo"):
        config(rows, tmp_path, loss_type="ipo", label_smoothing=0.1)
    with pytest.warns(match="compares with no reference"):
        config(rows, tmp_path, loss_type="simpo", reference_log_probs="model")
