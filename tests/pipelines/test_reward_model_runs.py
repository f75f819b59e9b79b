"""A run that trains a reward model, which then grades and is what a critic starts from; and is resumed exactly."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from roll.config import ConfigError, RewardModelConfig
from roll.models.critic import load_critic
from roll.models.export import export_checkpoint
from roll.models.toy.graded_answers import CheckedSteps, ComparedAnswers
from roll.pipelines.reward_model import RewardModelPipeline
from roll.pipelines.rlvr import run_rlvr
from roll.runs.stored import StoredRun
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier
from roll.strategies.training.pytorch.step_classifier import StepClassifier
from roll.trajectories.store import read_trajectories
from tests.e2e.rlvr_support import small_config
from tests.pipelines import row_runs
from tests.pipelines.row_runs import row_config

pytestmark = pytest.mark.long  # whole runs


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    path.write_text("".join(json.dumps({**row, "margin": 0.5}) + "\n" for row in ComparedAnswers(24, seed=3)))
    return path


@pytest.fixture(scope="module")
def workings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "workings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CheckedSteps(24, seed=3)))
    return path


def config(rows: Path, folder: Path, **changes) -> RewardModelConfig:
    return row_config(
        "reward_model",
        rows,
        folder,
        changes,
        batch={"per_device_train_batch_size": 6},
        held_out=10,
        sequence_length=128,
        save_steps=0,
        eval_steps=4,
    )


def metrics(folder: Path, of: str = "train") -> list[dict[str, float]]:
    return row_runs.metrics(folder, f"{of}/loss")


@pytest.fixture(scope="module")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps over pairs with margins."""
    folder = tmp_path_factory.mktemp("trained")
    RewardModelPipeline.start(config(pairs, folder, center_rewards_coefficient=0.01))
    return folder


def test_a_model_learns_which_answers_are_better(trained: Path) -> None:
    before, after = metrics(trained, "val")

    assert before["val/accuracy"] == 0 and before["val/rewards/chosen"] == 0  # the head starts at zero
    assert after["val/loss"] < before["val/loss"] and after["val/accuracy"] > 0.5 and after["val/margin"] > 0
    assert metrics(trained)[0]["train/rows"] == 6 and metrics(trained)[0]["train/trained_tokens"] == 12


def test_its_checkpoint_is_a_reward_model_for_everybody(trained: Path, pairs: Path) -> None:
    folder = trained / "checkpoints/step=000004/hf"
    classifier = SequenceClassifier.load(folder)
    rows = [json.loads(line) for line in pairs.read_text().splitlines()][:10]

    def text(row: dict, side: str) -> str:
        asked = {"role": "user", "content": row["prompt"]}
        return classifier.render([asked, {"role": "assistant", "content": row[side]}])

    chosen, rejected = (classifier.score([text(row, side) for row in rows]) for side in ("chosen", "rejected"))
    told = metrics(trained, "val")[-1]
    assert sum(chosen) / 10 == pytest.approx(told["val/rewards/chosen"], abs=1e-5)
    assert sum(a > b for a, b in zip(chosen, rejected, strict=True)) / 10 == pytest.approx(told["val/accuracy"])

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer([text(row, "chosen") for row in rows], padding=True, padding_side="right", return_tensors="pt")
    found = model(**batch).logits[:, 0].detach()
    torch.testing.assert_close(found, torch.tensor(chosen), atol=1e-5, rtol=1e-5)
    export_checkpoint(folder, trained / "exported")
    assert SequenceClassifier.load(trained / "exported").score([text(rows[0], "chosen")]) == pytest.approx(chosen[:1])
    critic = load_critic(str(folder))
    assert torch.equal(critic.score.weight, model.score.weight) and model.score.weight.count_nonzero() > 0
    assert torch.equal(critic.base_model.norm.weight, model.base_model.norm.weight)


def test_reinforcement_learning_takes_it_as_grader_and_as_start_of_the_critic(trained: Path, tmp_path: Path) -> None:
    folder = str(trained / "checkpoints/step=000004/hf")
    rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": {"reward_model": 1.0}}}
    changes = {"max_steps": 1, "eval_steps": 0, "dynamic_sampling__enable": False, "adv_estimator": "gae", "critic": {}}
    run_rlvr(small_config(tmp_path, **changes, rewards=rewards, reward_pretrain=folder))

    classifier = SequenceClassifier.load(folder)
    for trajectory in read_trajectories(tmp_path / "trajectories" / "step=000001.parquet"):
        answer = {"role": "assistant", "content": trajectory.turns[0].response}
        (expected,) = classifier.score([classifier.render([*trajectory.messages, answer])])
        assert trajectory.score == pytest.approx(expected, abs=1e-5)
    (step,) = (row for row in StoredRun.open(tmp_path).metrics() if "critic/value_mean" in row)
    assert step["critic/value_mean"] != 0  # the values of a new head are all 0


