"""The file that imports SGLang. Everything runs on the caller's event loop.

``Engine``'s own methods for control run a loop of theirs and cannot be called while one runs, so the coroutines of its
``tokenizer_manager`` are called, as ``Engine`` does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import (
    BeginWeightUpdateReqInput,
    ContinueGenerationReqInput,
    EndWeightUpdateReqInput,
    PauseGenerationReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromTensorReqInput,
)

from roll.strategies.sglang.errors import WeightLoadError


class SglangEngine:
    """The calls of SGLang that the strategy needs, with answers that were checked.

    Args:
        arguments: Of ``Engine``.

    Raises:
        ValueError: If an environment variable would falsify log-probs.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        if os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true", "yes", "on"):
            raise ValueError(
                "sglang: SGLANG_RETURN_ORIGINAL_LOGPROB makes the engine report log-probs of another distribution "
                "than it draws from; unset it"
            )
        self._engine = Engine(**arguments)
        self._manager = self._engine.tokenizer_manager

    async def generate(
        self, prompt_ids: list[int], sampling: Mapping[str, Any], rid: str, priority: int
    ) -> Mapping[str, Any]:
        """Return SGLang's answer: ``output_ids`` and ``meta_info``."""
        answer: Mapping[str, Any] = await self._engine.async_generate(
            input_ids=prompt_ids, sampling_params=dict(sampling), return_logprob=True, rid=rid, priority=priority
        )
        return answer

    def abort(self, rid: str) -> None:
        """End every request whose id begins with ``rid``."""
        self._manager.abort_request(rid=rid)

    async def freeze(self) -> None:
        """Stop stepping; running requests give their cache up and queue."""
        # Not "in_place": it keeps the cache of running requests, and then no cache can be dropped.
        await self._manager.pause_generation(PauseGenerationReqInput(mode="retract"))

    async def thaw(self) -> None:
        """Continue stepping."""
        await self._manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))

    async def begin_update(self) -> None:
        """Open the bracket that every update must be in.

        Raises:
            WeightLoadError: If SGLang says no.
        """
        _check("begin_weight_update", await self._manager.begin_weight_update(BeginWeightUpdateReqInput(), None))

    async def load_tensors(self, named_tensors: Sequence[tuple[str, torch.Tensor]], label: str) -> None:
        """Load some of an update's tensors, inside the bracket.

        Raises:
            WeightLoadError: If SGLang says no: outside of the bracket it does so, and does not raise.
        """
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=self._engine._serialize_tensors_per_rank(list(named_tensors), None),
            flush_cache=False,
            weight_version=label,
        )
        _check("update_weights_from_tensor", await self._manager.update_weights_from_tensor(request, None))

    async def end_update(self) -> None:
        """Close the bracket.

        Raises:
            WeightLoadError: If SGLang says no.
        """
        _check("end_weight_update", await self._manager.end_weight_update(EndWeightUpdateReqInput(), None))

    async def load_folder(self, folder: str, label: str) -> None:
        """Load a folder in Hugging Face format; needs no bracket.

        Raises:
            WeightLoadError: If SGLang says no.
        """
        request = UpdateWeightFromDiskReqInput(model_path=folder, flush_cache=False, weight_version=label)
        _check("update_weights_from_disk", await self._manager.update_weights_from_disk(request, None))

    async def drop_cache(self) -> None:
        """Forget every cached prefix.

        Raises:
            WeightLoadError: If SGLang kept it, which it does silently while requests hold a part of it.
        """
        answer = await self._manager.flush_cache()
        _check("flush_cache", (answer.success, answer.message))

    async def release_memory(self, tags: list[str] | None) -> None:
        """Give memory of the GPU back; nothing may run."""
        await self._manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=tags), None)

    async def take_memory(self, tags: list[str] | None) -> None:
        """Take the memory again."""
        await self._manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=tags), None)

    def shutdown(self) -> None:
        """End the engine's processes. SGLang ends *all* child processes of this one."""
        self._engine.shutdown()


def _check(call: str, answer: Sequence[Any]) -> None:
    """Raise where SGLang only returns ``(False, why, …)``."""
    success, message = answer[0], answer[1]
    if not success:
        raise WeightLoadError(f"sglang: {call} failed: {message or 'no reason given'}")
