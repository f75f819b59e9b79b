"""A whole run that trains a reward model learns the same with every train strategy, and writes the same model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from roll.models.critic import load_critic
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier
from roll.strategies.training.pytorch.step_classifier import StepClassifier
from tests.e2e.trainer_ways import LORA, STEPS, WAYS, Way, assert_learned_the_same
from tests.e2e.trainer_ways import train as train_way

KINDS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "outcome": ("reward_math", {"actor_train.data_args.custom_cls.kwargs.pairs": 24}),
    "outcome, adapters": ("reward_math", {"actor_train.data_args.custom_cls.kwargs.pairs": 24, **LORA}),
    "process": ("process_reward_math", {"actor_train.data_args.custom_cls.kwargs.workings": 24}),
}
CASES = [
    ("outcome", "deepspeed zero 2"),
    ("outcome", "deepspeed zero 3 on two ranks"),
    ("outcome", "fsdp on two ranks"),
    ("outcome", "megatron on two ranks"),
    ("outcome, adapters", "megatron on two ranks"),
    ("process", "megatron on two ranks"),
]
METRICS = ("train/loss", "train/grad_norm", "val/loss", "val/accuracy")
ASKED = [{"role": "user", "content": "2 + 3 = ?"}]
CLASSES = {"outcome": "ForSequenceClassification", "process": "ForTokenClassification"}


def train(folder: Path, kind: str, way: Way) -> Path:
    preset, changes = KINDS[kind]
    changes = {"validation.data_args.max_samples": 6, "actor_train.training_args.learning_rate": 1e-3, **changes}
    return train_way("start_reward_pipeline.py", preset, folder, 8, changes, way)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run with ``fsdp_train`` in one process."""
    return cache(lambda kind: train(tmp_path_factory.mktemp("plain") / "out", kind, Way()))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_every_strategy_trains_the_reward_model_of_one_process(
    plain: Callable[[str], Path], tmp_path: Path, way: str, kind: str
) -> None:
    found = train(tmp_path / "out", kind, WAYS[way])

    assert_learned_the_same(found, plain(kind), METRICS)
    ours, theirs = (run / f"checkpoints/step={STEPS:06d}/hf" for run in (found, plain(kind)))
    (written,) = json.loads((ours / "config.json").read_text())["architectures"]
    assert written.endswith(CLASSES[kind.partition(",")[0]])
    scores = [score(folder, kind) for folder in (ours, theirs)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5) and any(scores[1])
    assert load_critic(str(ours)).score.weight.count_nonzero() > 0


def score(folder: Path, kind: str) -> list[float]:
    """What the verifiers of a checkpoint say of an answer."""
    if kind == "process":
        return StepClassifier.load(folder, separator=" ").score_steps([(ASKED, "2 + 3 = 5")])[0]
    classifier = SequenceClassifier.load(folder)
    return classifier.score([classifier.render([*ASKED, {"role": "assistant", "content": "5"}])])
