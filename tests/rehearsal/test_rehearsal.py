"""Jobs rehearsed with faults that somebody made: each is found, and a sound job is not accused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.config import RLVRConfig
from roll.config.loading import load
from roll.rehearsal import rehearse, render_rehearsal
from roll.rehearsal.stand_in import make_stand_in

pytestmark = pytest.mark.long


def job(data: Path, **changes: Any) -> RLVRConfig:
    keys: dict[str, Any] = {
        "pretrain": "toy_math",
        "prompt_length": 96,
        "sequence_length": 144,
        "rollout_batch_size": 64,
        "num_return_sequences_in_group": 8,
        "rewards": {"math_rule": {"verifiers": {"math": 1.0}}},
        "actor_train.data_args.file_name": [str(data)],
        "actor_infer.generating_args.max_new_tokens": 48,
    }
    return load({}, kind=RLVRConfig, overrides={**keys, **changes})


def written(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


GOOD = [{"prompt": f"What is {number} plus 2?", "ground_truth": str(number + 2)} for number in range(12)]


def test_a_sound_job_is_rehearsed_in_two_steps_and_what_was_folded_is_said(tmp_path: Path) -> None:
    found = rehearse(job(written(tmp_path / "rows.jsonl", *GOOD)), processes=False)
    assert found.is_sound, render_rehearsal(found)
    assert any("random model" in note for note in found.folded)
    assert any("became 2" in note for note in found.folded)
    assert {"local: rollout", "local: update"} <= set(found.seconds)


@pytest.mark.exhaustive
def test_every_row_is_read_and_those_that_fail_are_named(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", *GOOD, '{"prompt": ', {"prompt": "word " * 400, "ground_truth": "1"})
    found = rehearse(job(data), processes=False)
    assert not found.is_sound
    assert [(row.rows, row.bad, row.too_long) for row in found.rows] == [(14, 1, 1)]
    assert "line 13" in found.rows[0].examples[0]


@pytest.mark.exhaustive
def test_a_key_that_nothing_reads_is_listed(tmp_path: Path) -> None:
    found = rehearse(job(written(tmp_path / "rows.jsonl", *GOOD), lambd=0.9), processes=False)
    assert "lambd" in found.unread


@pytest.mark.exhaustive
def test_a_job_over_rows_has_the_sizes_of_its_kind_only(tmp_path: Path) -> None:
    """A model that is not here has the toy's tokenizer, so that lengths are widened: of keys that this kind has."""
    pairs = [{"prompt": f"{number} + 2?", "chosen": str(number + 2), "rejected": "0"} for number in range(8)]
    keys = {"pipeline": "dpo", "pretrain": "Qwen/Qwen3-8B", "output_dir": str(tmp_path / "run")}
    data = {"actor_train": {"data_args": {"file_name": str(written(tmp_path / "pairs.jsonl", *pairs))}}}
    found = rehearse(load({**keys, **data}), processes=False)
    assert found.is_sound, render_rehearsal(found)


@pytest.mark.exhaustive
def test_what_breaks_is_told_with_its_place(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", *GOOD)
    changes = {"algorithm_modules": ["module_that_is_not_there"]}
    found = rehearse(job(data, **changes), processes=False)
    assert found.breaks
    assert "module_that_is_not_there" in found.breaks[0].message


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B-Instruct"])
def test_the_stand_in_is_of_the_same_family(tmp_path: Path, name: str) -> None:
    from roll.planning.families import known_config

    known = known_config(name)
    assert known is not None
    model = make_stand_in(name, tmp_path / "model", 0)
    assert model.family == known["model_type"]
    assert not model.own_tokenizer
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == model.family
