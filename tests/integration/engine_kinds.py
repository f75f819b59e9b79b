"""All kinds of generation engines: the real ones, each started once, and what stands for one in other tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import MAX_LENGTH, EngineUnderTest, HuggingFace, decode, toy_folder
from sglang_support import RealSglang, SglangDouble, needs_sglang
from vllm_support import needs_vllm, shared_harness

from roll.models.loading import load_model
from roll.strategies import STRATEGIES, EngineJob
from roll.strategies.building import build_engine
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

KINDS = [
    "hf_infer",
    pytest.param("hf_infer in a thread", marks=pytest.mark.exhaustive),
    pytest.param("of a user's own", marks=pytest.mark.exhaustive),
    pytest.param("vllm", marks=needs_vllm),
    pytest.param("sglang", marks=[pytest.mark.sglang, needs_sglang]),
    "sglang's double",
]


def one_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineUnderTest]:
    """Yield the engine of the kind that a test is run with."""
    if request.param == "sglang's double":
        with_double = SglangDouble(monkeypatch)
        yield with_double
        with_double.close()
        return
    if request.param == "vllm":
        yield shared_harness(request.config)
        return
    engine = _shared(request)
    engine.give_first_weights_back()
    yield engine


_started: dict[str, EngineUnderTest] = {}


def _shared(request: pytest.FixtureRequest) -> EngineUnderTest:
    kind = request.param
    if kind not in _started or _started[kind].loop.is_closed():
        _started[kind] = _STARTS[kind]()
        request.config.add_cleanup(_started[kind].close)
    return _started[kind]


def _hf_infer(**options: Any) -> EngineUnderTest:
    folder = str(toy_folder())
    strategy = HfInferStrategy(load_model(folder), max_slots=64, max_length=MAX_LENGTH, decode=decode, **options)
    return EngineUnderTest(strategy, HuggingFace(load_model("toy")))


class OfAUsersOwn(EngineUnderTest):
    """The engine of ``examples/custom_engine.py``, found by the name that it registers."""

    keeps_prefixes = False

    def __init__(self) -> None:
        folder = str(toy_folder())
        job = EngineJob(
            folder=lambda: folder,
            load=lambda: load_model(folder).requires_grad_(False),
            max_length=MAX_LENGTH,
            decode=decode,
        )
        with pytest.MonkeyPatch.context() as patch, STRATEGIES.restored():
            patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples"))
            importlib.import_module("custom_engine")
            self.about = STRATEGIES.get("plain")
            engine = build_engine("plain", job)
        # It is forgotten again, so that whoever imports it next registers it.
        del sys.modules["custom_engine"]
        super().__init__(engine, HuggingFace(load_model("toy")))


_STARTS: dict[str, Callable[[], EngineUnderTest]] = {
    "hf_infer": _hf_infer,
    "hf_infer in a thread": lambda: _hf_infer(in_thread=True),
    "of a user's own": OfAUsersOwn,
    "sglang": RealSglang,
}
