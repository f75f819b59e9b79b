"""A tool is a typed function with a docstring; its schema is what Hugging Face derives too."""

from __future__ import annotations

import ast
import threading
import time
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from roll.config.tool_use import ToolUse
from roll.sandbox import SandboxError
from roll.tools import (
    TOOLS,
    Toolbox,
    ToolConfigError,
    UnavailableError,
    WrongCallError,
    make_tools,
    register_tool,
    tool_of,
)
from roll.tools.calculator import calculator


def weather(city: str, days: int, scale: Literal["C", "F"] = "C", hourly: bool = False, at: list[float] = []) -> str:  # noqa: B006
    """Forecast the weather.

    Args:
        city: Name of the city.
        days: How many days,
            today included.
        scale: Unit of temperatures.
        hourly: Whether hour by hour.
        at: Hours to report.
    """
    return f"{city} {days} {scale} {hourly} {at}"


def called(response: str, *names: Any, **use: Any) -> tuple[Toolbox, Any]:
    box = Toolbox(make_tools(names or ("calculator",)), ToolUse(**use))
    return box, box.answer(box.find(response))


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_the_schema_is_the_one_that_hugging_face_derives() -> None:
    for function in (weather, calculator):
        ours, theirs = tool_of(function.__name__, function).schema, get_json_schema(function)
        assert ours["function"]["name"] == theirs["function"]["name"]
        assert ours["function"]["description"] == theirs["function"]["description"].replace("\n", " ")
        mine, peer = ours["function"]["parameters"], theirs["function"]["parameters"]
        assert mine["required"] == peer["required"] and mine["type"] == peer["type"] == "object"
        for name, described in peer["properties"].items():
            got = {key: value for key, value in mine["properties"][name].items() if key != "default"}
            assert got == {**described, "description": " ".join(described["description"].split())}


def test_arguments_are_checked_against_the_types() -> None:
    tool = tool_of("weather", weather)
    assert tool.run({"city": "Lima", "days": 2}) == "Lima 2 C False []"
    with pytest.raises(WrongCallError, match=r"days: .*integer.*; scale: .*'C' or 'F'"):
        tool.run({"city": "Lima", "days": "two", "scale": "K"})
    with pytest.raises(WrongCallError, match="days: Field required; day: Extra inputs"):
        tool.run({"city": "Lima", "day": 1})


def test_a_function_without_docstring_type_or_description_is_no_tool() -> None:
    def bare(x: int) -> str:
        return str(x)

    def untyped(x) -> str:  # type: ignore[no-untyped-def]
        """Do.

        Args:
            x: It.
        """
        return str(x)

    def undescribed(x: int) -> str:
        """Do."""
        return str(x)

    for function, problem in ((bare, "no docstring"), (untyped, "'x' has no type"), (undescribed, "'x' is not descr")):
        with pytest.raises(ToolConfigError, match=problem):
            register_tool("mine")(function)
    assert "mine" not in TOOLS


def test_unknown_names_and_options_are_refused_with_advice() -> None:
    with pytest.raises(ToolConfigError, match="unknown tool 'calculater'. Did you mean 'calculator'"):
        make_tools(["calculater"])
    with pytest.raises(ToolConfigError, match="'calculator' has no option 'digits'. It has none."):
        make_tools([{"calculator": {"digits": 3}}])
    with pytest.raises(ToolConfigError, match="two tools of the name 'calculator'"):
        make_tools(["calculator", {"calculator": None}])


def test_a_tool_that_runs_code_is_refused_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise SandboxError("this is another system")

    monkeypatch.setattr("roll.tools.registry.capabilities", unavailable)
    with TOOLS.restored():
        register_tool("weather", risk="code")(weather)
        with pytest.raises(ToolConfigError, match="no sandbox here: this is another system"):
            make_tools(["weather"])


def test_calls_are_counted_limited_cut_and_given_up() -> None:
    with TOOLS.restored():

        @register_tool("say")
        def say(text: str) -> str:
            """Say it.

            Args:
                text: What.
            """
            if text == "sleep":
                time.sleep(60)
            if text == "break":
                raise OSError("no line")
            return text

        box, answers = called(
            "".join(hermes("say", f'{{"text": "{text}"}}') for text in ("sleep", "break", "123456"))
            + hermes("said", "{}")
            + hermes("say", '{"text": "more"}'),
            "say",
            max_calls=4,
            timeout=0.05,
            max_result_characters=5,
        )
        assert [result.partition("\n")[0][:5] for result in answers.results] == ["error"] * 2 + ["12345"] + [
            "error"
        ] * 2
        assert answers.wrong == 2  # one names no tool, one is too many; a failure is not the policy's
        assert answers.metrics == {"tool_calls": 5, "tool_calls_wrong": 2, "tool_failures": 2, "tool/say": 1}
        assert answers.results[-1].endswith("(No calls are left.)")
        assert box.find(hermes("say", '{"text": "x"}')) == []


