"""A fake of SGLang: no model, no processes, but the real package's signatures and what its control calls do.

Signatures, fields and choices are those of ``sglang_signatures.json``, so a call that the real package would refuse is
refused here. What the calls do is what the real engine does, and both pass the tests of ``test_engine_contract*.py``:
updates outside of the begin/end bracket, and a cache that running requests hold, are answered with ``False`` and no
exception; an abort ends all ids with the given beginning; ``ignore_eos`` ignores stop tokens too.

Its "model" is one number: each token is the one before plus that number, with log-prob ``-number``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import types
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

RECORDED = json.loads(Path(__file__).with_name("sglang_signatures.json").read_text())
VOCABULARY = 1000
SECONDS_PER_TOKEN = 0.001
END_TOKEN = 308
UNUSED_CONTEXT = 6
"""Tokens at the end of its context that the engine never gives a prompt."""


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
        self.model_config = types.SimpleNamespace(vocab_size=VOCABULARY)

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
    run_scheduler_process_func: Any

    def __init__(self, **kwargs: Any) -> None:
        unknown = set(kwargs) - set(RECORDED["arguments"])
        assert not unknown, unknown
        self.arguments = kwargs
        self.calls: list[str] = []
        self.sampling: list[dict[str, Any]] = []
        self.tokenizer_manager = FakeManager(kwargs["weight_version"])
        self.end_tokens: set[int] = set()
        # In the real engine, in a process of its own.
        self.run_scheduler_process_func(self)
        FakeEngine.last = self

    @recorded("Engine")
    async def async_generate(self, **arguments: Any) -> dict[str, Any]:
        manager, sampling, rid = self.tokenizer_manager, arguments["sampling_params"], arguments["rid"]
        if sampling["max_new_tokens"] == 0:
            return self._score(**arguments)
        unknown = set(sampling) - set(RECORDED["sampling"])
        assert not unknown, unknown
        assert arguments["return_logprob"]
        self.sampling.append({**sampling, "priority": arguments["priority"]})
        prompt = tuple(arguments["input_ids"])
        assert all(0 <= token < VOCABULARY for token in prompt), "the real engine dies"
        longest = self.arguments["context_length"] - UNUSED_CONTEXT
        if len(prompt) >= longest:
            raise ValueError(f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length ({longest})")
        cached = len(prompt) if prompt in manager.cached else 0
        one = manager.running[rid] = Running(list(prompt))
        if arguments["stream"]:
            return self._stream(rid, one, sampling, cached)
        return [answer async for answer in self._stream(rid, one, sampling, cached)][-1]

    def _score(self, **arguments: Any) -> dict[str, Any]:
        """Return what is said of the tokens from ``logprob_start_len`` on; of the first of them, nothing."""
        ids, start, named = arguments["input_ids"], arguments["logprob_start_len"], arguments["top_logprobs_num"]
        assert arguments["return_logprob"] and len(ids) < self.arguments["context_length"] - UNUSED_CONTEXT
        number = self.tokenizer_manager.number
        own: list[Any] = [(None, ids[start], None)]
        others: list[Any] = [None]
        for before, token in zip(ids[start:], ids[start + 1 :], strict=False):
            follows = (before + number) % VOCABULARY
            own.append((-float(number) if token == follows else float("-inf"), token, None))
            likeliest = [(follows + more) % VOCABULARY for more in range(named)]
            others.append([(float("-inf") if more else -float(number), i, None) for more, i in enumerate(likeliest)])
        said = {"input_token_logprobs": own, **({"input_top_logprobs": others} if named else {})}
        return {"output_ids": [], "meta_info": {"finish_reason": {"type": "length"}, **said}}

    async def _stream(
        self, rid: str, one: Running, sampling: dict[str, Any], cached: int
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield what there is after every token, and then everything."""
        manager = self.tokenizer_manager
        try:
            async for reason in self._run(one, sampling):
                if reason is None:
                    yield {"output_ids": list(one.tokens), "meta_info": {"finish_reason": None}}
        finally:
            del manager.running[rid]
        manager.cached.add(tuple(one.prompt))
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
        yield {"output_ids": one.tokens, "meta_info": meta}

    async def _run(self, one: Running, sampling: dict[str, Any]) -> AsyncIterator[str | None]:
        """Yield ``None`` after every token, and at the end why it is the end."""
        manager = self.tokenizer_manager
        while len(one.tokens) < sampling["max_new_tokens"]:
            await asyncio.sleep(SECONDS_PER_TOKEN)
            if one.aborted:
                yield "abort"
                return
            if manager.paused:
                continue
            one.holds_cache = True
            last = (one.prompt + one.tokens)[-1]
            one.tokens.append((last + manager.number) % VOCABULARY)
            one.log_probs.append(-float(manager.number))
            one.versions.append(manager.version)
            if not sampling["ignore_eos"] and one.tokens[-1] in {*sampling["stop_token_ids"], *self.end_tokens}:
                yield "stop"
                return
            yield None
        yield "length"

    @recorded("Engine")
    def _serialize_tensors_per_rank(
        self, tensors: list[tuple[str, torch.Tensor]], load_format: str | None
    ) -> list[list[tuple[str, torch.Tensor]]]:
        return [tensors]

    @recorded("Engine")
    def shutdown(self) -> None:
        raise AssertionError("the real engine kills all child processes of this one")


class ModelConfig:
    """What is asked for a model's end tokens."""

    def _get_hf_eos_token_id(self) -> set[int]:
        return {END_TOKEN}


def run_scheduler_process(engine: FakeEngine) -> None:
    """Stands for the main function of the engine's processes."""
    config = sys.modules["sglang.srt.configs.model_config"].ModelConfig()
    engine.end_tokens = config._get_hf_eos_token_id()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fake where the package would be, until the test ends."""
    modules = {
        name: types.ModuleType(name)
        for name in (
            "sglang",
            "sglang.srt",
            "sglang.srt.configs",
            "sglang.srt.configs.model_config",
            "sglang.srt.entrypoints",
            "sglang.srt.entrypoints.engine",
            "sglang.srt.managers",
            "sglang.srt.managers.io_struct",
            "sglang.srt.managers.scheduler",
            "sglang.srt.server_args",
        )
    }
    FakeEngine.run_scheduler_process_func = staticmethod(run_scheduler_process)
    modules["sglang.srt.entrypoints.engine"].Engine = FakeEngine  # type: ignore[attr-defined]
    modules["sglang.srt.managers.scheduler"].run_scheduler_process = run_scheduler_process  # type: ignore[attr-defined]
    modules["sglang.srt.managers.scheduler"].Scheduler = type("Scheduler", (), {})  # type: ignore[attr-defined]
    # A class of its own for each engine, for roll changes it, in the real engine in a process of its own.
    config = type("ModelConfig", (ModelConfig,), {})
    modules["sglang.srt.configs.model_config"].ModelConfig = config  # type: ignore[attr-defined]
    for name in RECORDED["records"]:
        setattr(modules["sglang.srt.managers.io_struct"], name, record_class(name))

    class ServerArgs:
        __signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in RECORDED["arguments"]]
        )

    modules["sglang.srt.server_args"].ServerArgs = ServerArgs  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "roll.strategies.generation.sglang.adapter", raising=False)
