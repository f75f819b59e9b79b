"""The verifier ``code``: tests as data sets write them, and programs that would rather not solve the problem."""

import ast
import asyncio
import inspect
import json
import sys
from typing import Any

import pytest

from roll.rewards import code_harness
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.code import CodeVerifier, extract_program
from roll.rewards.registry import VerifierOptionError, make_verifier

pytestmark = pytest.mark.processes

ADD = "def add(a, b):\n    return a + b"
SUM_TESTS = {
    "case_type": "input",
    "test_cases": [{"stdin": f"{n} 2\n", "expected_stdout": f"{n + 2}"} for n in range(4)],
}


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


def grade(program: str, row: dict[str, Any], ground_truth: str | None = None, **options: Any) -> Verdict:
    request = RewardRequest([], fenced(program), ground_truth, row)
    return asyncio.run(CodeVerifier(**options)(request))


def score(program: str, row: dict[str, Any], **options: Any) -> float | None:
    verdict = grade(program, row, **options)
    assert verdict.error is None
    return verdict.score


@pytest.mark.parametrize(
    ("response", "program"),
    [
        (fenced("a = 1"), "a = 1\n"),
        ("```python\nfirst\n```\n```py\nsecond\n```", "second\n"),
        ("```python\ncode\n```\nIt prints\n```\noutput\n```", "code\n"),
        ("```\nplain\n```", "plain\n"),
        ("```cpp\nint x;\n```", None),
        ("<answer>\nx = 1\n</answer>", "x = 1"),
        ("```python\nbefore\n```<answer>```python\ninside\n```</answer>", "inside\n"),
        ("<think>```python\nthought\n```</think>```python\nsaid\n```", "said\n"),
        ("<think>```python\nthought\n```</think>I do not know.", None),
        ('```python\nx = "```"\ny = 2\n```', 'x = "```"\ny = 2\n'),
        ("```python title=main.py\nx\n```", "x\n"),
        ("```python\nnever closed", None),
        ("print(1)", None),
        ("", None),
    ],
)
def test_program_of_a_response(response: str, program: str | None) -> None:
    assert extract_program(response) == program


def test_response_without_a_program_scores_zero() -> None:
    verdict = asyncio.run(CodeVerifier()(RewardRequest([], "I cannot.", None, SUM_TESTS)))
    assert (verdict.score, verdict.error) == (0.0, None)
    assert verdict.metrics["no_program"] == 1.0


def test_all_or_nothing_and_partial() -> None:
    right = "a, b = map(int, input().split())\nprint(a + b)"
    half = "a, b = map(int, input().split())\nprint(a + b if a < 2 else 0)"
    assert score(right, SUM_TESTS) == score(right, SUM_TESTS, partial=True) == 1.0
    assert score(half, SUM_TESTS) == 0.0
    verdict = grade(half, SUM_TESTS, partial=True)
    assert verdict.score == verdict.metrics["pass_rate"] == 0.5
    assert verdict.metrics["tests"] == 4
    assert score(half, SUM_TESTS, max_tests=2) == 1.0


