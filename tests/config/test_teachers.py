"""What the keys of teachers mean together: which strategies teach, and what an engine cannot say."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config import ConfigError, load
from roll.config.strategies import STRATEGIES, Ability, StrategyDescription, strategies_for

ENGINE: dict[str, Any] = {"teacher.strategy_args.strategy_name": "vllm"}


def said(preset: str = "distill_sokoban", **changes: Any) -> str:
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    with pytest.raises(ConfigError) as raised:
        load(preset, overrides={**ENGINE, **overrides})
    return str(raised.value)


def test_engines_that_score_tokens_teach_and_are_no_references() -> None:
    assert {"vllm", "sglang", "hf_infer", "fsdp_infer"} <= set(strategies_for("teacher"))
    assert not {"vllm", "sglang"} & set(strategies_for("reference"))
    for engine in ("vllm", "sglang"):
        about = STRATEGIES.get(engine)
        assert about.is_engine_for(Ability.SCORE_TOKENS) and not about.is_engine_for(Ability.SCORE)
    assert not STRATEGIES.get("hf_infer").is_engine_for(Ability.SCORE_TOKENS)
    with pytest.raises(ValueError, match="no engine that could score"):
        StrategyDescription(name="none", trainer="a:b", scores_tokens=True)


@pytest.mark.parametrize("preset", ["distill_sokoban", "distill_rows_sokoban"])
def test_an_engine_teaches_its_likeliest_tokens_by_any_divergence(preset: str) -> None:
    for divergence in ("reverse_kl", "forward_kl", "jsd"):
        loaded = load(preset, overrides={**ENGINE, "teacher_top_k": 8, "divergence": divergence})
        assert loaded.role("teacher").strategy_args.strategy_name == "vllm"


def test_an_engine_teaches_sampled_tokens() -> None:
    loaded = load("distill_sokoban", overrides={**ENGINE, "divergence": "sampled_reverse_kl"})
    assert loaded.compares_sampled and not loaded.measured_from and not loaded.measures_top_k


def test_an_engine_that_should_teach_the_whole_vocabulary_is_told_what_it_can_teach() -> None:
    for preset in ("distill_sokoban", "distill_rows_sokoban"):
        problem = said(preset)
        assert "teacher.strategy_args.strategy_name" in problem and "no hidden states" in problem
        assert "set teacher_top_k, such as 64" in problem and "divergence: sampled_reverse_kl" in problem
        assert "fsdp_infer or hf_infer" in problem


def test_an_engine_compares_at_temperature_1_only() -> None:
    warm = said(teacher_top_k=8, actor_infer__generating_args__temperature=0.7)
    assert "actor_infer.generating_args.temperature" in warm and "temperature 1 only" in warm
    assert "kd_temperature" in said(teacher_top_k=8, kd_temperature=2.0)
    cold = {"actor_infer.generating_args.temperature": 0.5, "kd_temperature": 2.0}
    assert load("distill_sokoban", overrides={**ENGINE, **cold, "teacher_top_k": 8}).compared_temperature == 1.0


def test_an_engine_needs_weights_and_devices_of_its_own() -> None:
    assert "these are random" in said(teacher_top_k=8, teacher__strategy_args__strategy_config={"load_format": "dummy"})
    devices = {"actor_infer__device_mapping": "[0, 1]", "teacher__device_mapping": "[1]"}
    assert "keeps its memory" in said(teacher_top_k=8, **devices)


def test_sampled_tokens_are_those_of_the_student_and_nothing_beside_them() -> None:
    sampled = {"teacher__strategy_args__strategy_name": "hf_infer", "divergence": "sampled_reverse_kl"}
    assert "no others are named" in said(**sampled, teacher_top_k=8)
    assert "kd_temperature" in said(**sampled, kd_temperature=2.0)
    assert "has not sampled the tokens of files" in said("distill_rows_sokoban", **sampled)
    stored = {"teacher": None, "teacher_data": ["a.parquet"], "divergence": "sampled_reverse_kl"}
    with pytest.raises(ConfigError, match="teacher_data is set"):
        load("distill_sokoban", overrides=stored)
