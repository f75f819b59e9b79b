from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from reward_support import asked, verdict

from roll.common.registry import UnknownNameError
from roll.config.grading_keys import DOMAIN_VERIFIERS
from roll.rewards import (
    VERIFIERS,
    Verdict,
    VerifierOptionError,
    make_verifier,
    register_verifier,
)
from roll.rewards.functions import FunctionVerifier


@pytest.fixture
def registered() -> Iterator[None]:
    with VERIFIERS.restored():

        @register_verifier("short", needs_row=("limit_name",))
        def short(request, *, limit: int = 10):
            return float(len(request.response) <= limit)

        @register_verifier("asynchronous")
        async def asynchronous(request, *, value):
            return {"score": value, "length": len(request.response), "note": "no number"}

        yield


@pytest.mark.processes
def test_a_function_becomes_a_verifier(registered) -> None:
    row = {"limit_name": "x"}
    assert verdict(make_verifier("short"), asked("ab", row=row)).score == 1.0
    assert verdict(make_verifier("short", {"limit": 1}), asked("ab", row=row)).score == 0.0
    made = verdict(make_verifier("asynchronous", {"value": 0.25}), asked("ab"))
    assert made == Verdict(0.25, {"length": 2.0})


def test_a_row_without_a_needed_column_is_no_score(registered) -> None:
    result = verdict(make_verifier("short"), asked("ab", row={"id": 3}))
    assert result.score is None
    assert "'limit_name'" in result.error and "id 3" in result.error


def test_an_unknown_verifier_names_the_nearest_and_all_others() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'multiple_choice'") as caught:
        make_verifier("multiple-choise")
    assert all(name in str(caught.value) for name in ("math", "ifeval", "strict_format"))


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(VerifierOptionError, match="no option 'time_out'.*'timeout'"):
        make_verifier("math", {"time_out": 3})


def test_a_required_option_that_is_missing_is_refused(registered) -> None:
    with pytest.raises(VerifierOptionError, match="needs the option value"):
        make_verifier("asynchronous")
    with pytest.raises(VerifierOptionError, match="needs the option url"):
        make_verifier("remote")


def test_objects_given_at_build_time_are_no_options() -> None:
    with pytest.raises(VerifierOptionError, match="no option 'judge'"):
        make_verifier("llm_judge", {"engine": "policy", "judge": "me"})
    with pytest.raises(VerifierOptionError, match="this pipeline gave none"):
        make_verifier("llm_judge", {"engine": "policy"})


@pytest.mark.parametrize("name", ["short", "math"])
def test_a_name_is_given_once(registered, name: str) -> None:
    with pytest.raises(ValueError, match="already registered"):

        @register_verifier(name)
        def other(request):
            return 0.0


def test_a_function_that_swallows_any_option_is_refused() -> None:
    with pytest.raises(ValueError, match="spell the options out"):

        @register_verifier("anything")
        def anything(request, **options):
            return 0.0

    assert "anything" not in VERIFIERS.names()


@pytest.mark.parametrize(
    "name", sorted({*DOMAIN_VERIFIERS.values(), "acc", "base_acc", "format", "strict_format", "step"})
)
def test_every_name_the_configuration_knows_is_a_verifier(name: str) -> None:
    judge = {"base_url": "http://localhost/v1", "model": "m"}
    assert callable(make_verifier(name, judge if name == "llm_judge" else {}))


@pytest.mark.processes
def test_grading_starts_without_torch_or_sympy_or_httpx() -> None:
    need_others = ("llm_judge", "remote", "reward_model", "process_reward_model")
    names = [name for name in VERIFIERS.names() if name not in need_others]
    script = (
        "import sys\nfrom roll.rewards import make_verifier\n"
        f"for name in {names}: make_verifier(name)\n"
        "print([name for name in ('torch', 'ray', 'transformers', 'sympy', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def verl_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return {"score": float(solution_str == ground_truth) + bonus, "index": extra_info["index"], "source": data_source}


@pytest.mark.processes
def test_a_verl_function_is_recognised_by_its_parameters() -> None:
    request = asked("42", "42", row={"data_source": "gsm8k", "extra_info": {"index": 7}})
    assert verdict(FunctionVerifier(verl_score, {"bonus": 0.5}), request) == Verdict(1.5, {"index": 7.0})


@pytest.mark.processes
def test_a_verl_function_without_those_columns_gets_the_tag_and_the_row() -> None:
    def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
        return float(data_source == "algebra" and extra_info["level"] == 3 and kwargs == {"extra": 1})

    assert verdict(FunctionVerifier(score, {"extra": 1}), asked("", tag="algebra", row={"level": 3})).score == 1.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, Verdict(1.0)),
        (2, Verdict(2.0)),
        (Verdict(0.5, {"a": 1.0}), Verdict(0.5, {"a": 1.0})),
        ({"score": 0.5, "flag": True}, Verdict(0.5, {"flag": 1.0})),
        ({"score": None, "error": "no test cases"}, Verdict(None, {}, "no test cases")),
    ],
)
def test_what_a_function_returns_becomes_a_verdict(value, expected: Verdict) -> None:
    assert verdict(FunctionVerifier(lambda request: value, is_quick=True), asked("")) == expected


@pytest.mark.parametrize(
    ("function", "options"),
    [(lambda: 1.0, {}), (lambda request, other: 1.0, {}), (lambda request: 1.0, {"x": 1}), (verl_score, {"y": 1})],
)
def test_a_function_that_cannot_be_called_is_refused_before_the_run(function, options) -> None:
    with pytest.raises(ValueError, match="cannot be called as"):
        FunctionVerifier(function, options)
