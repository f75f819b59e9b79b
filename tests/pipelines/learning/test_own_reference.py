"""LoRA adapters that are switched off are the reference: no second model is loaded, and the numbers are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig
from roll.config.errors import ConfigError
from roll.pipelines.agentic import run_agentic
from tests.e2e.support import UNREPRODUCIBLE, small_config
from tests.rings import exhaustive_but

pytest.importorskip("peft")

TERMS: dict[str, dict[str, Any]] = {
    "loss": {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_penalty": "low_var_kl"},
    "reward": {"init_kl_coef": 0.1},
}


SECOND = {"reference.strategy_args.strategy_name": "hf_infer"}


def config(folder: Path, **changes: Any) -> AgenticConfig:
    learning = {"actor_train.model_args.lora_rank": 4, "actor_train.training_args.learning_rate": 1e-2}
    return small_config(
        folder, **({"max_steps": 2, "save_steps": 0, "eval_steps": 0, "mini_batches": 1} | learning | changes)
    )


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "logs" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{name: value for name, value in row.items() if not name.startswith(UNREPRODUCIBLE)} for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("term", exhaustive_but(TERMS, "loss"))
def test_the_policy_without_its_adapters_says_what_a_second_model_says(tmp_path: Path, term: str) -> None:
    own = config(tmp_path / "own", **TERMS[term])
    assert own.is_own_reference and "reference" not in dict(own.worker_roles())
    second = config(tmp_path / "second", **TERMS[term], **SECOND)
    assert not second.is_own_reference and "reference" in dict(second.worker_roles())
    run_agentic(own)
    run_agentic(second)

    ours, theirs = metrics(tmp_path / "own"), metrics(tmp_path / "second")
    diverged = {"loss": "train/loss/kl", "reward": "kl/reference"}[term]
    assert ours[0][diverged] == pytest.approx(0, abs=1e-6) and abs(ours[-1][diverged]) > 1e-5
    for one, other in zip(ours, theirs, strict=True):
        assert one == {name: pytest.approx(value, rel=1e-4, abs=1e-6) for name, value in other.items()}


@pytest.mark.parametrize("changes", [{"actor_train.model_args.lora_rank": "null"}, {"kl_penalty": "full"}])
def test_whoever_cannot_be_it_needs_a_second_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="add a reference: section"):
        config(tmp_path, use_kl_loss=True, **changes)
