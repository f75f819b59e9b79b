"""Responses graded by models: a reward model, and the policy as its own judge."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from roll.config import ConfigError
from roll.models.loading import load_tokenizer
from roll.pipelines.rlvr import run_rlvr
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier
from roll.trajectories.model import Status
from roll.trajectories.store import read_trajectories
from tests.e2e.rlvr_support import small_config

pytestmark = pytest.mark.long  # whole runs

ONE_STEP = {"max_steps": 1, "eval_steps": 0, "dynamic_sampling__enable": False}


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequence classifier with random weights and the toy's tokenizer."""
    return saved_classifier(tmp_path_factory.mktemp("reward_model"), labels=1)


def saved_classifier(folder: Path, labels: int) -> Path:
    tokenizer = load_tokenizer("toy")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_labels=labels,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_reward_model_scores_the_whole_conversation_in_its_own_template(reward_model: Path, tmp_path: Path) -> None:
    rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": {"reward_model": 2.0}}}
    run_rlvr(small_config(tmp_path, **ONE_STEP, rewards=rewards, reward_pretrain=str(reward_model)))
    classifier = SequenceClassifier.load(reward_model)
    trained = read_trajectories(tmp_path / "trajectories" / "step=000001.parquet")
    assert len({trajectory.score for trajectory in trained}) > 4
    for trajectory in trained:
        answer = {"role": "assistant", "content": trajectory.turns[0].response}
        expected = classifier.score([classifier.render([*trajectory.messages, answer])])[0]
        assert trajectory.score == pytest.approx(2 * expected, abs=1e-5)


@pytest.mark.exhaustive
def test_of_a_reward_model_with_several_outputs_the_configuration_names_the_score(tmp_path: Path) -> None:
    several = saved_classifier(tmp_path / "several", labels=3)
    out = tmp_path / "out"

    def run(**options: object) -> None:
        terms = {"reward_model": {"weight": 1.0, "options": options}}
        rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": terms}}
        run_rlvr(small_config(out, **ONE_STEP, rewards=rewards, reward_pretrain=str(several)))

    with pytest.raises(ConfigError, match=r"3 labels[\s\S]*option label"):
        run()
    run(label="LABEL_1", max_length=30)
    classifier = SequenceClassifier.load(several, label=1, max_length=30)
    for trajectory in read_trajectories(out / "trajectories" / "step=000001.parquet"):
        answer = {"role": "assistant", "content": trajectory.turns[0].response}
        expected = classifier.score([classifier.render([*trajectory.messages, answer])])[0]
        assert trajectory.score == pytest.approx(expected, abs=1e-5)


def test_a_reward_model_that_is_not_named_is_a_problem_of_its_key(tmp_path: Path) -> None:
    rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": {"reward_model": 1.0}}}
    with pytest.raises(ConfigError, match="reward_pretrain"):
        run_rlvr(small_config(tmp_path / "out", **ONE_STEP, rewards=rewards))
    assert not (tmp_path / "out").exists()


def test_the_policy_judges_its_own_responses_while_groups_are_replaced(tmp_path: Path) -> None:
    judge = {"options": {"engine": "policy", "prompt": "{response}", "score_pattern": "(\\d)"}}
    rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": {"llm_judge": judge, "format": 0.5}}}
    config = small_config(tmp_path, max_steps=1, eval_steps=0, rewards=rewards, sequence_length=256)
    run_rlvr(config)
    trained = read_trajectories(tmp_path / "trajectories" / "step=000001.parquet")
    graded = [trajectory for trajectory in trained if trajectory.status is not Status.ERROR_REWARD]
    assert graded and all(0 <= t.turns[0].reward_parts["llm_judge"] <= 1 for t in graded)


@pytest.mark.exhaustive
def test_a_judge_of_its_own_says_what_the_policy_says_where_it_is_the_same_model(tmp_path: Path) -> None:
    options = {"prompt": "{response}", "score_pattern": "(\\d)"}
    terms = {"math_rule": {"tag_included": ["arithmetic"]}}
    verdicts = []
    for engine in ("policy", "small"):
        verifiers = {"llm_judge": {"options": {**options, "engine": engine}}}
        rewards = {"math_rule": {**terms["math_rule"], "verifiers": verifiers}}
        judges = {"small": {"model_args": {"model_name_or_path": "toy_math"}}} if engine == "small" else {}
        out = tmp_path / engine
        # Both begin with the toy; what is graded in the first step was sampled before anything was learned.
        run_rlvr(small_config(out, **ONE_STEP, rewards=rewards, judges=judges, sequence_length=256))
        trained = read_trajectories(out / "trajectories" / "step=000001.parquet")
        verdicts.append([(t.turns[0].response, t.status, t.turns[0].reward_parts.get("llm_judge")) for t in trained])
    assert verdicts[0] == verdicts[1]
    assert len({verdict for _, _, verdict in verdicts[0]}) > 1


def test_a_judge_that_is_not_there_or_not_named_is_a_problem_before_anything_loads(tmp_path: Path) -> None:
    verifiers = {"llm_judge": {"options": {"engine": "large"}}}
    rewards = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": verifiers}}
    judges = {"small": {"model_args": {"model_name_or_path": "toy"}}}
    with pytest.raises(ConfigError, match=r"large[\s\S]*small"):
        run_rlvr(small_config(tmp_path / "out", **ONE_STEP, rewards=rewards, judges=judges))
    with pytest.raises(ConfigError, match="judges.small.model_args.model_name_or_path"):
        small_config(tmp_path / "out", **ONE_STEP, judges={"small": {}})
    with pytest.raises(ConfigError, match="judges.policy"):
        small_config(tmp_path / "out", **ONE_STEP, judges={"policy": judges["small"]})
