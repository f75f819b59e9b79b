"""A fake of SGLang: no model, no processes, but the real package's signatures and what its control calls do.

Signatures, fields and choices are those of ``sglang_signatures.json``, so a call that the real package would refuse is
refused here. What the calls do follows the package's source: updates outside of the begin/end bracket, and a cache that
running requests hold, are answered with ``False`` and no exception; an abort ends all ids with the given beginning.

Its "model" is one number: each token is the one before plus that number, with log-prob ``-number``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

RECORDED = json.loads(Path(__file__).with_name("sglang_signatures.json").read_text())
VOCABULARY = 1000
SECONDS_PER_TOKEN = 0.001


def signature_of(owner: str, name: str) -> inspect.Signature:
    """Return the recorded signature of a method, without ``self``."""
    return inspect.Signature(
        [
            inspect.Parameter(
                parameter,
                getattr(inspect.Parameter, kind.upper()),
                default=None if has_default and kind != "var_keyword" else inspect.Parameter.empty,
            )
            for parameter, kind, has_default in RECORDED["methods"][owner][name]["parameters"]
        ]
    )


def recorded(owner: str) -> Any:
    """Decorate a method: calls must fit the recorded signature, and it must be a coroutine where the real one is."""

    def decorate(method: Any) -> Any:
        row = RECORDED["methods"][owner][method.__name__]
        assert inspect.iscoroutinefunction(method) == row["asynchronous"], method.__name__
        signature = signature_of(owner, method.__name__)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self.calls.append(method.__name__)
            return method(self, **bound.arguments)

        return call

    return decorate


def record_class(name: str) -> type:
    """Return a class with the recorded fields, keyword only."""
    rows = RECORDED["records"][name]

    def __init__(self: Any, **kwargs: Any) -> None:
        for key, value in kwargs.items():
            if key not in rows:
                raise TypeError(f"{name} has no field {key!r}")
            if rows[key]["choices"] and value not in rows[key]["choices"]:
                raise ValueError(f"{name}.{key} is {value!r}; it must be one of {rows[key]['choices']}")
        missing = [key for key, row in rows.items() if not row["default"] and key not in kwargs]
        if missing:
            raise TypeError(f"{name} needs {missing}")
        for key in rows:
            setattr(self, key, kwargs.get(key))

    return type(name, (), {"__init__": __init__})


@dataclass
class Running:
    """A request inside the fake."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    holds_cache: bool = False
    aborted: bool = False


class FakeManager:
    """Stands for ``TokenizerManager``."""

    def __init__(self, version: str) -> None:
        self.calls: list[str] = []
        self.number = 1
        self.version = version
        self.in_bracket = False
        self.paused = False
        self.cached: set[tuple[int, ...]] = set()
        self.running: dict[str, Running] = {}
        self.refuse_load = False
        self.refuse_flush = False
        self.released: list[str] | None = None

    @recorded("TokenizerManager")
    def abort_request(self, rid: str, abort_all: bool) -> None:
        for name, request in self.running.items():
            request.aborted |= bool(abort_all) or name.startswith(rid)

    @recorded("TokenizerManager")
    async def pause_generation(self, obj: Any) -> None:
        self.paused = True
        if obj.mode == "retract":
            for request in self.running.values():
                request.holds_cache = False

    @recorded("TokenizerManager")
    async def continue_generation(self, obj: Any) -> None:
        self.paused = False

    @recorded("TokenizerManager")
    async def begin_weight_update(self, obj: Any, request: Any) -> tuple[bool, str]:
        if self.in_bracket:
            return False, "a session is already open"
        self.in_bracket = True
        return True, "Success"

    @recorded("TokenizerManager")
    async def end_weight_update(self, obj: Any, request: Any) -> tuple[bool, str]:
        if not self.in_bracket:
            return False, "no session is open"
        self.in_bracket = False
        return True, "Success"

    @recorded("TokenizerManager")
    async def update_weights_from_tensor(self, obj: Any, request: Any) -> tuple[bool, str]:
        if not self.in_bracket:
            return False, "must run between begin_weight_update() and end_weight_update()"
        if self.refuse_load:
            return False, "shapes differ"
        for tensors in obj.serialized_named_tensors:
            for _, tensor in tensors:
                self.number = int(tensor.flatten()[0])
        self.version = obj.weight_version
        return True, "Success"

    @recorded("TokenizerManager")
    async def update_weights_from_disk(self, obj: Any, request: Any) -> tuple[bool, str, int]:
        if not Path(obj.model_path, "number").exists():
            return False, f"nothing in {obj.model_path}", 0
        self.number = int(Path(obj.model_path, "number").read_text())
        self.version = obj.weight_version
        return True, "Success", 0

    @recorded("TokenizerManager")
    async def flush_cache(self, timeout_s: float | None) -> Any:
        held = any(request.holds_cache for request in self.running.values())
        ok = not held and not self.refuse_flush
        if ok:
            self.cached.clear()
        answer = sys.modules["sglang.srt.managers.io_struct"].FlushCacheReqOutput
        return answer(success=ok, message="" if ok else "pending requests")

    @recorded("TokenizerManager")
    async def release_memory_occupation(self, obj: Any, request: Any) -> None:
        assert not any(one.holds_cache for one in self.running.values())
        self.released = obj.tags

    @recorded("TokenizerManager")
    async def resume_memory_occupation(self, obj: Any, request: Any) -> None:
        self.released = None


