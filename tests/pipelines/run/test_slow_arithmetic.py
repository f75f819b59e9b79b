"""A run in bf16 on a processor without such arithmetic says so, and how to do without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from roll.config import load
from roll.config.trainer_keys import TrainerKeys
from roll.models.slow_bf16 import BEARABLE, bf16_slowdown
from roll.pipelines.run import slow_arithmetic
from roll.pipelines.run.slow_arithmetic import slow_format_warnings

BF16 = "actor_train.model_args.dtype=bf16"


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Stands in for the processors that this machine has not: how much longer bf16 takes there, without GPUs."""

    def stand_in(slowdown: float) -> None:
        monkeypatch.setattr(slow_arithmetic, "bf16_slowdown", lambda: slowdown)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    return stand_in


def warnings_of(*overrides: str) -> list[str]:
    config = load("rlvr_math", overrides=list(overrides))
    assert isinstance(config, TrainerKeys)
    return list(slow_format_warnings(config))


def test_the_key_that_helps_is_named(on_processor: Callable[[float], None]) -> None:
    on_processor(50.0)
    (said,) = warnings_of(BF16)
    assert "50 times" in said and "actor_train.model_args.dtype=fp32" in said
    assert warnings_of(BF16, "actor_train.model_args.dtype=fp32") == []


def test_a_critic_is_named_too(on_processor: Callable[[float], None]) -> None:
    on_processor(50.0)
    (said,) = warnings_of("adv_estimator=gae", "+critic.model_args.dtype=bf16")
    assert "critic.model_args.dtype=fp32" in said


def test_where_bf16_is_fast_or_another_machine_computes_nothing_is_said(on_processor: Callable[[float], None]) -> None:
    on_processor(BEARABLE / 2)
    assert warnings_of(BF16) == []
    on_processor(50.0)
    assert warnings_of(BF16, "cluster=ray") == []


def test_models_whose_own_format_is_fp32_are_not_measured(on_processor: Callable[[float], None]) -> None:
    on_processor(50.0)
    assert warnings_of() == []


def test_what_is_measured_is_a_ratio_of_times() -> None:
    assert 0.1 < bf16_slowdown() < 1000
