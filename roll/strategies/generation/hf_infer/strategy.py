"""The asyncio face of the Hugging Face engine: requests come and go between steps of one batch."""

from __future__ import annotations

import asyncio
from collections import abc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from roll.generation import Activity, Completion, GenerationRequest
from roll.strategies.base import WeightUpdate
from roll.strategies.fingerprints import Fingerprints
from roll.strategies.generation.grammars import Grammars
from roll.strategies.generation.hf_infer.engine import Counters, Engine, Sequence, StepResults
from roll.strategies.generation.hf_infer.model_runner import Layout, ModelRunner
from roll.strategies.generation.serving import check_request
from roll.strategies.generation.stop_strings import Decode, StopStrings
from roll.strategies.parking import Parking


class GenerationError(RuntimeError):
    """The engine failed while a request was running or waiting; the cause is chained."""


class HfInferStrategy:
    """Samples completions from a Hugging Face causal language model with continuous batching.

    A request gets a slot of one key-value cache; each step runs one forward pass over the new tokens of all running
    requests (prompts in chunks, one token of those that sample). A session keeps its slot between requests, so a
    multi-turn episode costs work linear in the tokens it adds.

    The engine runs while it has work, in a task on the event loop that calls it, and may serve one event loop after
    another.

    Args:
        model: A loaded causal language model. Its parameters are shared, not copied: a trainer may hold the same model.
        device: Where to run; the model is moved there if it is elsewhere. ``None`` leaves it.
        max_slots: Most sequences in the cache at once. More requests wait; idle sessions are evicted, longest idle
            first, and computed anew on their next request.
        max_length: Most tokens of a sequence, prompt and completion. Cache memory grows on demand to at most
            ``max_slots * max_length`` positions.
        max_prefill_tokens: Most prompt tokens in one step.
        activity: Makes runs bit-identical: the engine forms a batch only when no episode is executing outside it, and
            admits in the order of (priority, seed, request id) instead of arrival. ``None`` starts work at once.
        in_thread: Run the forward pass in a thread, so that the event loop stays responsive. ``None``: on accelerators
            only; on CPU the hand-over costs more than it gives, and steps are short.
        layout: See :class:`ModelRunner`; ``None`` chooses.
        pack_weights: See :class:`ModelRunner`.
        torch_compile: See :class:`ModelRunner`.
        draft_tokens: Most tokens that are guessed ahead of a sequence, and computed in one step with what it has (see
            :mod:`roll.strategies.generation.hf_infer.drafts`); 0 for none.
        decode: Of the policy's tokenizer, where requests end at texts.
        tokenizer: Returns the policy's tokenizer, where requests have grammars.

    Raises:
        ValueError: If the sizes are not positive or the model cannot be run exactly.
        CannotPackError: If its weights cannot be packed.
        CannotCompileError: If it cannot be compiled here.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device | str | None = None,
        max_slots: int = 512,
        max_length: int = 4096,
        max_prefill_tokens: int = 4096,
        activity: Activity | None = None,
        in_thread: bool | None = None,
        layout: Layout | None = None,
        pack_weights: bool = False,
        torch_compile: bool = False,
        draft_tokens: int = 0,
        decode: Decode | None = None,
        tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None,
    ) -> None:
        for name, value in (
            ("max_slots", max_slots),
            ("max_length", max_length),
            ("max_prefill_tokens", max_prefill_tokens),
        ):
            if value < 1:
                raise ValueError(f"hf_infer: {name} is {value}; it must be at least 1")
        if device is not None:
            model = model.to(device)
        runner = ModelRunner(
            model,
            max_slots=max_slots,
            max_length=max_length,
            layout=layout,
            pack_weights=pack_weights,
            torch_compile=torch_compile,
        )
        self.max_length = max_length
        self._stop_strings = StopStrings(decode)
        self._grammars = Grammars(tokenizer, runner.vocabulary)
        self._engine = Engine(
            runner,
            max_slots=max_slots,
            max_prefill_tokens=max_prefill_tokens,
            stop_strings=self._stop_strings,
            grammars=self._grammars,
            draft_tokens=draft_tokens,
        )
        self._activity = activity
        threaded = runner.device.type != "cpu" if in_thread is None else in_thread
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="hf_infer") if threaded else None
        self._weights = Parking()
        self._pending: list[Sequence] = []
        self._futures: dict[str, asyncio.Future[Completion]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._step: asyncio.Future[StepResults] | None = None
        self._paused = False
        self._closed = False
        self._unusable: str | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._engine.version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._engine.version = version

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return the completion of ``request``.

        Cancelling the caller ends the request and frees its slot.

        Raises:
            ValueError: If the prompt is empty, has ids outside the vocabulary or leaves no room for a token, if the
                sampling parameters are meaningless, if a request with this id is running, or if it has pictures and
                the model sees none.
            GenerationError: If the forward pass failed; every waiting request gets it.
            RuntimeError: If the engine is closed or its last weight update failed half-way.
        """
        self._check(request)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        sequence = Sequence.of(request, self.max_length)
        self._forget_dead_loop()
        self._futures[request.request_id] = future
        self._pending.append(sequence)
        self._ensure_running()
        try:
            return await future
        finally:
            if future.cancelled() and self._futures.get(request.request_id) is future:
                self._remove(request.request_id)
                del self._futures[request.request_id]

    async def abort(self, request_id: str) -> None:
        """End a request; its ``generate`` returns what it has. Unknown or finished ids are ignored."""
        sequence = self._remove(request_id)
        if sequence is not None:
            self._deliver(sequence)

    async def release(self, session: str) -> None:
        """Forget the prefix kept for ``session``; unknown sessions are ignored."""
        self._engine.pool.release(session)

    async def pause(self) -> None:
        """Stop stepping; returns when no forward pass runs. Requests freeze, new ones queue."""
        self._paused = True
        await self._step_done()

    async def resume(self) -> None:
        """Continue stepping."""
        self._paused = False
        self._ensure_running()

    async def sleep(self) -> None:
        """Stop stepping, drop the cache, and move the weights to main memory; on the CPU they are there already.

        Running requests freeze; their caches are computed again afterwards. A model that a trainer in this process
        holds as well must not be moved from here: it is the trainer's.
        """
        await self.pause()
        self._engine.drop_prefixes()
        self._engine.runner.cache.free()
        self._engine.runner.forget_copies()
        if self._engine.runner.device.type != "cpu":
            self._weights.park(self._engine.runner.weights())

    async def wake(self, tags: abc.Sequence[str] | None = None) -> None:
        """Take the weights back, and continue unless only they are asked for (``tags=["weights"]``)."""
        self._weights.restore()
        if tags is None or "kv_cache" in tags:
            await self.resume()

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load new weights and drop every cached prefix; running requests go on under the new weights.

        Tensors that are the model's own parameters (a trainer in the same process) are not copied.

        Raises:
            KeyError: If a name is unknown or missing.
            ValueError: If a shape differs. After either error, requests are refused until an update succeeds.
        """
        was_paused, self._paused = self._paused, True
        await self._step_done()
        self._engine.drop_prefixes()
        try:
            self._engine.runner.load_weights(update.named_tensors)
        except Exception as error:
            self._unusable = f"the weight update to version {update.version} failed half-way: {error}"
            self._fail(error)
            raise
        finally:
            self._paused = was_paused
        self._unusable = None
        self._engine.version = update.version
        self._ensure_running()

    async def fingerprints(self) -> Fingerprints:
        """Return fingerprints of the weights that it computes with, under Hugging Face names."""
        return self._engine.runner.fingerprints()

    async def close(self) -> None:
        """Abort all requests and free the cache. Closing twice is harmless."""
        self._closed = True
        await self.pause()
        for request_id in list(self._futures):
            await self.abort(request_id)
        if self._executor is not None:
            self._executor.shutdown()
        self._engine.reset()
        self._engine.runner.cache.free()

    def metrics(self) -> dict[str, float]:
        """Totals since the start: tokens, steps, seconds, and the mean number of active slots."""
        c: Counters = self._engine.counters
        return {
            "generated_tokens": float(c.generated_tokens),
            "prefill_tokens": float(c.prefill_tokens),
            "forward_tokens": float(c.forward_tokens),
            "cached_tokens": float(c.cached_tokens),
            "guessed_tokens": float(c.guessed_tokens),
            "rightly_guessed_tokens": float(c.rightly_guessed_tokens),
            "requests": float(c.requests),
            "steps": float(c.steps),
            "mean_active_slots": c.slot_steps / max(c.steps, 1),
            "forward_seconds": c.forward_seconds,
            "sampling_seconds": c.sampling_seconds,
            "evictions": float(self._engine.pool.evictions),
        }

    def _check(self, request: GenerationRequest) -> None:
        if self._closed:
            raise RuntimeError("hf_infer is closed")
        if self._unusable is not None:
            raise RuntimeError(f"hf_infer has no valid weights: {self._unusable}; send a full update")
        same = self._futures.get(request.request_id)
        check_request(
            request,
            is_running=same is not None and not same.get_loop().is_closed(),
            max_length=self.max_length,
            vocabulary=self._engine.runner.vocabulary,
            stop_strings=self._stop_strings,
            sees=True,
        )
        self._grammars.check(request)
        if request.pictures:
            self._engine.runner.pictures.check(request)

    def _ensure_running(self) -> None:
        """Start the loop task unless it runs on this event loop or there is nothing to do."""
        loop = asyncio.get_running_loop()
        alive = self._task is not None and not self._task.done() and self._task.get_loop() is loop
        if not alive and not self._paused and (self._pending or self._engine.active):
            self._task = loop.create_task(self._run(), name="hf_infer")

    def _forget_dead_loop(self) -> None:
        """Drop requests whose event loop ended; nobody awaits them."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        self._loop = loop
        for request_id, future in list(self._futures.items()):
            if future.get_loop().is_closed():
                self._remove(request_id)
                del self._futures[request_id]

    async def _run(self) -> None:
        """Step until there is nothing to do. Ends when paused; :meth:`resume` starts it again."""
        try:
            while not self._paused and (self._pending or self._engine.active):
                if self._activity is not None:
                    await self._activity.quiescent()
                    if self._paused:
                        return
                self._admit()
                if self._engine.active:
                    results = await self._run_step()
                    for sequence in self._engine.apply(results):
                        self._deliver(sequence)
                await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)

    async def _run_step(self) -> StepResults:
        if self._executor is None:
            return self._engine.step()
        step = asyncio.get_running_loop().run_in_executor(self._executor, self._engine.step)
        self._step = step
        try:
            return await step
        finally:
            self._step = None

    async def _step_done(self) -> None:
        """Wait until no forward pass runs."""
        step = self._step
        if step is not None and not step.get_loop().is_closed():
            await asyncio.wait([step])
            # One more turn, so that the loop task books the results before the caller goes on.
            while self._step is step:
                await asyncio.sleep(0)

    def _admit(self) -> None:
        """Give slots to waiting requests, smallest priority first."""
        if not self._pending:
            return
        key: Callable[[Sequence], tuple[int, int, str] | int]
        if self._activity is not None:
            key = lambda s: (s.request.priority, s.request.seed, s.request.request_id)  # noqa: E731
        else:
            key = lambda s: s.request.priority  # noqa: E731
        self._pending.sort(key=key)
        admitted = 0
        while admitted < len(self._pending) and self._engine.admit(self._pending[admitted]):
            admitted += 1
        del self._pending[:admitted]

    def _remove(self, request_id: str) -> Sequence | None:
        """Take a request out of the queue or its slot."""
        sequence = self._engine.active.get(request_id)
        if sequence is not None:
            self._engine.end(sequence, "abort")
            return sequence
        for index, waiting in enumerate(self._pending):
            if waiting.request.request_id == request_id:
                return self._pending.pop(index)
        return None

    def _deliver(self, sequence: Sequence) -> None:
        future = self._futures.pop(sequence.request.request_id, None)
        if future is not None and not future.done():
            future.set_result(sequence.completion(self._engine.version))

    def _fail(self, error: Exception) -> None:
        """Give ``error`` to every waiting request and start clean."""
        futures, self._futures = self._futures, {}
        self._pending.clear()
        self._engine.reset()
        for future in futures.values():
            if not future.done() and not future.get_loop().is_closed():
                failure = GenerationError(
                    f"hf_infer failed while this request was running: {type(error).__name__}: {error}"
                )
                failure.__cause__ = error
                future.set_exception(failure)
