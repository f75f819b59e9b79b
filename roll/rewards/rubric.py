"""The rubric: several verifiers, their weights, one grade."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from roll.rewards.base import Grade, RewardRequest, Verdict, Verifier
from roll.rewards.concurrency import Clock, ConcurrencyLimit, timed_by
from roll.rewards.functions import verdict_from
from roll.rewards.worker_main import describe


@dataclass(frozen=True, slots=True)
class Term:
    """One verifier of a rubric.

    Attributes:
        name: Its name in parts and metrics.
        weight: What its score is multiplied with; 0 reports it without rewarding it.
        verifier: What grades.
    """

    name: str
    weight: float
    verifier: Verifier


class Rubric:
    """Grades responses with several verifiers at once.

    The verifiers of a response run concurrently, each under the time-out. One that raises, runs out of time or has no
    verdict leaves its score unknown, and with it the grade, unless its weight is 0; the others are not affected, and
    nothing is raised.

    Args:
        terms: Verifiers with names and weights, as :class:`Term` or tuples in its order. The first decides what counts
            as correct.
        timeout: Seconds that one verdict may take.
        parallel: Responses graded at the same time; 0 is no limit.
        success_threshold: Raw score of the first verifier from which a response is correct.
        shared_limit: A limit that several rubrics share.

    Raises:
        ValueError: No terms, a name twice, or a number out of range.
    """

    def __init__(
        self,
        terms: Sequence[Term | tuple[str, float, Verifier]],
        *,
        timeout: float = 30.0,
        parallel: int = 4,
        success_threshold: float = 1.0,
        shared_limit: ConcurrencyLimit | None = None,
    ) -> None:
        self.terms = tuple(term if isinstance(term, Term) else Term(*term) for term in terms)
        names = [term.name for term in self.terms]
        if not names:
            raise ValueError("a rubric needs at least one verifier")
        if len(set(names)) < len(names):
            raise ValueError(f"a rubric needs a name of its own for each verifier, got {', '.join(names)}")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout}: must be above 0 seconds")
        self.timeout = timeout
        self.success_threshold = success_threshold
        self._limit = ConcurrencyLimit(parallel)
        self._shared_limit = shared_limit or ConcurrencyLimit(0)

    async def grade(self, request: RewardRequest) -> Grade:
        """Grade one response; waits for a free slot first, which does not count towards time-outs."""
        async with self._limit.slot(), self._shared_limit.slot():
            verdicts = await asyncio.gather(*(self._verdict(term, request) for term in self.terms))
        return self._combine(verdicts)

    async def close(self) -> None:
        """Close the verifiers that hold something (processes, connections)."""
        for term in self.terms:
            close = getattr(term.verifier, "close", None)
            if close is not None:
                await close()

    async def _verdict(self, term: Term, request: RewardRequest) -> Verdict:
        over = asyncio.get_running_loop().create_future()
        clock = Clock(self.timeout, lambda: None if over.done() else over.set_result(None))
        with timed_by(clock):
            task = asyncio.ensure_future(self._call(term, request))
        try:
            # asyncio.wait_for would wait for a verifier that ignores its cancellation.
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            clock.stop()
        if task.done():
            return (
                Verdict(None, error=f"{term.name}: the verifier cancelled itself")
                if task.cancelled()
                else task.result()
            )
        task.cancel()
        return Verdict(None, error=f"{term.name}: no verdict after {self.timeout:g} s")

    async def _call(self, term: Term, request: RewardRequest) -> Verdict:
        try:
            verdict = verdict_from(await term.verifier(request), term.name)
        except Exception as error:  # graders are user code: their failure is a result here, with its place
            return Verdict(None, error=f"{term.name}: {describe(error)}")
        if verdict.error is not None and not verdict.error.startswith(term.name):
            return Verdict(verdict.score, verdict.metrics, f"{term.name}: {verdict.error}")
        return verdict

    def _combine(self, verdicts: Sequence[Verdict]) -> Grade:
        parts: dict[str, float] = {}
        raw: dict[str, float] = {}
        metrics: dict[str, float] = {}
        known = True
        for term, verdict in zip(self.terms, verdicts, strict=True):
            metrics.update({f"{term.name}/{name}": float(value) for name, value in verdict.metrics.items()})
            metrics[f"{term.name}/error"] = float(verdict.score is None)
            if verdict.score is not None:
                raw[term.name] = verdict.score
                parts[term.name] = term.weight * verdict.score
            elif term.weight != 0:
                known = False
        first = verdicts[0].score
        return Grade(
            score=sum(parts.values()) if known else None,
            parts=parts,
            raw=raw,
            metrics=metrics,
            correct=first is not None and first >= self.success_threshold,
            error=next((verdict.error for verdict in verdicts if verdict.error is not None), None),
        )