class FakeEngine:
    """Stands for ``Engine``."""

    last: FakeEngine | None = None

    def __init__(self, **kwargs: Any) -> None:
        unknown = set(kwargs) - set(RECORDED["arguments"])
        assert not unknown, unknown
        self.arguments = kwargs
        self.calls: list[str] = []
        self.sampling: list[dict[str, Any]] = []
        self.tokenizer_manager = FakeManager(kwargs["weight_version"])
        self.closed = False
        FakeEngine.last = self

    @recorded("Engine")
    async def async_generate(self, **arguments: Any) -> dict[str, Any]:
        manager, sampling, rid = self.tokenizer_manager, arguments["sampling_params"], arguments["rid"]
        unknown = set(sampling) - set(RECORDED["sampling"])
        assert not unknown, unknown
        assert arguments["return_logprob"]
        self.sampling.append({**sampling, "priority": arguments["priority"]})
        prompt = tuple(arguments["input_ids"])
        cached = len(prompt) if prompt in manager.cached else 0
        one = manager.running[rid] = Running(list(prompt))
        try:
            reason = await self._run(one, sampling)
        finally:
            del manager.running[rid]
        manager.cached.add(prompt)
        spans = []
        for place, version in enumerate(one.versions):
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = place + 1
            else:
                spans.append({"version": version, "start": place, "end": place + 1})
        meta = {
            "finish_reason": {"type": reason},
            "output_token_logprobs": [(p, t, None) for p, t in zip(one.log_probs, one.tokens, strict=True)],
            "cached_tokens": cached,
            "weight_version": manager.version,
            "weight_versions": spans,
        }
        return {"output_ids": one.tokens, "meta_info": meta}

    async def _run(self, one: Running, sampling: dict[str, Any]) -> str:
        manager = self.tokenizer_manager
        while len(one.tokens) < sampling["max_new_tokens"]:
            await asyncio.sleep(SECONDS_PER_TOKEN)
            if one.aborted:
                return "abort"
            if manager.paused:
                continue
            one.holds_cache = True
            last = (one.prompt + one.tokens)[-1]
            one.tokens.append((last + manager.number) % VOCABULARY)
            one.log_probs.append(-float(manager.number))
            one.versions.append(manager.version)
            if one.tokens[-1] in sampling["stop_token_ids"]:
                return "stop"
        return "length"

    @recorded("Engine")
    def _serialize_tensors_per_rank(
        self, tensors: list[tuple[str, torch.Tensor]], load_format: str | None
    ) -> list[list[tuple[str, torch.Tensor]]]:
        return [tensors]

    @recorded("Engine")
    def shutdown(self) -> None:
        self.closed = True


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fake where the package would be, until the test ends."""
    modules = {
        name: types.ModuleType(name)
        for name in (
            "sglang",
            "sglang.srt",
            "sglang.srt.entrypoints",
            "sglang.srt.entrypoints.engine",
            "sglang.srt.managers",
            "sglang.srt.managers.io_struct",
            "sglang.srt.server_args",
        )
    }
    modules["sglang.srt.entrypoints.engine"].Engine = FakeEngine  # type: ignore[attr-defined]
    for name in RECORDED["records"]:
        setattr(modules["sglang.srt.managers.io_struct"], name, record_class(name))

    class ServerArgs:
        __signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in RECORDED["arguments"]]
        )

    modules["sglang.srt.server_args"].ServerArgs = ServerArgs  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "roll.strategies.sglang.adapter", raising=False)
