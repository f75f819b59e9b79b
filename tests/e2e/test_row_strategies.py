"""A whole run over rows learns the same with every train strategy and on two ranks, and writes the same model.

Both halves of a pair stay together, the reference is the same, ``kto`` finds its z over all ranks, and a teacher may be
anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from roll.models.critic import load_critic
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier
from roll.strategies.training.pytorch.step_classifier import StepClassifier
from tests.e2e.trainer_ways import LORA, STEPS, WAYS, Way, assert_learned_the_same, train

ASKED = [{"role": "user", "content": "2 + 3 = ?"}]


@dataclass(frozen=True)
class Kind:
    """A run over rows.

    Attributes:
        program: A file of ``examples``.
        preset: Its configuration.
        rows: Rows of a step.
        metrics: What every way must report alike.
        changes: Keys.
        here: Further keys of the run in one process.
        elsewhere: Of all others.
        writes: How the name of the class that it writes ends, for models that score.
    """

    program: str
    preset: str
    rows: int
    metrics: Sequence[str]
    changes: Mapping[str, object]
    here: Mapping[str, object] = field(default_factory=dict)
    elsewhere: Mapping[str, object] = field(default_factory=dict)
    writes: str | None = None


def preferences(**changes: object) -> Kind:
    short = {"actor_train.data_args.custom_cls.kwargs.pairs": 24, "validation.data_args.max_samples": 6}
    told = ("train/loss", "train/grad_norm", "train/rewards/margins", "val/loss", "val/logps/chosen")
    return Kind("start_dpo_pipeline.py", "dpo_sokoban", 8, told, {**short, **changes})


def reward(preset: str, rows: str, writes: str, **changes: object) -> Kind:
    short = {"validation.data_args.max_samples": 6, "actor_train.training_args.learning_rate": 1e-3}
    short[f"actor_train.data_args.custom_cls.kwargs.{rows}"] = 24
    told = ("train/loss", "train/grad_norm", "val/loss", "val/accuracy")
    return Kind("start_reward_pipeline.py", preset, 8, told, {**short, **changes}, writes=writes)


def taught(teacher: Mapping[str, object]) -> Kind:
    short = {
        "pipeline": "distill_rows",
        "pretrain": "toy_shallow",
        "+teacher.model_args.model_name_or_path": "toy_sokoban",
        "+divergence": "jsd",
        "+kd_temperature": 2.0,
        "+distill_loss_weight": 0.8,
        "sequence_length": 640,
        "actor_train.data_args.custom_cls.kwargs.games": 64,
        "validation.data_args.max_samples": 8,
    }
    told = ("train/loss", "train/grad_norm", "train/distill/divergence", "train/nll", "val/loss")
    here, there = (
        {f"+teacher.{key}": value for key, value in keys.items()}
        for keys in ({"strategy_args.strategy_name": "hf_infer"}, teacher)
    )
    return Kind("start_distill_pipeline.py", "sft_sokoban", 16, told, short, here, there)


ZERO_3 = {
    "strategy_args.strategy_name": "deepspeed_infer",
    "strategy_args.strategy_config.zero_optimization.stage": 3,
}
MEGATRON = {
    "strategy_args.strategy_name": "megatron_infer",
    "strategy_args.strategy_config.tensor_model_parallel_size": 2,
    "worker_cls": "roll.rehearsal.megatron_workers.MegatronScoreWorker",
    "world_size": 2,
}
KINDS: Mapping[str, Kind] = {
    "dpo, stored": preferences(reference_log_probs="stored"),
    "ipo, second model": preferences(loss_type="ipo", reference_log_probs="model"),
    "kto, adapters": preferences(loss_type="kto", reference_log_probs="adapters", **LORA),
    "orpo": preferences(loss_type="orpo"),
    "outcome": reward("reward_math", "pairs", "ForSequenceClassification"),
    "outcome, adapters": reward("reward_math", "pairs", "ForSequenceClassification", **LORA),
    "process": reward("process_reward_math", "workings", "ForTokenClassification"),
    "taught, deepspeed": taught(ZERO_3),
    "taught, megatron": taught(MEGATRON),
}
CASES = [
    ("dpo, stored", "deepspeed zero 3 on two ranks"),
    ("ipo, second model", "deepspeed zero 1 on two ranks"),
    ("kto, adapters", "fsdp on two ranks"),
    ("kto, adapters", "megatron on two ranks"),
    ("orpo", "deepspeed zero 2"),
    ("outcome", "fsdp on two ranks"),
    ("outcome, adapters", "megatron on two ranks"),
    ("process", "deepspeed zero 3 on two ranks"),
    ("taught, deepspeed", "deepspeed zero 3 on two ranks"),
    ("taught, megatron", "megatron on two ranks"),
]
"""Every kind and every way, and what a way does of its own to a kind.

Ranks share rows (pairs, the z of ``kto``) with FSDP and DeepSpeed. Each strategy has its own way to leave adapters out
(``kto``), to gather a head that scores (outcome, process), and to hold a teacher.
"""


def run(
    folder: Path, kind: Kind, way: Way, changes: Mapping[str, object], variables: Mapping[str, str] | None = None
) -> Path:
    return train(kind.program, kind.preset, folder, kind.rows, {**kind.changes, **changes}, way, variables or {})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run with ``fsdp_train`` in one process."""

    def one_process(name: str) -> Path:
        return run(tmp_path_factory.mktemp("plain") / "out", KINDS[name], Way(), KINDS[name].here)

    return cache(one_process)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_strategy_learns_what_one_process_does(
    plain: Callable[[str], Path], ray_machine: dict[str, str], tmp_path: Path, name: str, way: str
) -> None:
    kind = KINDS[name]
    found = run(tmp_path / "out", kind, WAYS[way], kind.elsewhere, ray_machine)

    assert_learned_the_same(found, plain(name), kind.metrics)
    if kind.writes is not None:
        assert_scores_the_same(found, plain(name), kind.writes)


def assert_scores_the_same(found: Path, expected: Path, writes: str) -> None:
    """The checkpoints are models of that class, verifiers say the same with them, and critics start from them."""
    ours, theirs = (one / f"checkpoints/step={STEPS:06d}/hf" for one in (found, expected))
    (written,) = json.loads((ours / "config.json").read_text())["architectures"]
    assert written.endswith(writes)
    scores = [score(folder, writes) for folder in (ours, theirs)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5) and any(scores[1])
    assert load_critic(str(ours)).score.weight.count_nonzero() > 0


def score(folder: Path, writes: str) -> list[float]:
    """What the verifier of a checkpoint says of an answer."""
    if writes == "ForTokenClassification":
        return StepClassifier.load(folder, separator=" ").score_steps([(ASKED, "2 + 3 = 5")])[0]
    classifier = SequenceClassifier.load(folder)
    return classifier.score([classifier.render([*ASKED, {"role": "assistant", "content": "5"}])])
