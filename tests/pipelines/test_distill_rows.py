"""A student that is taught on the answers of a file: the loss, a run, and what comes of being stopped."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from roll.config import ConfigError, RowDistillConfig
from roll.pipelines.distill_rows import RowDistillPipeline
from roll.strategies.training.distilled import IMITATED, TaughtImitationLoss
from tests.pipelines import row_runs
from tests.pipelines.noisy_model import noisy_math
from tests.pipelines.row_runs import row_config

SUMS = [(a, b) for a in range(1, 7) for b in range(1, 5)]
TEACHER = {"model_args": {"model_name_or_path": "toy_math"}, "strategy_args": {"strategy_name": "hf_infer"}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    said = [{"prompt": f"What is {a} + {b}?", "response": f"{a} + {b} = {a + b}"} for a, b in SUMS]
    path.write_text("".join(json.dumps(row) + "\n" for row in said))
    return path


def config(rows: Path, folder: Path, **changes: Any) -> RowDistillConfig:
    keys = {"pretrain": noisy_math(), "teacher": TEACHER, "sequence_length": 96, "save_steps": 0, "eval_steps": 4}
    batch = {"per_device_train_batch_size": 6}
    rate = {"actor_train__training_args__learning_rate": 3e-4}
    return row_config("distill_rows", rows, folder, {**rate, **changes}, batch=batch, held_out=6, **keys)


def metrics(folder: Path, having: str = "train/loss") -> list[dict[str, float]]:
    return row_runs.metrics(folder, having)


@pytest.mark.parametrize("weight", [1.0, 0.85])
def test_the_loss_is_that_of_a_loop_however_a_batch_is_cut(weight: float) -> None:
    noise = torch.Generator().manual_seed(1)
    compared = torch.tensor([[False, True, True, True, True], [False, True, True, False, False]])
    imitated = compared & torch.tensor([[False, False, True, True, True], [False, False, True, False, False]])
    log_probs = -torch.rand(2, 5, generator=noise, dtype=torch.float64) - 0.1
    divergence = torch.rand(2, 5, generator=noise, dtype=torch.float64)
    columns = {"response_mask": compared, IMITATED: imitated, "divergence": divergence}
    batch = TensorDict(columns, batch_size=[2])
    wanted = weight * sum(divergence[compared].tolist()) / 6 - (1 - weight) * sum(log_probs[imitated].tolist()) / 4

    loss = TaughtImitationLoss(weight)
    whole, said = loss(log_probs, None, batch, loss.totals(batch))
    assert whole.item() == pytest.approx(wanted, rel=1e-12)
    assert said["nll"].item() == pytest.approx(-sum(log_probs[imitated].tolist()) / 4, rel=1e-12)
    parts = [loss(log_probs[row : row + 1], None, batch[row : row + 1], loss.totals(batch))[0] for row in (0, 1)]
    assert math.fsum(part.item() for part in parts) == pytest.approx(wanted, rel=1e-12)


@pytest.fixture(scope="module")
def whole(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    RowDistillPipeline.start(config(rows, folder))
    return folder


@pytest.mark.long
def test_the_student_comes_nearer_to_its_teacher(whole: Path) -> None:
    before, after = metrics(whole, "val/loss")
    assert after["val/distill/divergence"] < 0.5 * before["val/distill/divergence"]
    assert before["val/loss"] == pytest.approx(before["val/distill/divergence"])
    assert len(metrics(whole)) == 4 and metrics(whole)[0]["train/rows"] == 6
    assert (whole / "checkpoints/step=000004/hf/tokenizer.json").is_file()


@pytest.mark.long
def test_all_tokens_as_the_likeliest_are_the_whole_vocabulary(rows: Path, whole: Path, tmp_path: Path) -> None:
    RowDistillPipeline.start(config(rows, tmp_path, teacher_top_k=500, max_steps=2, eval_steps=0))
    for ours, theirs in zip(metrics(tmp_path), metrics(whole), strict=False):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-4)


@pytest.mark.long
def test_imitation_beside_it_and_tokens_of_prompts_count_as_they_are_weighed(rows: Path, tmp_path: Path) -> None:
    once = {"max_steps": 1, "eval_steps": 0}
    RowDistillPipeline.start(config(rows, tmp_path / "mixed", distill_loss_weight=0.85, **once))
    (mixed,) = metrics(tmp_path / "mixed")
    wanted = 0.85 * mixed["train/distill/divergence"] + 0.15 * mixed["train/nll"]
    assert mixed["train/loss"] == pytest.approx(wanted, rel=1e-6) and mixed["train/nll"] > 0
    RowDistillPipeline.start(config(rows, tmp_path / "prompts", distill_on_prompt=True, **once))
    (prompts,) = metrics(tmp_path / "prompts")
    assert prompts["train/nll"] == pytest.approx(mixed["train/nll"], rel=1e-6)  # of the answers still
    assert prompts["train/distill/divergence"] != pytest.approx(mixed["train/distill/divergence"], rel=0.01)
    assert prompts["train/trained_tokens"] == prompts["train/tokens"] - 6


@pytest.mark.long
def test_a_run_that_is_resumed_goes_on_exactly(rows: Path, whole: Path, tmp_path: Path) -> None:
    RowDistillPipeline.start(config(rows, tmp_path, max_steps=2, eval_steps=0))
    RowDistillPipeline.start(config(rows, tmp_path, max_steps=4, eval_steps=0, resume_from_checkpoint=True))

    assert metrics(tmp_path) == metrics(whole)
    weights = [run / "checkpoints/step=000004/hf/model.safetensors" for run in (tmp_path, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two kinds in turn, each with its tag."""
    path = tmp_path_factory.mktemp("data") / "tagged.jsonl"
    said = [
        {"prompt": f"What is {a} + {b}?", "response": f"{a} + {b} = {a + b}", "kind": ("even", "odd")[(a + b) % 2]}
        for a, b in SUMS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in said))
    return path


