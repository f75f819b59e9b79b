"""The asyncio face of vLLM: token ids in, token ids and exact log-probs out, weights that change while it runs."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any, TypeVar

from roll.generation import Completion, GenerationRequest, SamplingParams, ScoringRequest, TokenScores
from roll.strategies.base import WeightUpdate
from roll.strategies.fingerprints import Fingerprints
from roll.strategies.generation.serving import ServedEngine, check_request, check_scoring
from roll.strategies.generation.stop_strings import Decode, StopStrings
from roll.strategies.generation.vllm.buckets import DEFAULT_BUCKET_BYTES, buckets_of
from roll.strategies.generation.vllm.description import VLLM
from roll.strategies.generation.vllm.errors import GenerationError, VllmNotInstalledError, WeightLoadError
from roll.strategies.generation.vllm.fingerprints import join
from roll.strategies.generation.vllm.limits import refusals
from roll.strategies.generation.vllm.metrics import EngineCounters
from roll.strategies.generation.vllm.options import EngineLimits, check_options

if TYPE_CHECKING:
    from roll.strategies.base import ReceivesWeights

T = TypeVar("T")

_SHUTDOWN_SECONDS = 20.0
"""How long the engine's processes may take to end before they are killed."""


class _End:
    """Where one of ``texts`` ends a completion.

    Attributes:
        count: Tokens of the completion that has ended so; ``None`` while none has.
    """

    def __init__(self, stop_strings: StopStrings, sampling: SamplingParams) -> None:
        self.count: int | None = None
        self._stop_strings = stop_strings
        self._texts = sampling.stop_strings
        self._known = max(0, sampling.min_new_tokens - 1)

    def is_reached(self, tokens: Sequence[int]) -> bool:
        """Return, once, that a text has ended the completion."""
        if self.count is not None or not self._texts:
            return False
        self.count = self._stop_strings.end(tokens, self._texts, self._known)
        self._known = max(self._known, len(tokens))
        return self.count is not None


