"""What the generation scheduler reports: queue, throughput, latency, prefix-cache hits, what went wrong."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from statistics import fmean

from roll.generation import Completion
from roll.schedulers.replicas import Replica

_KEPT = 1 << 16
"""Latencies remembered between two reports; of more, the newest."""


class GenerationMeter:
    """Counts requests between two reports.

    Args:
        clock: Seconds, any origin.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._latencies: deque[float] = deque(maxlen=_KEPT)
        self._begin()

    def _begin(self) -> None:
        self.counts: Counter[str] = Counter()
        self._tokens = self._prompt_tokens = self._cached_tokens = 0
        self._latencies.clear()
        self._waited = 0.0
        self._longest_queue = self._most_running = 0
        self._since = self.clock()

    def queued(self, waiting: int) -> None:
        """Take note of the length of the line."""
        self._longest_queue = max(self._longest_queue, waiting)

    def placed(self, running: int, seconds: float) -> None:
        """Take note that a request got its place after ``seconds``."""
        self._most_running = max(self._most_running, running)
        self._waited += seconds

    def finished(self, prompt_tokens: int, completion: Completion, seconds: float) -> None:
        """Take note of a completion, ``seconds`` after it was asked for."""
        self._tokens += len(completion.token_ids)
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += completion.cached_tokens
        self._latencies.append(seconds)

    def report(self, replicas: Sequence[Replica], waiting: int) -> dict[str, float]:
        """Return the numbers since the report before, and how things stand now."""
        now = self.clock()
        seconds = max(now - self._since, 1e-9)
        ordered = sorted(self._latencies)
        count = len(ordered)
        metrics = {
            "queue": float(waiting),
            "queue_max": float(self._longest_queue),
            "running": float(sum(replica.running for replica in replicas)),
            "running_max": float(self._most_running),
            "replicas_up": float(sum(replica.up for replica in replicas)),
            "requests": float(count),
            "tokens_per_second": self._tokens / seconds,
            "prefix_cache_hit_rate": self._cached_tokens / max(self._prompt_tokens, 1),
            "retries": float(self.counts["retries"]),
            "timeouts": float(self.counts["timeouts"]),
            "given_up": float(self.counts["given_up"]),
        }
        if count:
            metrics |= {
                "latency_mean": fmean(ordered),
                "latency_p50": ordered[count // 2],
                "latency_p95": ordered[min(int(count * 0.95), count - 1)],
                "latency_max": ordered[-1],
                "wait_mean": self._waited / count,
            }
        if len(replicas) > 1:
            # One of very many workers uses few of very many engines: the rest would be the square of a job's size.
            for replica in (each for each in replicas if each.running or each.served):
                metrics[f"replica_{replica.rank}/running"] = float(replica.running)
                metrics[f"replica_{replica.rank}/served"] = float(replica.served)
        self._begin()
        return metrics
