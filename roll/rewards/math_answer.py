r"""Whether the final answer of a response equals the right one: exactly for numbers, by math-verify for the rest."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Sequence
from typing import Final

from roll.rewards.answers import PLACES, after_thinking, check_places, marked_answer, tidy
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.exact_numbers import DIGITS, equal_numbers, exact_number, last_number
from roll.rewards.math_compare import compare
from roll.rewards.registry import register_verifier, row_name
from roll.rewards.worker_processes import WorkerCallError, WorkerDiedError, WorkerProcesses

_MOST_MEMORY: Final = 4 << 30
"""Bytes of address space of a process that compares."""
_TAIL: Final = 2000
"""Characters at the end of a response in which an unmarked answer is looked for."""


@register_verifier("math", needs_row=("ground_truth",))
class MathAnswer:
    """1 if the response's final answer equals the ground truth, 0 if not, or if there is no answer.

    Two plain numbers are compared at once. Everything else is read and compared by math-verify in a child process,
    which dies when it hangs and is replaced, so that one expression costs at most its own time.

    Args:
        answer_in: Where the answer is looked for, in order: ``tag`` (``<answer>``), ``boxed``, ``hash`` (``####``),
            ``last`` (the last expression). Text up to ``</think>`` is never looked at.
        timeout: Seconds for one comparison, apart from waiting for a process.
        processes: Most child processes; they start when first needed. 0 is one per processor, 2 to 8.
        digits: Decimals to which decimal numbers are compared.

    Raises:
        ImportError: math-verify is not installed.
    """

    def __init__(
        self,
        answer_in: Sequence[str] = PLACES,
        timeout: float = 5.0,
        processes: int = 0,
        digits: int = DIGITS,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout={timeout}: must be above 0 seconds")
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError("this verifier needs the package math-verify: pip install 'math-verify>=0.8'")
        self._places = check_places(answer_in)
        self._timeout = timeout
        self._digits = digits
        self._processes = WorkerProcesses(
            compare, processes, modules=["math_verify"], memory=_MOST_MEMORY, is_silent=True
        )

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Find the answer and compare it."""
        gold = gold_answer(request.ground_truth or "")
        if not gold:
            return _bad_gold(request, "it is empty")
        text = after_thinking(request.response)
        answer = marked_answer(text, self._places, cut_off=request.finish_reason == "length")
        whole = answer is not None
        if answer is None:
            answer = tidy(text)[-_TAIL:] if "last" in self._places else ""
        if not answer:
            return Verdict(0.0, {"answered": 0.0})
        if answer == gold:
            return Verdict(1.0, {"answered": 1.0})
        first, second = exact_number(gold), exact_number(answer)
        if first is not None and second is not None:
            return Verdict(float(equal_numbers(first, second, self._digits)), {"answered": 1.0})
        return await self._compare(request, gold, answer, whole)

    async def _compare(self, request: RewardRequest, gold: str, answer: str, whole: bool) -> Verdict:
        try:
            result = await self._processes.call(gold, answer, self._digits, not whole, timeout=self._timeout)
        except (WorkerDiedError, WorkerCallError) as error:
            shown = answer if len(answer) <= 80 else answer[:79] + "…"
            if isinstance(error, WorkerDiedError) and error.signal == signal.SIGALRM:
                return Verdict(None, error=f"comparing {shown!r} with {gold!r} took more than {self._timeout:g} s")
            return Verdict(None, error=f"comparing {shown!r} with {gold!r}: {error}")
        if "bad_gold" in result:
            return _bad_gold(request, result["bad_gold"])
        return Verdict(float(result["equal"]), {"answered": 1.0})

    async def close(self) -> None:
        """End the child processes."""
        await self._processes.close()


@register_verifier("acc", needs_row=("ground_truth",))
class Accuracy(MathAnswer):
    """``math`` for answers that are marked: in ``<answer>`` or a box; without a mark there is no answer.

    Args:
        answer_in: See :class:`MathAnswer`.
        timeout: See :class:`MathAnswer`.
        processes: See :class:`MathAnswer`.
        digits: See :class:`MathAnswer`.
    """

    def __init__(
        self,
        answer_in: Sequence[str] = ("tag", "boxed"),
        timeout: float = 5.0,
        processes: int = 0,
        digits: int = DIGITS,
    ) -> None:
        super().__init__(answer_in, timeout, processes, digits)


@register_verifier("base_acc", needs_row=("ground_truth",))
class LastNumber:
    """1 if the last number of the response equals the ground truth, which must be a number; for base models.

    Args:
        digits: Decimals to which decimal numbers are compared.
    """

    def __init__(self, digits: int = DIGITS) -> None:
        self._digits = digits

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Compare the last number."""
        gold = exact_number(gold_answer(request.ground_truth or ""))
        if gold is None:
            return _bad_gold(request, "base_acc compares plain numbers only")
        answer = last_number(after_thinking(request.response))
        if answer is None:
            return Verdict(0.0, {"answered": 0.0})
        return Verdict(float(equal_numbers(gold, answer, self._digits)), {"answered": 1.0})


def gold_answer(ground_truth: str) -> str:
    """Return the answer in a ground truth, which may be a whole solution with a mark (``#### 42``, a box)."""
    marked = marked_answer(ground_truth)
    return tidy(ground_truth) if marked is None else marked


def _bad_gold(request: RewardRequest, reason: str) -> Verdict:
    return Verdict(
        None, error=f"the ground truth {request.ground_truth!r} of {row_name(request)} cannot be used: {reason}"
    )
