"""Every method on the page about ROLL's and Trinity's files runs, with the keys that its row has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.config import load
from roll.config.kinds import PIPELINES, runner
from roll.runs.stored import StoredRun
from tests.docs.docs_support import ROOT
from tests.pipelines.noisy_model import noisy_math

pytestmark = pytest.mark.long  # whole runs

SUMS = [(a, b) for a in range(1, 5) for b in range(1, 4)]
TEACHER = {"model_args": {"model_name_or_path": "toy_math"}, "strategy_args": {"strategy_name": "hf_infer"}}
ENGINE = {"generating_args": {"max_new_tokens": 12}, "strategy_args": {"strategy_name": "hf_infer"}}
SAMPLED = {"sequence_length": 96, "rollout_batch_size": 4, "mini_batches": 1, "actor_infer": ENGINE, "eval_steps": 0}
FILES = {
    "instruction": [{"instruction": "Add.", "input": f"{a} + {b}", "output": str(a + b)} for a, b in SUMS],
    "messages": [
        {"messages": [{"role": "user", "content": f"{a} + {b}?"}, {"role": "assistant", "content": str(a + b)}]}
        for a, b in SUMS
    ],
    "pairs": [{"prompt": f"{a} + {b}?", "chosen": str(a + b), "rejected": "0"} for a, b in SUMS],
    "answers": [{"prompt": f"{a} + {b}?", "response": str(a + b)} for a, b in SUMS],
    "problems": [{"prompt": f"{a} + {b}?", "ground_truth": str(a + b), "tag": "arithmetic"} for a, b in SUMS],
}
"""What users of these files have, small."""


def methods() -> Mapping[str, dict[str, Any]]:
    """The keys of each row, by its method."""
    found: dict[str, dict[str, Any]] = {}
    for line in (ROOT / "docs/learning_methods.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and "`pipeline:" in cells[2]:
            found[cells[0]] = {}
            for words in re.findall(r"`([^`]+)`", cells[2]):
                found[cells[0]] |= yaml.safe_load(words)
    return found


METHODS = methods()


def file_for(keys: Mapping[str, Any]) -> str:
    """The name of the file that a method learns from."""
    if keys["pipeline"] == "sft":
        return "messages" if "messages_key" in keys else "instruction"
    return {"dpo": "pairs", "distill_rows": "answers"}.get(keys["pipeline"], "problems")


def base(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What is not the method: sizes, a toy, and graders or a teacher where the row names none."""
    pipeline = keys["pipeline"]
    if pipeline in ("sft", "dpo"):
        return {"sequence_length": 96}
    if pipeline == "distill_rows":
        return {"sequence_length": 96, "teacher": TEACHER}
    if pipeline == "distill_prompts":
        return {**SAMPLED, **({} if "teachers" in keys else {"teacher": TEACHER})}
    return {**SAMPLED, "num_return_sequences_in_group": 2, "rewards": {"math_rule": {"tag_included": ["arithmetic"]}}}


def test_the_page_has_every_family_of_their_files() -> None:
    assert {keys["pipeline"] for keys in METHODS.values()} == {"sft", "dpo", "distill_rows", "distill_prompts", "rlvr"}
    assert len(METHODS) == 17


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(
            method, marks=[] if method == "Several teachers by domain, with rewards" else pytest.mark.exhaustive
        )
        for method in METHODS
    ],
)
def test_a_method_runs_with_the_keys_of_its_row(method: str, tmp_path: Path) -> None:
    for name, rows in FILES.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = METHODS[method]
    config: dict[str, Any] = {
        "pretrain": noisy_math(),
        "output_dir": str(tmp_path / "run"),
        "progress": "none",
        "track_with": ["jsonl"],
        "max_steps": 2,
        "save_steps": 0,
        "actor_train": {
            "data_args": {"file_name": str(tmp_path / f"{file_for(keys)}.jsonl")},
            "training_args": {"per_device_train_batch_size": 4, "learning_rate": 1e-4},
        },
        **base(keys),
        **keys,
    }
    if "algorithm_type" in keys:  # it learns from differences between scores alone, so some answers must be right
        engine = {**ENGINE, "generating_args": {"max_new_tokens": 48}}
        config |= {"pretrain": "toy_math", "num_return_sequences_in_group": 8, "actor_infer": engine}
        config["actor_train"]["data_args"]["file_name"] = "examples/data/arithmetic_train.jsonl"
    if "expert" in keys:
        answers = {"data_args": {"file_name": str(tmp_path / "answers.jsonl")}}
        config["expert"] = {**keys["expert"], **answers}
    checked = load(config)
    runner(PIPELINES.get(keys["pipeline"]).run)(checked)

    learned = [row for row in StoredRun.open(tmp_path / "run").metrics() if "train/loss" in row]
    assert len(learned) == 2 and all(abs(row["train/loss"]) < 1e3 for row in learned)
    assert any(row["train/grad_norm"] > 0 for row in learned)