@pytest.mark.parametrize("supervision", ["outcome", pytest.param("process", marks=pytest.mark.exhaustive)])
def test_a_run_that_is_resumed_goes_on_exactly(pairs: Path, workings: Path, tmp_path: Path, supervision: str) -> None:
    rows = pairs if supervision == "outcome" else workings
    changes = {"supervision": supervision, "eval_steps": 0}
    RewardModelPipeline.start(config(rows, tmp_path / "whole", max_steps=4, **changes))
    RewardModelPipeline.start(config(rows, tmp_path / "parts", max_steps=2, **changes))
    RewardModelPipeline.start(config(rows, tmp_path / "parts", max_steps=4, resume_from_checkpoint=True, **changes))

    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    weights = [tmp_path / part / "checkpoints/step=000004/hf/model.safetensors" for part in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.fixture(scope="module")
def judge_of_steps(workings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps over workings."""
    folder = tmp_path_factory.mktemp("steps")
    RewardModelPipeline.start(config(workings, folder, supervision="process", step_separator=" "))
    return folder


def test_the_steps_of_a_checkpoint_score_as_they_did_in_training(judge_of_steps: Path, workings: Path) -> None:
    before, after = metrics(judge_of_steps, "val")
    assert after["val/loss"] < before["val/loss"]
    classifier = StepClassifier.load(judge_of_steps / "checkpoints/step=000004/hf", separator=" ", batch_size=3)
    rows = [json.loads(line) for line in workings.read_text().splitlines()][:10]

    asked = [([{"role": "user", "content": row["prompt"]}], " ".join(row["completions"])) for row in rows]
    scores = classifier.score_steps(asked)

    assert [len(row) for row in scores] == [len(row["labels"]) for row in rows]
    said = [
        (score, label)
        for row, mine in zip(rows, scores, strict=True)
        for score, label in zip(mine, row["labels"], strict=True)
    ]
    assert sum(score for score, _ in said) / len(said) == pytest.approx(after["val/rewards/mean"], abs=1e-5)
    assert sum((score > 0.5) == label for score, label in said) / len(said) == pytest.approx(after["val/accuracy"])
    assert [classifier.score_steps([one])[0] for one in asked] == [pytest.approx(row, abs=1e-6) for row in scores]


def test_reinforcement_learning_is_graded_by_steps(judge_of_steps: Path, tmp_path: Path) -> None:
    folder = str(judge_of_steps / "checkpoints/step=000004/hf")
    terms = {"process_reward_model": {"weight": 2.0, "options": {"aggregate": "product", "separator": " "}}}
    rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": terms}}
    changes = {"max_steps": 1, "eval_steps": 0, "dynamic_sampling__enable": False}
    run_rlvr(small_config(tmp_path, **changes, rewards=rewards, reward_pretrain=folder))

    classifier = StepClassifier.load(folder, separator=" ")
    for trajectory in read_trajectories(tmp_path / "trajectories" / "step=000001.parquet"):
        (scores,) = classifier.score_steps([(trajectory.messages, trajectory.turns[0].response)])
        assert trajectory.score == pytest.approx(2 * math.prod(scores), abs=1e-5)


def test_a_language_model_is_no_judge_of_steps(tmp_path: Path) -> None:
    rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": {"process_reward_model": 1.0}}}
    with pytest.raises(ConfigError, match=r"lacks score[\s\S]*supervision: process"):
        run_rlvr(small_config(tmp_path / "out", max_steps=1, rewards=rewards, reward_pretrain="toy_math"))


def test_steps_are_learned_with_adapters_too(workings: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    changes = {"supervision": "process", "step_separator": " ", "actor_train__model_args__lora_rank": 4}
    RewardModelPipeline.start(config(workings, tmp_path, **changes))

    before, after = metrics(tmp_path, "val")
    assert after["val/loss"] < before["val/loss"]
    config_file = json.loads((tmp_path / "checkpoints/step=000004/hf/config.json").read_text())
    assert config_file["architectures"] == ["Qwen3ForTokenClassification"] and len(config_file["id2label"]) == 1
    assert json.loads((tmp_path / "checkpoints/step=000004/adapter/adapter_config.json").read_text())["task_type"] == (
        "TOKEN_CLS"
    )


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"evaluation": "sokoban"}, "evaluation", "neither plays nor answers"),
        ({"actor_train__data_args__truncation": "right"}, "actor_train.data_args.truncation", "read at the end"),
        ({"step_separator": "", "supervision": "process"}, "step_separator", "tell steps apart"),
        ({"actor_train__data_args__messages": "talk"}, "actor_train.data_args.messages", "steps_key"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_read(pairs, tmp_path, changes, key, said) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        config(pairs, tmp_path, **changes)

    assert any(problem.path.startswith(key) for problem in error.value.problems)


def test_keys_that_the_supervision_does_not_read_are_said(pairs: Path, tmp_path: Path) -> None:
    with pytest.warns(match="labels_key: has no effect with supervision: outcome"):
        config(pairs, tmp_path, labels_key="label")
    with pytest.warns(match="margin_key: has no effect with supervision: process"):
        config(pairs, tmp_path, supervision="process", margin_key="margin")


@pytest.mark.parametrize(
    ("row", "keys", "said"),
    [
        ({"prompt": "1 + 1 = ?", "chosen": "2", "rejected": "3", "margin": "big"}, {}, "'margin' is 'big'"),
        ({"prompt": "1 + 1 = ?", "completions": ["2"], "labels": []}, {"supervision": "process"}, "1 steps have 0"),
        ({"prompt": "1 + 1 = ?", "completions": ["2"], "labels": [2]}, {"supervision": "process"}, "holds 2"),
        ({"prompt": "1 + 1 = ?", "completions": [], "labels": []}, {"supervision": "process"}, "has no steps"),
        ({"prompt": "1 + 1 = ?", "chosen": "2", "rejected": "3"}, {"supervision": "process"}, "no column completions"),
    ],
)
def test_rows_that_cannot_be_used_are_said_with_their_place(tmp_path: Path, row: dict, keys: dict, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=said):
        RewardModelPipeline.start(config(path, tmp_path / "out", **keys))
