"""The asyncio face of SGLang: token ids in, token ids and exact log-probs out, weights that change while it runs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from roll.generation import Completion, GenerationRequest, SamplingParams, ScoringRequest, TokenScores, fold_seed
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.serving import ServedEngine, check_request, check_scoring
from roll.strategies.generation.sglang.answers import scores_of
from roll.strategies.generation.sglang.description import SGLANG
from roll.strategies.generation.sglang.errors import (
    EngineDiedError,
    GenerationError,
    SglangNotInstalledError,
    WeightLoadError,
)
from roll.strategies.generation.sglang.limits import refusals
from roll.strategies.generation.sglang.options import allow_margin, check_options, engine_arguments
from roll.strategies.generation.stop_strings import Decode, StopStrings

_BUCKET_BYTES = 256 * 1024**2
_SIGN_BIT = 2**63
_ABORT_AGAIN_SECONDS = 0.05
_LAST_WORDS = 5.0
"""Seconds that requests have to end when the engine is closed."""


@dataclass(slots=True)
class _Request:
    """A request under way.

    Attributes:
        rid: SGLang's id of it, and all of one length: SGLang's abort ends every request whose id *begins* with the one
            it is given.
        inside: Whether SGLang has it; while the engine is paused requests wait outside.
        aborted: Set when it is to end.
        gone: Set when it has ended.
        ending: Makes it end.
        known: So many of its tokens were searched for texts that end it.
        end: So many tokens it has up to such a text.
    """

    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    inside: bool = False
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Task[None] | None = None
    known: int = 0
    end: int | None = None


class SglangStrategy(ServedEngine):
    """Samples completions with SGLang's ``Engine``, whose scheduler runs in processes of its own.

    Making one starts those processes and loads the model, which blocks for half a minute and more. It serves the event
    loop that first uses it.

    New weights take effect between two steps. Running requests are frozen and give their cache up, weights are loaded
    inside SGLang's begin/end bracket, all that was cached is dropped, and the requests go on: their earlier tokens are
    computed anew under the new weights. Every answer is checked, because SGLang reports a refused update, or a cache
    that it kept, by a return value only.

    Args:
        model: Folder of the model in Hugging Face format. No tokenizer is needed.
        max_slots: Most sequences that run at once; more wait, smallest priority first.
        max_length: Most tokens of a sequence, prompt and completion.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
        strategy_config: Further arguments of SGLang's engine (``tp_size``, ``mem_fraction_static``, …). A request's
            seed has an effect only with ``enable_deterministic_inference``.
        seed: Of the engine's own random numbers.
        version: Policy version of the weights in the folder.
        bucket_bytes: Most bytes of tensors that an update hands over at once, unless a single tensor is larger.
        decode: Of the policy's tokenizer, where requests end at texts.
        most_named: Most tokens that :meth:`score` names at a place; ``None`` where it is not called.

    Raises:
        SglangNotInstalledError: If SGLang is missing.
        ConfigError: If ``strategy_config`` has a key that SGLang does not know or that roll sets itself.
        ValueError: If a size is not positive, or SGLang refuses an argument.
    """

    engine_name = "sglang"

    def __init__(
        self,
        model: str | Path,
        *,
        max_slots: int = 256,
        max_length: int = 4096,
        dtype: str = "bf16",
        strategy_config: Mapping[str, Any] | None = None,
        seed: int = 0,
        version: int = 0,
        bucket_bytes: int = _BUCKET_BYTES,
        decode: Decode | None = None,
        most_named: int | None = None,
    ) -> None:
        self.check_sizes(max_slots=max_slots, max_length=max_length, bucket_bytes=bucket_bytes)
        # SGLang reads given tokens only where one more could be sampled.
        context = max_length + (most_named is not None)
        options = check_options(strategy_config, max_length=context, path="strategy_config")
        try:
            from roll.strategies.generation.sglang.adapter import SglangEngine
        except ImportError as error:
            raise SglangNotInstalledError(error) from error
        allow_margin(str(model), max_length, context)
        arguments = engine_arguments(
            str(model),
            max_slots=max_slots,
            max_length=context,
            dtype=dtype,
            seed=seed,
            version=version,
            options=options,
        )
        super().__init__(str(version), version, SGLANG.starts_with_random_weights(options))
        self.max_length = max_length
        self._engine = SglangEngine(arguments)
        self._most_named = most_named
        self._bucket_bytes = bucket_bytes
        self._stop_strings = StopStrings(decode)
        self._under_way: dict[str, _Request] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._totals = {"generated_tokens": 0, "prompt_tokens": 0, "cached_tokens": 0, "requests": 0, "aborted": 0}
        self._update_seconds = 0.0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``. Cancelling the caller ends the request.

        Raises:
            ValueError: If the prompt is empty or leaves no room for a token, if the sampling parameters are
                meaningless or SGLang has no exact log-probs for them, or if a request with this id is running.
            GenerationError: If the engine failed.
            RuntimeError: If the engine is closed or its last weight update failed half-way.
        """
        self._check(request)
        async with self._running(request.request_id) as mine:
            if not mine.inside:
                return Completion([], [], "abort", (self.policy_version, self.policy_version))
            sampling = self._sampling(request)
            watch = partial(self._watch, mine, request) if request.sampling.stop_strings else None
            answer = await self._engine.generate(request.prompt_ids, sampling, mine.rid, request.priority, watch)
        return self._completion(request, answer, mine.end)

    @property
    def vocabulary(self) -> int:
        """How many tokens its distributions are over."""
        return self._engine.vocabulary

    async def score(self, request: ScoringRequest) -> TokenScores:
        """Return log-probs of given tokens; what is before them may be cached.

        Raises:
            ValueError: If the sequence is empty, too long or has ids outside the vocabulary, if it is scored from its
                first token on, if more tokens are to be named than the engine was made for, or if a request with this
                id is running.
            GenerationError: If the engine failed, or the request was aborted.
            RuntimeError: If the engine is closed or has no valid weights.
        """
        self._check_usable()
        check_scoring(
            request,
            is_running=request.request_id in self._under_way,
            max_length=self.max_length,
            vocabulary=self.vocabulary,
            most_named=self._most_named,
        )
        async with self._running(request.request_id) as mine:
            if not mine.inside:
                raise GenerationError(f"sglang: request {request.request_id!r} was aborted before it began")
            meta = await self._engine.score(request.token_ids, request.start, request.most_named, mine.rid)
        return scores_of(meta, request)

    @asynccontextmanager
    async def _running(self, request_id: str) -> AsyncIterator[_Request]:
        """Let a request into the engine while the block runs, and name what makes it fail.

        Raises:
            GenerationError: The engine failed in the block, or weights became unusable meanwhile.
        """
        mine = self._under_way[request_id] = _Request()
        try:
            await self._enter(mine)
            yield mine
        except asyncio.CancelledError:
            if mine.inside:
                self._engine.abort(mine.rid)
            raise
        except GenerationError:
            raise
        except Exception as error:
            raise GenerationError(
                f"sglang failed while request {request_id!r} was running: {type(error).__name__}: {error}"
            ) from error
        finally:
            del self._under_way[request_id]
            mine.gone.set()
        if mine.inside and self._unusable is not None:
            raise GenerationError(f"sglang: request {request_id!r} was ended: {self._unusable}")

    async def abort(self, request_id: str) -> None:
        """End a request; its ``generate`` returns what it has. Unknown or finished ids are ignored."""
        mine = self._under_way.get(request_id)
        if mine is not None:
            self._end(mine)

    async def release(self, session: str) -> None:
        """Nothing to do: the cache knows no sessions and forgets what was not used for longest."""

    async def pause(self) -> None:
        """Stop stepping; running requests freeze, new ones queue until :meth:`resume`."""
        self._check_open()
        async with self._changing:
            self._open.clear()
            await self._engine.freeze()

    async def resume(self) -> None:
        """Continue stepping."""
        self._check_open()
        async with self._changing:
            await self._engine.thaw()
            self._open.set()

    async def sleep(self) -> None:
        """Freeze requests and give the GPU's memory back; weights are lost, so requests are refused until an update."""
        self._check_open()
        async with self._changing:
            self._open.clear()
            await self._engine.freeze()
            await self._engine.drop_cache()
            await self._engine.release_memory()
            self._unusable = "sleep gave the weights' memory back"

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again; with ``tags=None`` or the cache's tag, continue stepping too."""
        self._check_open()
        async with self._changing:
            await self._engine.take_memory(None if tags is None else list(tags))
            if tags is None or "kv_cache" in tags:
                await self._engine.thaw()
                self._open.set()

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load new weights and drop every cached prefix; running requests go on under the new weights.

        Raises:
            WeightLoadError: If SGLang refused a part of it. Requests under way fail with :class:`GenerationError`, and
                further ones are refused until an update succeeds.
        """

        async def load(label: str) -> None:
            await self._engine.begin_update()
            try:
                for bucket in _buckets(update.named_tensors, self._bucket_bytes):
                    await self._engine.load_tensors(bucket, label)
            finally:
                # A bracket that stays open makes every later update fail.
                await self._engine.end_update()

        await self._change_weights(update.version, load)

    async def close(self) -> None:
        """End all requests and the engine's processes. Closing twice is harmless."""
        if self._closed:
            return
        under_way = list(self._under_way.values())
        for mine in under_way:
            self._end(mine)
        self._closed = True
        # Their callers take the results before the engine is gone.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                for mine in under_way:
                    await mine.gone.wait()
        await self._engine.shutdown()

    def metrics(self) -> dict[str, float]:
        """Totals since the start, and the requests under way."""
        totals = {name: float(value) for name, value in self._totals.items()}
        return {
            **totals,
            "prefix_cache_hit_rate": totals["cached_tokens"] / max(totals["prompt_tokens"], 1.0),
            "active": float(len(self._under_way)),
            "weight_update_seconds": self._update_seconds,
        }

    async def _enter(self, mine: _Request) -> None:
        """Wait until the engine takes requests, or ``mine`` is aborted before."""
        if not self._open.is_set():
            waits = [asyncio.ensure_future(self._open.wait()), asyncio.ensure_future(mine.aborted.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        mine.inside = not mine.aborted.is_set()

    def _end(self, mine: _Request) -> None:
        if not mine.aborted.is_set():
            mine.aborted.set()
            if mine.inside:
                mine.ending = asyncio.create_task(self._insist(mine))

    async def _insist(self, mine: _Request) -> None:
        """Abort a request until it is gone: an abort that overtakes its request inside SGLang is forgotten."""
        while not mine.gone.is_set():
            self._engine.abort(mine.rid)
            with suppress(TimeoutError):
                await asyncio.wait_for(mine.gone.wait(), _ABORT_AGAIN_SECONDS)

    @asynccontextmanager
    async def _frozen(self) -> AsyncIterator[None]:
        async with self._changing:
            was_open = self._open.is_set()
            self._open.clear()
            # Again if it is paused: only a freeze makes the cache droppable, and freezing twice is harmless.
            await self._engine.freeze()
            try:
                yield
            finally:
                if was_open:
                    with suppress(EngineDiedError):
                        await self._engine.thaw()
                    self._open.set()

    async def _change_weights(self, version: int, load: Callable[[str], Awaitable[None]]) -> None:
        self._check_open()
        started = time.perf_counter()
        label = f"{version}#{len(self._versions)}"
        async with self._frozen():
            try:
                await load(label)
                await self._engine.drop_cache()
            except BaseException as error:
                self._unusable = f"a weight update failed half-way: {error}"
                for mine in list(self._under_way.values()):
                    self._end(mine)
                if isinstance(error, EngineDiedError):
                    # It does so at a wrong shape.
                    raise WeightLoadError(
                        "sglang ended while it loaded new weights; its own output says why"
                    ) from error
                raise
            self._versions[label] = version
            self._label, self._unusable = label, None
        self._update_seconds += time.perf_counter() - started

    def _check(self, request: GenerationRequest) -> None:
        self._check_usable()
        check_request(
            request,
            is_running=request.request_id in self._under_way,
            max_length=self.max_length,
            vocabulary=self._engine.vocabulary,
            stop_strings=self._stop_strings,
            refusals=refusals(request.sampling),
        )

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        sampling: SamplingParams = request.sampling
        folded = fold_seed(request.seed)
        return {
            "max_new_tokens": min(sampling.max_new_tokens, self.max_length - len(request.prompt_ids)),
            "temperature": sampling.temperature,
            "stop_token_ids": list(sampling.stop_token_ids),
            # It would ignore the request's stop tokens too; see roll.strategies.generation.sglang.processes.
            "ignore_eos": False,
            # What ends a completion stays in it.
            "no_stop_trim": True,
            "sampling_seed": folded - 2 * _SIGN_BIT if folded >= _SIGN_BIT else folded,
        }

    def _watch(self, mine: _Request, request: GenerationRequest, tokens: list[int]) -> None:
        """End a request whose completion has one of its texts."""
        if mine.end is None:
            mine.end = self._stop_strings.end(tokens, request.sampling.stop_strings, mine.known)
            mine.known = len(tokens)
            if mine.end is not None:
                self._end(mine)

    def _completion(self, request: GenerationRequest, answer: Mapping[str, Any], end: int | None) -> Completion:
        tokens, meta = list(answer["output_ids"]), answer["meta_info"]
        entries = meta.get("output_token_logprobs") or []
        if [entry[1] for entry in entries] != tokens:
            raise GenerationError(f"sglang returned log-probs of {len(entries)} tokens for {len(tokens)} others")
        reason = meta["finish_reason"]["type"] if meta.get("finish_reason") else None
        if reason not in ("stop", "length", "abort"):
            raise GenerationError(f"sglang ended request {request.request_id!r} with {meta.get('finish_reason')}")
        if end is not None:
            # What was sampled before the engine heard of the end is not part of the completion.
            tokens, entries, reason = tokens[:end], entries[:end], "stop"
        spans = [
            span["version"]
            for span in meta.get("weight_versions") or []
            if span["end"] > span["start"] and span["start"] < len(tokens)
        ]
        labels = spans or [meta.get("weight_version", self._label)]
        versions = [self._versions.get(label, self.policy_version) for label in labels]
        cached = int(meta.get("cached_tokens") or 0)
        for name, amount in (
            ("generated_tokens", len(tokens)),
            ("prompt_tokens", len(request.prompt_ids)),
            ("cached_tokens", cached),
            ("requests", 1),
            ("aborted", int(reason == "abort")),
        ):
            self._totals[name] += amount
        log_probs = [float(entry[0]) for entry in entries]
        return Completion(tokens, log_probs, reason, (min(versions), max(versions)), cached)


def _buckets(
    named_tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yield copies of the tensors in pieces; a source may use its memory again for the next tensor."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in named_tensors:
        if bucket and size + tensor.nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor.detach().clone(memory_format=torch.contiguous_format)))
        size += tensor.nbytes
    if bucket:
        yield bucket
