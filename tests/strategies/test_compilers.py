"""Who asks for compiled layers learns before a model loads that nothing here compiles them, and what is missing."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest
import torch

from roll.config.errors import ConfigError
from roll.strategies import compilers
from roll.strategies.compilers import missing_compiler
from roll.strategies.jobs import ScoreOptions, ScorerJob, TrainerJob, TrainOptions
from roll.strategies.training.pytorch.build import fsdp_scorer, trainer


def never() -> NoReturn:
    raise AssertionError("a model was loaded")


def test_a_machine_without_what_compiles_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert missing_compiler(cpu) == "compiling for CPUs needs a C++ compiler, and 'no-such-compiler' is not on PATH"
    monkeypatch.setenv("CXX", shutil.which("env") or "env")
    with monkeypatch.context() as patch:
        patch.setattr(compilers.sysconfig, "get_path", lambda name: "/nowhere")
        assert missing_compiler(cpu) == "compiling for CPUs needs Python's headers, and /nowhere has no Python.h"
    if find_spec("triton") is None:
        assert missing_compiler(torch.device("cuda")) == "compiling for cuda needs Triton, which is not installed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="looks for a compiler for CPUs")
def test_a_trainer_and_a_scorer_name_the_option_before_they_load_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    given: dict[str, Any] = {
        "strategy_config": {"torch_compile": True},
        "path": "its.options",
        "folder": str,
        "load": never,
    }
    said = r"its.options.torch_compile = True\n.*'no-such-compiler' is not on PATH"
    with pytest.raises(ConfigError, match=said):
        trainer(TrainerJob(predicts="log_probs", options=TrainOptions(), **given))
    with pytest.raises(ConfigError, match=said):
        fsdp_scorer(ScorerJob(options=ScoreOptions(), **given))
