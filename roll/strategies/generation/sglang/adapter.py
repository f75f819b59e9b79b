"""The file that imports SGLang. Everything runs on the caller's event loop.

``Engine``'s own methods for control run a loop of theirs and cannot be called while one runs, so the coroutines of its
``tokenizer_manager`` are called, as ``Engine`` does.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psutil
import torch
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import (
    BeginWeightUpdateReqInput,
    ContinueGenerationReqInput,
    EndWeightUpdateReqInput,
    PauseGenerationReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UpdateWeightsFromTensorReqInput,
)

from roll.strategies.generation.sglang.errors import EngineDiedError, WeightLoadError
from roll.strategies.generation.sglang.processes import run_scheduler

T = TypeVar("T")

_SHUTDOWN_SECONDS = 20.0
"""How long the engine's processes may take to end after they were killed."""


class _Engine(Engine):  # type: ignore[misc, unused-ignore]
    """SGLang's engine, which leaves what ends a completion to requests, and other people's processes alone."""

    run_scheduler_process_func: Callable[..., None] = staticmethod(run_scheduler)

    def __init__(self, **arguments: Any) -> None:
        # SGLang calls ``shutdown`` when the interpreter ends, and all child processes of this one would be killed.
        self._before = set(multiprocessing.active_children())
        super().__init__(**arguments)

    def processes(self) -> list[Any]:
        """Return the engine's processes that are alive."""
        return [process for process in multiprocessing.active_children() if process not in self._before]

    def shutdown(self) -> None:
        """End the engine's processes, and no others."""
        watchdog = getattr(self.tokenizer_manager, "_subprocess_watchdog", None)
        if watchdog is not None:
            watchdog.stop()
        ending: list[psutil.Process] = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                tree = psutil.Process(process.pid)
                ending += [*tree.children(recursive=True), tree]
        for one in ending:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        until = time.monotonic() + _SHUTDOWN_SECONDS
        for one in ending:
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                one.wait(max(0.0, until - time.monotonic()))


