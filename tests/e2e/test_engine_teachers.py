"""A teacher that is a generation engine teaches the same as one that scores with a trainer's layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.config import load
from roll.generation import ScoringRequest, TokenScores
from roll.pipelines.distill import PromptDistillPipeline
from roll.pipelines.distill_rows import RowDistillPipeline
from roll.strategies import STRATEGIES, EngineJob, StrategyDescription, register_strategy
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from tests.pipelines.noisy_model import noisy_math

pytestmark = pytest.mark.long  # whole runs

REAL = [
    pytest.param("vllm", marks=pytest.mark.skipif(find_spec("vllm") is None, reason="make vllm")),
    pytest.param(
        "sglang",
        marks=[pytest.mark.sglang, pytest.mark.skipif(find_spec("sglang") is None, reason="make test-sglang")],
    ),
]
WAYS = [
    ("of_a_users_own", "likeliest"),
    pytest.param("of_a_users_own", "sampled", marks=pytest.mark.exhaustive),
    # What the others score is compared in tests/integration/test_engine_scores.py; one run shows that it arrives.
    *(pytest.param(*engine.values, "likeliest", marks=[*engine.marks, pytest.mark.exhaustive]) for engine in REAL),
]


class Reading(HfInferStrategy):
    """The packaged engine, which also scores tokens: one sequence after the other, as Hugging Face says."""

    def __init__(self, job: EngineJob) -> None:
        model = job.load()
        super().__init__(model, max_slots=job.max_slots, max_length=job.max_length)
        self._read, self._most_named = model, job.most_named
        self.vocabulary = int(model.config.vocab_size)

    @torch.no_grad()
    async def score(self, request: ScoringRequest) -> TokenScores:
        assert self._most_named is not None and request.most_named <= self._most_named
        tokens = torch.tensor([request.token_ids])
        there = self._read(tokens).logits[0, request.start - 1 : -1].log_softmax(-1)
        named = there.topk(request.most_named)
        own = there.gather(1, tokens[0, request.start :].unsqueeze(1)).squeeze(1)
        return TokenScores(own.tolist(), named.indices.tolist(), named.values.tolist())


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """An engine of a user's own."""
    with STRATEGIES.restored():
        register_strategy(StrategyDescription(name="of_a_users_own", engine=Reading, scores_tokens=True))
        yield


TRAIN = "roll/presets/data/arithmetic_train.jsonl"
ASKS = {
    "likeliest": {"teacher_top_k": 12, "divergence": "jsd"},
    "sampled": {"divergence": "sampled_reverse_kl"},
}


def losses(pipeline: str, teacher: str, folder: Path, **changes: Any) -> list[float]:
    """Run three steps; return the losses."""
    mapping = {
        "pipeline": pipeline,
        "pretrain": noisy_math(),
        "output_dir": str(folder),
        "progress": "none",
        "track_with": ["jsonl"],
        "max_steps": 3,
        "save_steps": 0,
        "sequence_length": 96,
        "teacher": {
            "model_args": {"model_name_or_path": "toy_math"},
            "strategy_args": {"strategy_name": teacher},
            "infer_batch_size": 16,
        },
        "actor_train": {
            "model_args": {"disable_gradient_checkpointing": True},
            "data_args": {"file_name": [TRAIN], "max_samples": 64},
            "training_args": {"learning_rate": 3e-4, "lr_scheduler_type": "constant"},
        },
        **changes,
    }
    run = RowDistillPipeline if pipeline == "distill_rows" else PromptDistillPipeline
    run.start(load(mapping))  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize(("engine", "asked"), WAYS)
def test_a_student_learns_the_same_from_an_engine(engine: str, asked: str, tmp_path: Path) -> None:
    sampling = {
        "rollout_batch_size": 16,
        "mini_batches": 2,
        "actor_infer": {"generating_args": {"max_new_tokens": 24}, "strategy_args": {"strategy_name": "hf_infer"}},
    }
    ours, theirs = (
        losses("distill_prompts", name, tmp_path / name, **sampling, **ASKS[asked]) for name in (engine, "hf_infer")
    )
    assert len(ours) == 3 and ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_a_student_learns_the_same_from_an_engine_on_the_answers_of_files(tmp_path: Path) -> None:
    data = tmp_path / "sums.jsonl"
    said = [{"prompt": f"What is {a} + {b}?", "response": f"{a} + {b} = {a + b}"} for a in range(6) for b in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in said))
    training = {"learning_rate": 3e-4, "per_device_train_batch_size": 6}
    files = {
        "actor_train": {"data_args": {"file_name": [str(data)]}, "training_args": training},
        "teacher_top_k": 6,
        "distill_on_prompt": True,
    }
    both = ("of_a_users_own", "hf_infer")
    ours, theirs = (losses("distill_rows", name, tmp_path / name, **files) for name in both)
    assert len(ours) == 3 and ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
