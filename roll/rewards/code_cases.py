"""Tests of programs: how data sets write them, how they are run, and when they are passed."""

from __future__ import annotations

import ast
import functools
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from roll.rewards.base import RewardRequest
from roll.rewards.code_values import decode, equals_json, equals_output
from roll.sandbox import Outcome, Reason, Run

_HARNESS_CALL: Final = "_harness.main(dict(globals()))\n"
CASE_TYPES: Final = ("input", "function", "assert", "pytest", "text")


class CaseError(ValueError):
    """The tests of a row cannot be read."""


@functools.cache
def harness_prelude() -> str:
    """Return the code that defines, once for all tests of a job, what runs beside solutions in the sandbox."""
    source = Path(__file__).with_name("code_harness.py").read_text(encoding="utf-8")
    return (
        "import json, decimal, fractions, types as _types\n"
        f"_harness = _types.ModuleType('_harness')\nexec({source!r}, _harness.__dict__)\n"
    )


class Case(Protocol):
    """One test of a solution."""

    def run(self, solution: str) -> Run:
        """Return what the sandbox shall run; it finds the solution in ``solution.py`` too."""
        ...

    def passed(self, outcome: Outcome) -> bool:
        """Whether a run that ended with exit code 0 passes the test."""
        ...


def _harness(**request: Any) -> Run:
    return Run(_HARNESS_CALL, json.dumps(request))


@dataclass(frozen=True, slots=True)
class InputCase:
    """The program reads a text and prints another."""

    stdin: str
    expected: str

    def run(self, solution: str) -> Run:
        """Run the solution itself."""
        return Run(solution, self.stdin)

    def passed(self, outcome: Outcome) -> bool:
        """Compare standard output."""
        return equals_output(outcome.stdout, self.expected)


@dataclass(frozen=True, slots=True)
class CallCase:
    """A function is called and returns a value. ``or_first`` also accepts the only item of an expected list."""

    name: str
    arguments: list[Any]
    expected: Any
    or_first: bool = False

    def run(self, solution: str) -> Run:
        """Call the function."""
        return _harness(kind="call", name=self.name, arguments=self.arguments)

    def passed(self, outcome: Outcome) -> bool:
        """Compare its value."""
        value = decode(outcome.report)
        if equals_json(value, self.expected):
            return True
        single = self.or_first and isinstance(self.expected, list) and len(self.expected) == 1
        return single and equals_json(value, self.expected[0])


@dataclass(frozen=True, slots=True)
class EvaluateCase:
    """``assert expression == literal``: the expression is evaluated inside, and compared outside."""

    expression: str
    expected: Any
    setup: str = ""

    def run(self, solution: str) -> Run:
        """Evaluate the expression."""
        return _harness(kind="evaluate", expression=self.expression, setup=self.setup)

    def passed(self, outcome: Outcome) -> bool:
        """Compare as Python does."""
        return bool(decode(outcome.report) == self.expected)


@dataclass(frozen=True, slots=True)
class CheckCase:
    """Code that raises if the solution is wrong. ``kind``: ``"plain"``, ``"functions"`` or ``"pytest"``."""

    source: str
    kind: str
    word: str

    def run(self, solution: str) -> Run:
        """Run the test after the solution."""
        return _harness(kind=self.kind, source=self.source, word=self.word)

    def passed(self, outcome: Outcome) -> bool:
        """Look for the word that the harness says at the end."""
        return outcome.report == self.word.encode()


def case_passed(case: Case, outcome: Outcome) -> bool:
    """Whether ``outcome`` passes ``case``."""
    if outcome.reason is not Reason.OK:
        return False
    try:
        return case.passed(outcome)
    except (ValueError, TypeError):  # What a program reports may be anything.
        return False


def given_code(row: Mapping[str, Any]) -> str:
    """Return what a row's prompt defines and solutions need not repeat: a row of HumanEval asks to complete code."""
    return f"{row['prompt']}\n" if _is_completion(row) else ""


def _is_completion(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(column), str) for column in ("prompt", "test", "entry_point"))