def test_calls_of_one_response_are_made_at_the_same_time_and_answered_in_their_order() -> None:
    meeting = threading.Barrier(3)

    class Diary:
        """Remembers, so that its calls have an order."""

        def __init__(self) -> None:
            self.written: list[str] = []

        def __call__(self, text: str) -> str:
            """Write.

            Args:
                text: What.
            """
            before = list(self.written)
            time.sleep(0.01)
            self.written = [*before, text]  # loses what another call wrote meanwhile
            return ",".join(self.written)

    with TOOLS.restored():

        @register_tool("meet")
        def meet(text: str) -> str:
            """Wait for the others.

            Args:
                text: Who.
            """
            meeting.wait(20)
            return text

        register_tool("diary")(Diary)
        response = "".join(
            hermes("meet", f'{{"text": "{who}"}}') + hermes("diary", f'{{"text": "{who}"}}') for who in "abc"
        )
        _, answers = called(response, "meet", "diary", timeout=30)
        assert answers.results == ("a", "a", "b", "a,b", "c", "a,b,c")
        assert answers.metrics["tool_calls"] == 6 and answers.metrics["tool/meet"] == 3


def test_what_is_not_there_is_no_result_and_ends_the_turn() -> None:
    with TOOLS.restored():

        @register_tool("remote", risk="network")
        def remote(how: str) -> str:
            """Ask another machine.

            Args:
                how: What happens.
            """
            if how == "slow":
                time.sleep(60)
            raise UnavailableError("no line")

        for how, told in (("slow", "tool 'remote' gave no result after 0.05 s"), ("gone", "no line")):
            with pytest.raises(UnavailableError, match=told):
                called(hermes("remote", f'{{"how": "{how}"}}'), "remote", timeout=0.05)


def test_what_is_wrong_with_a_call_is_told() -> None:
    for response, told in (
        ("<tool_call>{</tool_call>", "cannot be read"),
        (hermes("calculater", "{}"), "no tool 'calculater'. Did you mean 'calculator'"),
        (hermes("calculator", '{"formula": "1"}'), "expression: Field required"),
        (hermes("calculator", '{"expression": "import os"}'), "no arithmetic expression"),
    ):
        _, answers = called(response)
        assert answers.wrong == 1 and answers.results[0].startswith("error: ") and told in answers.results[0]


leaves = st.integers(0, 10**6).map(str) | st.decimals(0, 100, places=2).map(str)
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map("({0[0]} {0[1]} {0[2]})".format)
        | inner.map("-({})".format)
    ),
    max_leaves=12,
)


@given(expressions)
def test_the_calculator_agrees_with_sympy(expression: str) -> None:
    import sympy

    exact = sympy.sympify(expression, rational=True)
    divisions = (node for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.BinOp))
    divisors = [ast.unparse(node.right) for node in divisions if isinstance(node.op, ast.Div)]
    # What sympy goes on from: 0 / (1 / 0) is 0 there.
    by_zero = any(sympy.sympify(divisor, rational=True) == 0 for divisor in divisors)
    if by_zero or not exact.is_finite:
        with pytest.raises(WrongCallError):
            calculator(expression)
    elif exact.is_integer:
        assert calculator(expression) == str(exact)
    else:
        assert float(calculator(expression)) == pytest.approx(float(exact), rel=1e-11)


BAD = "9**9**9|2**(10**9)|__import__('os')|x|'a'*9|1 if 1 else 2|(-1)**0.5|1/0|sqrt(-1)|max()|9**999"


@pytest.mark.parametrize("bad", [*BAD.split("|"), "(" * 500 + "1" + ")" * 500])
def test_the_calculator_refuses_what_is_no_arithmetic_or_too_large(bad: str) -> None:
    with pytest.raises(WrongCallError):
        calculator(bad)


def test_the_calculator_knows_functions() -> None:
    assert calculator("round(sqrt(2) * max(3, 10), 3)") == "14.142"
    assert calculator("2^10 + 7 // 2 + 7 % 4") == "1030"
    assert calculator("1/3") == "0.333333333333"