def teachers(**of: str) -> dict[str, Any]:
    strategy = {"strategy_args": {"strategy_name": "hf_infer"}}
    return {name: {"model_args": {"model_name_or_path": model}, **strategy} for name, model in of.items()}


@pytest.mark.long
@pytest.mark.parametrize("named", [None, pytest.param(500, marks=pytest.mark.exhaustive)])
def test_every_teacher_teaches_the_rows_of_its_tags(tagged: Path, tmp_path: Path, named: int | None) -> None:
    """One of the teachers is the student itself: of its rows there is nothing to learn."""
    keys = {"max_steps": 1, "eval_steps": 1, "teacher_top_k": named, "actor_train__data_args__tag": "kind"}
    keys |= {"validation__data_args__tag": "kind", "validation__data_args__max_samples": 24}
    both = {"teacher": None, "teachers": teachers(even=noisy_math(), odd="toy_math")}
    mixed, alone = tmp_path / "mixed", tmp_path / "alone"
    RowDistillPipeline.start(config(tagged, mixed, **keys, **both))
    RowDistillPipeline.start(config(tagged, alone, **keys))
    odd = tmp_path / "odd.jsonl"
    odd.write_text("".join(line + "\n" for line in tagged.read_text().splitlines() if '"odd"' in line))
    RowDistillPipeline.start(config(odd, tmp_path / "odd", **keys))

    first = {run: metrics(tmp_path / run, "val/loss")[0] for run in ("mixed", "alone", "odd")}
    # Of the even rows the student says what its teacher does: they add nothing, and their tokens count.
    share = first["mixed"]["val/distill/divergence"] / first["odd"]["val/distill/divergence"]
    assert 0.4 < share < 0.6
    assert first["mixed"]["val/distill/divergence"] < first["alone"]["val/distill/divergence"]


@pytest.mark.long
def test_a_row_that_nobody_teaches_is_refused(tagged: Path, tmp_path: Path) -> None:
    keys = {"teacher": None, "teachers": teachers(even="toy_math"), "actor_train__data_args__tag": "kind"}
    with pytest.raises(ConfigError, match=r"(?s)nobody teaches the tag 'odd'.*add a teacher"):
        RowDistillPipeline.start(config(tagged, tmp_path, **keys))
    with pytest.raises(ConfigError, match=r"(?s)no 'tag', so it is not known who teaches it"):
        RowDistillPipeline.start(config(tagged, tmp_path, teacher=None, teachers=teachers(even="toy_math")))


@pytest.mark.long
@pytest.mark.parametrize("named", [None, pytest.param(500, marks=pytest.mark.exhaustive)])
def test_softened_distributions_are_nearer_and_likelihoods_stay(
    rows: Path, whole: Path, tmp_path: Path, named: int | None
) -> None:
    RowDistillPipeline.start(config(rows, tmp_path, kd_temperature=3.0, teacher_top_k=named, max_steps=1))
    soft, plain = metrics(tmp_path, "val/loss")[0], metrics(whole, "val/loss")[0]
    assert 0 < soft["val/distill/divergence"] < 0.8 * plain["val/distill/divergence"]
    assert soft["val/nll"] == pytest.approx(plain["val/nll"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"teacher": None}, "teacher", "nobody teaches"),
        ({"kd_temperature": 0.0}, "kd_temperature", "greater than 0"),
        (
            {"teachers": {"a": {**TEACHER, "tag_included": ["x"]}, "x": TEACHER}},
            "teachers.a.tag_included",
            "has 2 teachers",
        ),
        ({"teacher__model_args__model_name_or_path": None}, "teacher.model_args", "the teacher is no model"),
        ({"actor_train__data_args__file_name": None}, "actor_train.data_args.file_name", "nothing to learn from"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(
    rows: Path, tmp_path: Path, changes: Any, key: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        config(rows, tmp_path, **changes)
    assert any(problem.path.startswith(key) for problem in error.value.problems)


@pytest.mark.long
def test_a_teacher_with_other_tokens_is_refused(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="distributions cannot be compared token by token"):
        RowDistillPipeline.start(config(rows, tmp_path, teacher__model_args__model_name_or_path="toy_sokoban"))