class SglangEngine:
    """The calls of SGLang that the strategy needs, with answers that were checked.

    Args:
        arguments: Of ``Engine``.

    Raises:
        ValueError: If an environment variable would falsify log-probs.
        EngineDiedError: If a process of the engine failed to start; it has said why.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        if os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true", "yes", "on"):
            raise ValueError(
                "sglang: SGLANG_RETURN_ORIGINAL_LOGPROB makes the engine report log-probs of another distribution "
                "than it draws from; unset it"
            )
        self._dead = False
        self._calls: set[asyncio.Task[Any]] = set()
        # A process of SGLang that fails sends its parent this signal, at which SGLang would kill the parent.
        self._before = signal.getsignal(signal.SIGQUIT)
        # It calls that an error.
        logging.getLogger(Engine.__module__).addFilter(lambda record: "SIGQUIT handler" not in str(record.msg))
        try:
            with _own_logging():
                self._engine = _Engine(custom_sigquit_handler=_child_failed, **arguments)
        except (EOFError, RuntimeError) as error:
            raise EngineDiedError(f"sglang did not start: {error}") from error
        self._manager = self._engine.tokenizer_manager
        self._manager.auto_create_handle_loop = self._serve

    @property
    def vocabulary(self) -> int:
        """Token ids are below this; one above ends the engine's process."""
        return int(self._manager.model_config.vocab_size)

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: Mapping[str, Any],
        rid: str,
        priority: int,
        watch: Callable[[list[int]], None] | None = None,
    ) -> Mapping[str, Any]:
        """Return SGLang's answer: ``output_ids`` and ``meta_info``.

        Args:
            prompt_ids: The prompt.
            sampling: SGLang's own sampling parameters.
            rid: Of the request.
            priority: Smaller first.
            watch: Called with the completion so far, again and again.
        """

        async def ask() -> Mapping[str, Any]:
            answer = await self._engine.async_generate(
                input_ids=prompt_ids,
                sampling_params=dict(sampling),
                return_logprob=True,
                rid=rid,
                priority=priority,
                stream=watch is not None,
            )
            if watch is not None:
                async for part in answer:
                    last = part
                    watch(part["output_ids"])
                answer = last
            found: Mapping[str, Any] = answer
            return found

        return await self._call(ask())

    async def score(self, token_ids: list[int], start: int, most_named: int, rid: str) -> Mapping[str, Any]:
        """Return what SGLang says of given tokens: ``input_token_logprobs`` and ``input_top_logprobs``.

        Both are of the token before ``start`` on, of which nothing is said, at temperature 1. No token is sampled.

        Args:
            token_ids: The whole sequence.
            start: The first token that is scored, at least 1.
            most_named: How many of the likeliest tokens are named at each place.
            rid: Of the request.
        """
        answer = await self._call(
            self._engine.async_generate(
                input_ids=token_ids,
                sampling_params={"max_new_tokens": 0, "temperature": 1.0},
                return_logprob=True,
                logprob_start_len=start - 1,
                top_logprobs_num=most_named,
                rid=rid,
                priority=0,
            )
        )
        found: Mapping[str, Any] = answer["meta_info"]
        return found

    def abort(self, rid: str) -> None:
        """End every request whose id begins with ``rid``."""
        self._manager.abort_request(rid=rid)

    async def freeze(self) -> None:
        """Stop stepping; running requests give their cache up and queue."""
        # Not "in_place": it keeps the cache of running requests, and then no cache can be dropped.
        await self._call(self._manager.pause_generation(PauseGenerationReqInput(mode="retract")))

    async def thaw(self) -> None:
        """Continue stepping."""
        await self._call(self._manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False)))

    async def begin_update(self) -> None:
        """Open the bracket that every update must be in.

        Raises:
            WeightLoadError: If SGLang says no.
        """
        answer = await self._call(self._manager.begin_weight_update(BeginWeightUpdateReqInput(), None))
        _check("begin_weight_update", answer)

    async def load_tensors(self, named_tensors: Sequence[tuple[str, torch.Tensor]], label: str) -> None:
        """Load some of an update's tensors, of any shape, inside the bracket.

        Raises:
            WeightLoadError: If SGLang says no: outside of the bracket it does so, and does not raise.
        """
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=self._engine._serialize_tensors_per_rank(list(named_tensors), None),
            flush_cache=False,
            weight_version=label,
        )
        answer = await self._call(self._manager.update_weights_from_tensor(request, None))
        _check("update_weights_from_tensor", answer)

    async def end_update(self) -> None:
        """Close the bracket.

        Raises:
            WeightLoadError: If SGLang says no.
        """
        answer = await self._call(self._manager.end_weight_update(EndWeightUpdateReqInput(), None))
        _check("end_weight_update", answer)

    async def drop_cache(self) -> None:
        """Forget every cached prefix.

        Raises:
            WeightLoadError: If SGLang kept it, which it does silently while requests hold a part of it.
        """
        answer = await self._call(self._manager.flush_cache())
        _check("flush_cache", (answer.success, answer.message))

    async def release_memory(self) -> None:
        """Give memory of the GPU back; nothing may run."""
        request = ReleaseMemoryOccupationReqInput(tags=None)
        await self._call(self._manager.release_memory_occupation(request, None))

    async def take_memory(self, tags: list[str] | None) -> None:
        """Take the memory again."""
        request = ResumeMemoryOccupationReqInput(tags=tags)
        await self._call(self._manager.resume_memory_occupation(request, None))

    async def shutdown(self) -> None:
        """End the engine's processes."""
        for process in self._engine.processes():
            asyncio.get_running_loop().remove_reader(process.sentinel)
        await asyncio.to_thread(self._engine.shutdown)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, self._before)

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """Await an answer of the engine, which never comes from one that died.

        Raises:
            EngineDiedError: A process of the engine ended.
        """
        task = asyncio.ensure_future(call)
        if self._dead:
            task.cancel()
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not self._dead:
                raise
            raise EngineDiedError("a process of sglang ended; its own output says why") from None
        finally:
            self._calls.discard(task)

    def _serve(self) -> None:
        """Take the engine's answers on the running loop.

        In place of SGLang's method, which takes over what this process does at SIGTERM and SIGQUIT as well.
        """
        if self._manager.event_loop is not None:
            return
        loop = asyncio.get_running_loop()
        self._manager.event_loop = loop
        self._manager.asyncio_tasks.add(loop.create_task(self._manager.handle_loop()))
        for process in self._engine.processes():
            loop.add_reader(process.sentinel, self._child_ended, loop, process.sentinel)

    def _child_ended(self, loop: asyncio.AbstractEventLoop, sentinel: int) -> None:
        loop.remove_reader(sentinel)
        self._dead = True
        for task in self._calls:
            task.cancel()


def _child_failed(number: int, frame: object) -> None:
    """Do nothing: the child is about to end, which is seen. A plain function, for SGLang copies it deeply."""


@contextmanager
def _own_logging() -> Iterator[None]:
    """Keep how this process logs, which SGLang sets anew when it starts."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


def _check(call: str, answer: Sequence[Any]) -> None:
    """Raise where SGLang only returns ``(False, why, …)``."""
    success, message = answer[0], answer[1]
    if not success:
        raise WeightLoadError(f"sglang: {call} failed: {message or 'no reason given'}")