def read_cases(request: RewardRequest) -> list[Case]:
    """Return the tests of a row: of ``test_cases``, of the columns of HumanEval or MBPP, or of its right answer.

    Raises:
        CaseError: There are none, or they are in no known form.
    """
    row = request.row
    tests, setup = row.get("test_cases"), ""
    if tests is None and _is_completion(row):
        return [CheckCase(f"{row['test']}\ncheck({row['entry_point']})", "plain", secrets.token_hex(16))]
    if tests is None and row.get("test_list") is not None:
        tests = row["test_list"]
        setup = "\n".join([str(row.get("test_setup_code") or ""), *(row.get("test_imports") or ())])
    if tests is None:
        tests = request.ground_truth
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except json.JSONDecodeError as error:
            raise CaseError(f"its tests are no JSON: {error}") from None
    function = str(row.get("test_case_function") or "").strip() or setup
    if isinstance(tests, Mapping) and "inputs" in tests:
        tests = list(_from_columns(tests, function))
    elif isinstance(tests, Mapping):
        tests = [tests]
    if not isinstance(tests, list | tuple) or not tests:
        raise CaseError("it has no tests: expected a list in test_cases, or {inputs, outputs}")
    kind = str(row.get("case_type") or _guess(tests[0])).strip().lower()
    if kind not in CASE_TYPES:
        raise CaseError(f"its case_type is {kind!r}; known: {', '.join(CASE_TYPES)}")
    return [_read_case(kind, test, function, request) for test in tests]


def _from_columns(tests: Mapping[str, Any], function: str) -> Iterator[dict[str, Any]]:
    """Yield one test at a time from ``{"inputs": […], "outputs": […], "fn_name": …}``."""
    inputs, outputs = tests["inputs"], tests.get("outputs")
    if not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise CaseError("its tests have not as many outputs as inputs")
    name = tests.get("fn_name") or function
    for given, expected in zip(inputs, outputs, strict=True):
        test = {"input": given, "output": expected}
        yield test | {"fn_name": name, "or_first": True} if name else test


def _guess(test: Any) -> str:
    if isinstance(test, Mapping) and "fn_name" in test:
        return "function"
    if isinstance(test, Mapping) and ("stdin" in test or "input" in test):
        return "input"
    return "assert"


def _read_case(kind: str, test: Any, function: str, request: RewardRequest) -> Case:
    if kind in ("input", "function"):
        if not isinstance(test, Mapping):
            raise CaseError(f"a test of type {kind} is a mapping with an input and an output, not {test!r:.80}")
        name = test.get("fn_name") or (function if kind == "function" else "")
        return _read_call(test, name) if name else _read_input(test)
    source = test.get("assert_code") if isinstance(test, Mapping) else test
    if not isinstance(source, str) or not source.strip():
        raise CaseError(f"a test of type {kind} is code, as text or under assert_code, not {test!r:.80}")
    if kind == "text":
        return CheckCase(source.replace("{response}", repr(request.response)), "plain", secrets.token_hex(16))
    if kind == "pytest":
        return CheckCase(
            f"{function}\n{source}", "pytest" if "pytest" in source else "functions", secrets.token_hex(16)
        )
    return _read_assert(source, function)


def _first(test: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if name in test:
            return test[name]
    raise CaseError(f"a test lacks {' or '.join(names)}; it has: {', '.join(map(str, test))}")


def _read_input(test: Mapping[str, Any]) -> InputCase:
    given = _first(test, "stdin", "input")
    expected = _first(test, "expected_stdout", "stdout", "output", "expected_output")
    return InputCase(_text(given), _text(expected))


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _read_call(test: Mapping[str, Any], name: str) -> CallCase:
    """Read a call; arguments are a list, or a text with one JSON value per line."""
    arguments = _first(test, "input", "arguments", "stdin")
    expected = _first(test, "output", "expected", "expected_output", "stdout")
    try:
        if isinstance(arguments, str):
            arguments = [json.loads(line) for line in arguments.splitlines() if line.strip()]
            expected = json.loads(expected) if isinstance(expected, str) else expected
    except json.JSONDecodeError as error:
        raise CaseError(f"a test of {name}() has an argument or a value that is no JSON: {error}") from None
    if not isinstance(arguments, list):
        raise CaseError(f"the input of a test of {name}() is the list of its arguments, not {arguments!r:.80}")
    return CallCase(name, arguments, expected, or_first=bool(test.get("or_first")))


def _read_assert(source: str, setup: str) -> Case:
    """Read an assertion; ``==`` with a literal on the right is compared outside the sandbox."""
    try:
        statements = ast.parse(source.strip()).body
    except (SyntaxError, ValueError) as error:
        raise CaseError(f"a test is no Python: {error}") from None
    match statements:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            try:
                return EvaluateCase(ast.unparse(left), ast.literal_eval(right), setup)
            except (ValueError, TypeError):
                pass
    return CheckCase(f"{setup}\n{source}", "plain", secrets.token_hex(16))
