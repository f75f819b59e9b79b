"""What asks one by one and is computed in batches: requests that arrive while a batch runs make the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from roll.common.threads import run_in_thread

Asked = TypeVar("Asked")
Found = TypeVar("Found")


@dataclass(slots=True)
class _Waiting(Generic[Asked, Found]):
    asked: Asked
    found: asyncio.Future[Found]


class Batches(Generic[Asked, Found]):
    """Computes batches in a thread, one at a time.

    Args:
        compute: From a batch to a result for each, in order.
        size: Most of one batch.

    Raises:
        ValueError: ``size`` is below 1.
    """

    def __init__(self, compute: Callable[[list[Asked]], Sequence[Found]], size: int) -> None:
        if size < 1:
            raise ValueError(f"infer_batch_size={size}: must be at least 1")
        self._compute = compute
        self._size = size
        self._waiting: list[_Waiting[Asked, Found]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, asked: Asked) -> Found:
        """Wait for the batch that holds ``asked``; return its result.

        Raises:
            ValueError: The batch had another number of results.
        """
        loop = asyncio.get_running_loop()
        if self._worker is not None and self._worker.get_loop() is not loop:
            self._waiting, self._worker = [], None
        entry = _Waiting[Asked, Found](asked, loop.create_future())
        self._waiting.append(entry)
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        return await entry.found

    async def _work(self) -> None:
        """Compute batches until nobody waits."""
        await asyncio.sleep(0)  # whoever else is ready to ask joins the first batch
        while self._waiting:
            batch = [entry for entry in self._waiting[: self._size] if not entry.found.done()]
            del self._waiting[: self._size]
            if not batch:
                continue
            asked = [entry.asked for entry in batch]
            try:
                found = list(await run_in_thread(lambda asked=asked: self._compute(asked)))  # type: ignore[misc]
                if len(found) != len(asked):
                    raise ValueError(f"the reward model returned {len(found)} scores for {len(asked)} texts")
            except Exception as error:  # everyone in the batch learns of it
                for entry in batch:
                    if not entry.found.done():
                        entry.found.set_exception(error)
                continue
            for entry, each in zip(batch, found, strict=True):
                if not entry.found.done():
                    entry.found.set_result(each)