@pytest.mark.parametrize(
    ("row", "right", "wrong"),
    [
        (SUM_TESTS | {"test_cases": json.dumps(SUM_TESTS["test_cases"])}, "print(sum(map(int, input().split())))", ""),
        ({"test_cases": [{"input": "3", "output": "9"}]}, "print(int(input()) ** 2)", "print(6)"),
        ({"test_cases": {"inputs": ["3\n4"], "outputs": ["7\n"]}}, "print(int(input()) + int(input()))", "print(12)"),
        ({"test_cases": {"inputs": [["3", "4"]], "outputs": [["7"]]}}, "print(int(input()) + int(input()))", "print()"),
        (
            {"test_cases": {"inputs": [[1, 2], [3, 4]], "outputs": [3, [7]], "fn_name": "add"}},
            ADD,
            "def add(a, b): ...",
        ),
        ({"test_cases": {"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "add"}}, ADD, "add = pow"),
        (
            {"test_cases": {"inputs": [[[3, 1]]], "outputs": [[1, 3]], "fn_name": "order"}},
            "class Solution:\n    def order(self, xs: List[int]) -> List[int]:\n        return tuple(sorted(xs))",
            "class Solution:\n    def order(self, xs):\n        return xs",
        ),
        (
            {"case_type": "function", "test_case_function": "add", "test_cases": [{"input": [1, 2], "output": 3}]},
            ADD,
            "def add(a, b): return str(a + b)",
        ),
        (
            {"case_type": "assert", "test_cases": [{"assert_code": "assert add(1, 2) == 3"}]},
            ADD,
            "def add(a, b): return 4",
        ),
        ({"test_cases": ["assert add((1,), (2,)) == (1, 2)"]}, ADD, "def add(a, b): return [*a, *b]"),
        ({"test_cases": ["assert add({1: 2.5}, 1) == {1: 2.5}"]}, "def add(a, b): return a", "def add(a, b): return b"),
        ({"test_cases": ["for i in range(3):\n    assert add(i, i) == 2 * i"]}, ADD, "def add(a, b): return 0"),
        (
            {
                "test_cases": ["assert add(Point(1), Point(2)) == 3"],
                "test_case_function": "from operator import add\nPoint = int",
            },
            "",
            "raise ValueError",
        ),
        (
            {
                "case_type": "pytest",
                "test_cases": ["from solution import add\ndef test_add():\n    assert add(1, 2) == 3"],
            },
            ADD,
            "def add(a, b): return 4",
        ),
        (
            {
                "case_type": "pytest",
                "test_cases": [
                    "import unittest\nclass TestAdd(unittest.TestCase):\n    def test_it(self):\n"
                    "        self.assertEqual(add(1, 2), 3)"
                ],
            },
            ADD,
            "def add(a, b): return 4",
        ),
        (
            {"case_type": "text", "test_cases": ["text = {response}\nassert 'Done.' in text\nassert '{x}' in text"]},
            "{x}",
            "y",
        ),
    ],
)
def test_every_way_to_write_tests(row: dict[str, Any], right: str, wrong: str) -> None:
    assert score(right, row) == 1.0
    assert score(wrong, row) == 0.0


def test_tests_that_import_pytest_are_run_by_it() -> None:
    test = (
        "import pytest\nfrom solution import add\n@pytest.mark.parametrize('x', [1, 2])\n"
        "def test_add(x):\n    assert add(x, 1) == x + 1"
    )
    row = {"case_type": "pytest", "test_cases": [{"assert_code": test}]}
    # pytest takes a second to start, and several beside other tests.
    patient = {"timeout": 60.0, "total_timeout": 60.0}
    assert score(ADD, row, **patient) == 1.0
    assert score("def add(a, b):\n    return 2", row, **patient) == 0.0


def test_tests_may_stand_in_the_ground_truth() -> None:
    tests = json.dumps({"inputs": ["1 2"], "outputs": ["3"]})
    assert grade("print(sum(map(int, input().split())))", {}, tests).score == 1.0


EVERY_DESCRIPTOR = "import os\nfor n in range(3, 60):\n    try: os.write(n, {})\n    except OSError: pass\n"
CHECK = {"test_cases": ["for i in range(3):\n    assert add(i, i) == 2 * i"]}
EVALUATE = {"test_cases": ["assert add(2, 2) == 4"]}
CALL = {"test_cases": {"inputs": [[2, 2]], "outputs": [4], "fn_name": "add"}}
PYTEST = {"case_type": "pytest", "test_cases": ["def test_add():\n    assert add(2, 2) == 4"]}


@pytest.mark.parametrize(
    "row", [CHECK, EVALUATE, CALL, PYTEST, SUM_TESTS], ids=["check", "evaluate", "call", "pytest", "input"]
)
@pytest.mark.parametrize(
    "program",
    [
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "print('passed')\nprint('{\"score\": 1}')\nexit()",
        "def add(a, b):\n    raise SystemExit(0)",
        "def add(a, b):\n    import os\n    os._exit(0)",
        EVERY_DESCRIPTOR.format("b'true passed 1'") + "os._exit(0)",
        EVERY_DESCRIPTOR.format("b'{'") + "def add(a, b): return a",
        "import os, threading\nthreading.Thread(target=lambda: os._exit(0)).start()\nwhile True: pass",
        "import os\nfor name in os.listdir('.'): os.remove(name)",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(0)",
        "import builtins\nbuiltins.AssertionError = KeyError\nbuiltins.exec = print\nexit()",
    ],
    ids=lambda program: program[:30] if isinstance(program, str) else None,
)
def test_programs_that_only_pretend_fail(program: str, row: dict[str, Any]) -> None:
    assert score(program, row) == 0.0


def test_an_object_that_equals_everything_does_not_equal_the_answer() -> None:
    liar = "class Any:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef add(a, b): return Any()"
    assert score(liar, EVALUATE) == score(liar, CALL) == 0.0


def test_right_answers_never_enter_the_sandbox() -> None:
    row = {"test_cases": {"inputs": [[2]], "outputs": [987654321], "fn_name": "find"}}
    spy = (
        "import gc, os, sys\ndef find(x):\n    frame, seen = sys._getframe(), []\n    while frame:\n"
        "        seen.append(repr(frame.f_locals) + repr(frame.f_globals))\n        frame = frame.f_back\n"
        "    for name in os.listdir('.'): seen.append(open(name).read())\n"
        "    seen.append(repr([o for o in gc.get_objects() if type(o) in (list, dict, tuple)]))\n"
        "    number = ''.join(reversed('123456789'))\n    return int(number) if number in ''.join(seen) else 0"
    )
    assert score(spy, row) == 0.0
    assert score(spy.replace("else 0", "else int(number)"), row) == 1.0


def test_endless_program_fails_and_is_counted() -> None:
    verdict = grade("while True: pass", SUM_TESTS, partial=True, timeout=0.3, total_timeout=0.8)
    assert verdict.score == 0.0
    # Three fill the time of all; on a busy machine they take a little longer each.
    assert 1 <= verdict.metrics["timeouts"] <= 3
    assert grade("while True: pass", SUM_TESTS, timeout=0.3).metrics["timeouts"] == 1


def test_endless_program_does_not_delay_others() -> None:
    async def both() -> list[Verdict]:
        verifier = CodeVerifier(timeout=1.0, workers=4)
        programs = ["while True: pass", *["print(sum(map(int, input().split())))"] * 5]
        return await asyncio.gather(*(verifier(RewardRequest([], fenced(p), None, SUM_TESTS)) for p in programs))

    assert [verdict.score for verdict in asyncio.run(both())] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


YES = (
    "class Yes{base}:\n    def __eq__(self, other): return True\n"
    "    __ne__ = __lt__ = __le__ = lambda self, other: True\n"
    "    __hash__ = object.__hash__\n    def __sub__(self, other): return self\n    def __abs__(self): return self\n"
)
HUMANEVAL = (
    "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert abs(candidate(1, 2) - 3) < 1e-6\n\ncheck(add)"
)


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        (ADD, True),
        ("from fractions import Fraction\n" + ADD.replace("a + b", "Fraction(a) + b"), True),
        (ADD.replace("a + b", "a + b + 1"), False),
        (YES.format(base="") + ADD.replace("a + b", "Yes()"), False),
        (YES.format(base="(int)") + ADD.replace("a + b", "Yes()"), False),
        (YES.format(base="") + "Yes.__module__ = 'json'\n" + ADD.replace("a + b", "Yes()"), False),
        (YES.format(base="") + "Yes.__name__ = 'candidate'\n" + ADD.replace("a + b", "Yes()"), False),
    ],
)
def test_a_check_of_a_candidate_is_not_fooled_by_an_object_that_equals_everything(program: str, passes: bool) -> None:
    assert score(program, {"test_cases": [{"assert_code": HUMANEVAL}]}) == float(passes)
    listed = {"test_cases": [{"assert_code": "def check(candidate):\n    assert candidate() == [3]\ncheck(many)"}]}
    assert score(program + "\ndef many():\n    return [add(1, 2)]", listed) == float(passes)
    functions = {
        "case_type": "pytest",
        "test_cases": ["from solution import add\ndef test_it():\n    assert add(1, 2) == 3"],
    }
    assert score(program, functions) == float(passes)


POINT = "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)"
NODE = """class Node:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return self.v == o.v
def f(): return Node(1)
"""
COUNTER = "class S:\n    def __init__(self): self.n = 0\n    def add(self): self.n += 1; return self\n"


@pytest.mark.parametrize(
    ("program", "test"),
    [
        (POINT, "list(f()) == [1, 2] and f() == (1, 2)"),
        (NODE, "f() == Node(1)"),
        ("def f():\n    yield from (1, 2)", "sum(f()) == 3 and True"),
        ("def f():\n    return lambda x: x + 1", "f()(1) == 2 and True"),
        ("import re\ndef f(): return re.match('a', 'a')", "f().group() == 'a' and True"),
        ("from collections import Counter\ndef f(): return Counter('aab')", "f() == {'a': 2, 'b': 1} and True"),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)", "f(5) == 120 and f.__name__ == 'f'"),
        (COUNTER, "S().add().add().n == 2"),
    ],
)
def test_values_that_are_not_plain_pass_where_they_may(program: str, test: str) -> None:
    assert score(program, {"test_cases": [{"assert_code": f"value = 1\nassert {test}"}]}) == 1.0


