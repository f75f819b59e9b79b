"""What the engine reports of itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class EngineCounters:
    """Counts of one strategy's engine, of all its data-parallel parts together.

    Attributes:
        slots: Most sequences that run at once.
        running: Sequences in the batch at the last step, by part of the engine.
        waiting: Sequences in the queue at the last step, likewise.
        cache_usage: Share of the cache in use, likewise.
        generated_tokens: Sampled tokens since the start.
        prompt_tokens: Tokens of prompts since the start, computed or found in the cache.
        cached_tokens: Those found in the cache.
        preemptions: How often a running sequence had to give way.
        requests: Finished completions.
        aborted: Those that ended by abort.
        weight_updates: Updates that succeeded.
        weight_update_seconds: Time they took.
        busy_seconds: Time with at least one request.
        active: Requests under way now.
    """

    slots: int = 0
    running: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    cache_usage: dict[int, float] = field(default_factory=dict)
    generated_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    requests: int = 0
    aborted: int = 0
    weight_updates: int = 0
    weight_update_seconds: float = 0.0
    busy_seconds: float = 0.0
    active: int = 0
    _busy_since: float = 0.0

    def record(self, part: int, scheduler: Any, iteration: Any) -> None:
        """Take what vLLM says after a step of one part of the engine."""
        if scheduler is not None:
            self.running[part] = scheduler.num_running_reqs
            self.waiting[part] = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.cache_usage[part] = scheduler.kv_cache_usage
        if iteration is not None:
            self.generated_tokens += iteration.num_generation_tokens
            self.preemptions += iteration.num_preempted_reqs

    def begin(self) -> None:
        """Count a request that begins."""
        if self.active == 0:
            self._busy_since = time.perf_counter()
        self.active += 1

    def end(self) -> None:
        """Count a request that is over, however it ended."""
        self.active -= 1
        if self.active == 0:
            self.busy_seconds += time.perf_counter() - self._busy_since

    def completed(self, prompt_tokens: int, cached_tokens: int, aborted: bool) -> None:
        """Count a completion."""
        self.requests += 1
        self.aborted += aborted
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def updated(self, seconds: float) -> None:
        """Count a weight update."""
        self.weight_updates += 1
        self.weight_update_seconds += seconds

    def as_metrics(self) -> dict[str, float]:
        """Return totals since the start, rates over the time with requests, and the state after the last step."""
        busy = self.busy_seconds + (time.perf_counter() - self._busy_since if self.active else 0.0)
        usage = self.cache_usage.values()
        return {
            "generated_tokens": float(self.generated_tokens),
            "prompt_tokens": float(self.prompt_tokens),
            "cached_tokens": float(self.cached_tokens),
            "prefix_cache_hit_rate": self.cached_tokens / max(self.prompt_tokens, 1),
            "requests": float(self.requests),
            "aborted": float(self.aborted),
            "tokens_per_second": self.generated_tokens / busy if busy > 0 else 0.0,
            "busy_seconds": busy,
            "active": float(self.active),
            "running": float(sum(self.running.values())),
            "queue": float(sum(self.waiting.values())),
            "cache_usage": sum(usage) / max(len(usage), 1),
            "preemptions": float(self.preemptions),
            "weight_updates": float(self.weight_updates),
            "weight_update_seconds": self.weight_update_seconds,
        }
