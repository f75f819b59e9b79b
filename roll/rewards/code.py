"""The verifier ``code``: runs the program of a response against unit tests in the sandbox."""

from __future__ import annotations

import importlib.util
import re
from typing import Final

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.code_cases import (
    CaseError,
    CheckCase,
    InputCase,
    case_passed,
    given_code,
    harness_prelude,
    read_cases,
)
from roll.rewards.registry import register_verifier, row_name
from roll.sandbox import Job, Limits, Reason, SandboxError, run_job

COMMON_IMPORTS: Final = """\
import bisect, collections, copy, functools, heapq, itertools, json, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, groupby, permutations, product
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, pi, sqrt
from typing import Any, Callable, Deque, Dict, FrozenSet, Generator, Iterable, Iterator, List, Optional, Sequence
from typing import Set, Tuple, Union
"""
"""What solutions find imported, as on the sites that most tests come from."""

_BLOCK: Final = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_ANSWER: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_PYTHON: Final = ("python", "python3", "py")


def extract_program(response: str) -> str | None:
    """Return the program of a response, ``None`` without one.

    That is the last fenced block marked as Python, else the last without a mark; inside the last ``<answer>`` if there
    is one, where a program needs no fence. What a model thinks before ``</think>`` does not count.
    """
    text = response.rpartition("</think>")[2]
    answers = _ANSWER.findall(text)
    if answers:
        text = answers[-1]
    blocks = _BLOCK.findall(text)
    for marks in (_PYTHON, ("",)):
        programs = [program for mark, program in blocks if mark.lower() in marks]
        if programs:
            return str(programs[-1])
    if answers and not blocks and text.strip():
        return str(text.strip("\n"))
    return None


@register_verifier("code")
class CodeVerifier:
    """Scores a program by the tests it passes.

    Args:
        partial: The share of passed tests; else 1 if all are passed and 0 if not.
        timeout: Seconds of wall time for a test.
        total_timeout: Seconds for all tests of a response; those not done by then are failed. Keep it well below the
            domain's ``verifier_timeout``, which would leave the response without a score.
        memory_mb: Address space of a test, in MiB.
        max_tests: The first so many tests are run; 0 is all.
        common_imports: Whether solutions find ``math``, ``List``, ``deque`` and the like imported.
        site_packages: Whether they can import installed packages, such as numpy.
        require_network_isolation: Refuse to grade where the network cannot be taken away from programs.
        workers: Responses tested at a time; 0 is one per processor.
    """

    def __init__(
        self,
        *,
        partial: bool = False,
        timeout: float = 6.0,
        total_timeout: float = 12.0,
        memory_mb: int = 512,
        max_tests: int = 0,
        common_imports: bool = True,
        site_packages: bool = False,
        require_network_isolation: bool = True,
        workers: int = 0,
    ) -> None:
        if total_timeout < timeout:
            raise ValueError(f"total_timeout ({total_timeout}) is shorter than timeout ({timeout}), that of one test")
        if max_tests < 0 or workers < 0:
            raise ValueError("max_tests and workers must be 0 or more")
        self._limits = Limits(seconds=timeout, memory_mb=memory_mb)
        self._partial = partial
        self._total_timeout = total_timeout
        self._max_tests = max_tests
        self._prelude = COMMON_IMPORTS if common_imports else ""
        self._site_packages = site_packages
        self._isolation = require_network_isolation
        self._workers = workers or None

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Grade the last program of the response."""
        try:
            cases = read_cases(request)[: self._max_tests or None]
        except CaseError as error:
            return Verdict(None, error=f"{row_name(request)}: {error}")
        text_only = all(isinstance(case, CheckCase) for case in cases) and request.row.get("case_type") == "text"
        solution = "" if text_only else extract_program(request.response)
        if solution is None:
            return Verdict(0.0, {"pass_rate": 0.0, "no_program": 1.0})
        uses_pytest = any(isinstance(case, CheckCase) and case.kind == "pytest" for case in cases)
        if uses_pytest and importlib.util.find_spec("pytest") is None:
            return Verdict(None, error=f"{row_name(request)}: its tests import pytest, which is not installed")
        harness = not all(isinstance(case, InputCase) for case in cases)
        job = Job(
            runs=tuple(case.run(solution) for case in cases),
            files={"solution.py": solution} if harness else {},
            prelude=self._prelude + given_code(request.row) + (harness_prelude() if harness else ""),
            site_packages=self._site_packages or uses_pytest,
            stop_after_failures=0 if self._partial else 1,
            total_seconds=self._total_timeout,
            require_network_isolation=self._isolation,
        )
        try:
            outcomes = await run_job(job, self._limits, self._workers)
        except SandboxError as error:
            return Verdict(None, error=f"the sandbox failed: {error}")
        passed = sum(case_passed(case, outcome) for case, outcome in zip(cases, outcomes, strict=False))
        share = passed / len(cases)
        timeouts = sum(outcome.reason is Reason.TIMEOUT for outcome in outcomes)
        metrics = {"pass_rate": share, "no_program": 0.0, "tests": float(len(cases)), "timeouts": float(timeouts)}
        return Verdict(share if self._partial else float(passed == len(cases)), metrics)