class VllmStrategy(ServedEngine):
    """Samples completions with vLLM's ``AsyncLLM``, whose engine runs in processes of its own.

    Making one starts those processes and loads the model, which blocks for 10 s and more. It serves the event loop that
    first uses it.

    Prompts are cached in blocks; requests with equal beginnings share them, so sessions need no care. New weights take
    effect between two steps: running requests freeze, weights are loaded, all that was cached is dropped, and the
    requests go on under the new weights. Their earlier tokens are computed anew, so that no token is sampled from a
    mixture of two policies.

    Args:
        model: Folder of the model in Hugging Face format. No tokenizer is needed.
        max_slots: Most sequences that run at once; more wait, smallest priority first.
        max_length: Most tokens of a sequence, prompt and completion.
        dtype: ``fp32``, ``bf16`` or ``fp16``: of weights and cache.
        device: ``cpu`` or ``cuda``, to be sure; ``None`` takes what the installed vLLM is built for. Which GPU is
            what ``CUDA_VISIBLE_DEVICES`` says.
        strategy_config: Further arguments of vLLM's engine (``tensor_parallel_size``, ``gpu_memory_utilization``, …).
        seed: Of the engine's own random numbers; requests carry their own.
        version: Policy version of the weights in the folder.
        bucket_bytes: Most shared memory that an update of weights takes, unless a single tensor is larger.
        decode: Of the policy's tokenizer, where requests end at texts.
        most_named: Most tokens that :meth:`score` names at a place; ``None`` where it is not called.

    Raises:
        VllmNotInstalledError: If vLLM is missing.
        ConfigError: If ``strategy_config`` has a key that vLLM does not know or that roll sets itself.
        ValueError: If a size is not positive, or vLLM refuses an argument.
    """

    engine_name = "vllm"

    def __init__(
        self,
        model: str | Path,
        *,
        max_slots: int = 256,
        max_length: int = 4096,
        dtype: str = "fp32",
        device: str | None = None,
        strategy_config: Mapping[str, Any] | None = None,
        seed: int = 0,
        version: int = 0,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        decode: Decode | None = None,
        most_named: int | None = None,
    ) -> None:
        self.check_sizes(max_slots=max_slots, max_length=max_length, bucket_bytes=bucket_bytes)
        try:
            from roll.strategies.generation.vllm import adapter
        except ImportError as error:
            raise VllmNotInstalledError(error) from error
        limits = EngineLimits(adapter.model_folder(model), max_slots, max_length, dtype, seed, most_named)
        options = check_options(strategy_config, max_length=limits.context, path="strategy_config")
        super().__init__(adapter.FIRST_LABEL, version, VLLM.starts_with_random_weights(options))
        self.max_length = max_length
        self._adapter = adapter
        self._counters = EngineCounters()
        # vLLM leaves the sockets of its processes where they are. Their names, of 36 letters, have room for 107 in all.
        where = None if len(gettempdir()) < 50 else "/tmp"
        self._sockets = TemporaryDirectory(prefix="roll-vllm-", dir=where, ignore_cleanup_errors=True)
        self._engine: Any = adapter.start_engine(limits, options, self._counters, device, self._sockets.name)
        self.vocabulary: int = self._engine.model_config.get_vocab_size()
        self._most_named = most_named
        self._bucket_bytes = bucket_bytes
        self._stop_strings = StopStrings(decode)
        self._active: set[str] = set()
        self._paused = False

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``. Cancelling the caller ends the request.

        Raises:
            ValueError: If the prompt is empty, has ids outside the vocabulary or leaves no room for a token, if the
                sampling parameters are meaningless, or if a request with this id is running.
            GenerationError: If the engine failed.
            RuntimeError: If the engine is closed or its last weight update failed half-way.
        """
        self._check(request)
        with self._running(request.request_id):
            return await self._run(request)

    async def score(self, request: ScoringRequest) -> TokenScores:
        """Return log-probs of given tokens. They are computed anew: the cache has no log-probs.

        Raises:
            ValueError: If the sequence is empty, too long or has ids outside the vocabulary, if it is scored from its
                first token on, if more tokens are to be named than the engine was made for, or if a request with this
                id is running.
            GenerationError: If the engine failed.
            RuntimeError: If the engine is closed or has no valid weights.
        """
        self._check_usable()
        check_scoring(
            request,
            is_running=request.request_id in self._active,
            max_length=self.max_length,
            vocabulary=self.vocabulary,
            most_named=self._most_named,
        )
        prompt, sampling = self._adapter.engine_prompt(request.token_ids), self._adapter.scoring_sampling(request)
        with self._running(request.request_id):
            async for output in self._engine.generate(prompt, sampling, request.request_id):
                last = output
        scores: TokenScores = self._adapter.scores_of(last, request)
        return scores

    @contextmanager
    def _running(self, request_id: str) -> Iterator[None]:
        """Count a request while it runs, and name what makes it fail."""
        self._active.add(request_id)
        self._counters.begin()
        try:
            yield
        except self._adapter.ENGINE_ERRORS as error:
            raise GenerationError(
                f"vllm failed while request {request_id!r} was running: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._active.discard(request_id)
            self._counters.end()

    async def abort(self, request_id: str) -> None:
        """End a request; its ``generate`` returns what it has. Unknown or finished ids are ignored."""
        if request_id in self._active and not self._closed:
            await self._engine.abort(request_id)

    async def release(self, session: str) -> None:
        """Nothing to do: the cache knows no sessions and forgets what was not used for longest."""

    async def pause(self) -> None:
        """Stop stepping; running requests freeze, new ones queue until :meth:`resume`."""
        self._check_open()
        async with self._changing:
            await self._pause()
            self._paused = True

    async def resume(self) -> None:
        """Continue stepping."""
        self._check_open()
        async with self._changing:
            self._paused = False
            await self._engine.resume_generation()

    async def sleep(self) -> None:
        """Stop stepping and give the memory of a GPU back; on a CPU nothing is freed.

        The weights wait in CPU memory, the cache is dropped, and running requests go on after :meth:`wake`.

        Raises:
            RuntimeError: On a GPU, if the engine was started without ``strategy_config.enable_sleep_mode``.
        """
        self._check_open()
        config = self._engine.vllm_config
        if config.device_config.device_type != "cpu" and not config.model_config.enable_sleep_mode:
            raise RuntimeError("vllm: to sleep, the engine must be started with strategy_config.enable_sleep_mode")
        async with self._changing:
            self._paused = True
            await self._engine.sleep(1, "keep")

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory back and continue stepping.

        Args:
            tags: ``weights`` or ``kv_cache``: only that part; stepping continues when both are there. New weights can
                be loaded in between, before the cache takes its memory. ``None``: all.
        """
        self._check_open()
        async with self._changing:
            awake = await self._engine.wake_up(None if tags is None else list(tags))
            self._paused = not awake

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load new weights and drop every cached prefix; running requests go on under the new weights.

        Tensors are read on the event loop's thread, one bucket at a time, and reach the engine's processes through
        shared memory of this machine.

        Raises:
            WeightLoadError: If a name is unknown or missing, or a shape differs. Requests under way fail with
                :class:`GenerationError`, and further ones are refused until an update succeeds.
        """

        async def load() -> int:
            await self._ask("roll_begin_update")
            for bucket in buckets_of(update.named_tensors, self._bucket_bytes):
                await self._ask("roll_load_bucket", bucket.path, bucket.rows)
            await self._ask("roll_finish_update")
            return update.version

        await self._change_weights(load)

    async def call_workers(self, function: Callable[[int], T]) -> list[T]:
        """Call ``function`` with its rank in each of the engine's processes; return the results in their order.

        Args:
            function: Can be pickled, and is found under the same name in the other processes.
        """
        self._check_open()
        answers = await self._engine.collective_rpc("roll_call", args=(pickle.dumps(function),))
        return [pickle.loads(answer) for answer in answers]

    async def fingerprints(self) -> Fingerprints:
        """Return fingerprints of the weights that it computes with, under Hugging Face names."""
        self._check_open()
        answers = await self._engine.collective_rpc("roll_fingerprints")
        return join([pickle.loads(answer) for answer in answers])

    async def connect_workers(self, make_receiver: Callable[[int], ReceivesWeights]) -> None:
        """Give each of the engine's processes an end of its own of a weight sync, for :meth:`receive_weights`.

        Args:
            make_receiver: Makes the end of the process with the given rank; can be pickled. A
                ``roll.distributed.weight_sync.WeightReceiver`` is one.

        Raises:
            WeightLoadError: If one cannot be made.
        """
        self._check_open()
        await self._ask("roll_connect", pickle.dumps(make_receiver))

    async def disconnect_workers(self) -> None:
        """Close the ends that :meth:`connect_workers` made."""
        self._check_open()
        await self._ask("roll_disconnect")

    async def receive_weights(self) -> int:
        """Load what the trainer sends to the engine's own processes; return the version.

        Running requests are frozen from now until the weights have arrived, so call it when the trainer sends.

        Raises:
            WeightLoadError: As :meth:`update_weights`.
        """

        async def load() -> int:
            answers = await self._engine.collective_rpc("roll_receive")
            problems = [problem for problem, _ in answers if problem is not None]
            if problems:
                raise WeightLoadError(f"vllm could not load new weights: {problems[0]}")
            return int(answers[0][1])

        await self._change_weights(load)
        return self.policy_version

    async def close(self) -> None:
        """Abort all requests and end the engine's processes. Closing twice is harmless."""
        if self._closed:
            return
        if self._active and asyncio.get_running_loop() is self._loop:
            await self._engine.abort(list(self._active))
            # Their callers take the results before the engine is gone.
            for _ in range(10):
                await asyncio.sleep(0)
        self._closed = True
        engine, self._engine = self._engine, None
        if engine.output_handler is not None:
            # It would take the end of the processes for a crash and say so.
            engine.output_handler.cancel()
        # It waits for the processes to end.
        await asyncio.to_thread(engine.shutdown, _SHUTDOWN_SECONDS)
        self._sockets.cleanup()

    def metrics(self) -> dict[str, float]:
        """Totals since the start, rates, and the state after the last step (``running``, ``queue``)."""
        return self._counters.as_metrics()

    async def _run(self, request: GenerationRequest) -> Completion:
        end = _End(self._stop_strings, request.sampling)
        latest, cached = None, None
        stream = self._engine.generate(
            self._adapter.engine_prompt(request.prompt_ids),
            self._adapter.engine_sampling(self._cut_to_length(request)),
            request.request_id,
            priority=request.priority,
        )
        async for output in stream:
            cached = output.num_cached_tokens
            for latest in output.outputs:
                if end.is_reached(latest.token_ids):
                    await self._engine.abort(request.request_id)
        if self._unusable is not None:
            raise GenerationError(f"vllm: request {request.request_id!r} was ended: {self._unusable}")
        if latest is None:
            raise GenerationError(f"vllm returned no result for request {request.request_id!r}")
        completion: Completion = self._adapter.completion_of(
            latest, cached, self._versions, self.policy_version, end.count
        )
        self._counters.completed(len(request.prompt_ids), completion.cached_tokens, completion.finish_reason == "abort")
        return completion

    def _cut_to_length(self, request: GenerationRequest) -> GenerationRequest:
        room = self.max_length - len(request.prompt_ids)
        if request.sampling.max_new_tokens <= room:
            return request
        return replace(request, sampling=replace(request.sampling, max_new_tokens=room))

    def _check(self, request: GenerationRequest) -> None:
        self._check_usable()
        check_request(
            request,
            is_running=request.request_id in self._active,
            max_length=self.max_length,
            vocabulary=self.vocabulary,
            stop_strings=self._stop_strings,
            refusals=refusals(request.sampling),
        )

    async def _pause(self) -> None:
        await self._engine.pause_generation(mode="keep", clear_cache=False)

    @asynccontextmanager
    async def _frozen(self) -> AsyncIterator[None]:
        """Keep the engine from stepping; running requests freeze."""
        async with self._changing:
            if not self._paused:
                await self._pause()
            try:
                yield
            finally:
                if not self._paused:
                    await self._engine.resume_generation()

    async def _change_weights(self, load: Callable[[], Any]) -> None:
        """Run ``load``, which returns the new version, while nothing steps; then forget what was cached."""
        self._check_open()
        started = time.perf_counter()
        async with self._frozen():
            try:
                version = await load()
                # Running requests give their cached tokens up and compute them anew: the cache only forgets blocks
                # that nobody holds.
                await self._engine.reset_prefix_cache(reset_running_requests=True)
                label = str(len(self._versions))
                self._versions[label] = version
                await self._engine.update_weight_version(label)
            except BaseException as error:
                self._unusable = f"a weight update failed half-way: {error}"
                await self._engine.abort(list(self._active))
                raise
            self._label = label
            self._unusable = None
        self._counters.updated(time.perf_counter() - started)

    async def _ask(self, method: str, *arguments: Any) -> None:
        """Call a method of the worker extension in all of the engine's processes.

        Raises:
            WeightLoadError: With what the first that failed says.
        """
        for problem in await self._engine.collective_rpc(method, args=arguments):
            if problem is not None:
                raise WeightLoadError(f"vllm could not load new weights: {problem}")