def test_common_names_are_imported_unless_turned_off() -> None:
    program = "def add(a: Optional[List[int]], b) -> int:\n    return math.prod(deque([a, b]))"
    assert score(program, CALL) == 1.0
    assert score(program, CALL, common_imports=False) == 0.0
    assert score("print(math.isqrt(9))", {"test_cases": [{"input": "", "output": "3"}]}) == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "no tests"),
        ({"test_cases": []}, "no tests"),
        ({"test_cases": "not json"}, "no JSON"),
        ({"test_cases": [{"stdin": "1"}]}, "expected_stdout"),
        ({"test_cases": {"inputs": [1], "outputs": []}}, "as many outputs"),
        ({"case_type": "rust", "test_cases": ["x"]}, "'rust'"),
        ({"case_type": "input", "test_cases": ["x"]}, "mapping"),
        ({"test_cases": ["assert ("]}, "no Python"),
        ({"test_cases": {"inputs": ["a b"], "outputs": ["1"], "fn_name": "f"}}, "no JSON"),
        ({"id": 17, "test_cases": [{"assert_code": ""}]}, "id 17"),
    ],
)
def test_row_that_cannot_be_read_has_no_score(row: dict[str, Any], message: str) -> None:
    verdict = grade(ADD, row)
    assert verdict.score is None
    assert verdict.error is not None and message in verdict.error


def test_sandbox_that_fails_gives_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    verdict = grade(ADD, CALL)
    assert verdict.score is None
    assert verdict.error is not None and "sandbox" in verdict.error


def test_verifier_is_made_by_name_with_checked_options() -> None:
    assert make_verifier("code", {"partial": True, "memory_mb": 256}) is not None
    with pytest.raises(VerifierOptionError, match="total_timeout"):
        make_verifier("code", {"timeout": 60.0})
    with pytest.raises(VerifierOptionError, match="partial"):
        make_verifier("code", {"partail": True})


def test_harness_imports_only_the_standard_library() -> None:
    imported = [
        name.split(".")[0]
        for node in ast.walk(ast.parse(inspect.getsource(code_harness)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]
    assert "json" in imported
    assert set(imported) - {"pytest"} <= sys.stdlib_module_names
