"""Ranges of keys: as YAML, and as words of Hydra's own grammar of sweeps."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config.errors import FixableError
from roll.config.ranges import Choice, Range, format_value, range_in, read_range


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"low": 1e-5, "high": 1e-3, "log": True}, Range(1e-5, 1e-3, log=True)),
        ({"low": 1, "high": 9, "step": 2}, Range(1, 9, step=2)),
        ([8, 16], Choice((8, 16))),
        ([True, 1, None, "a"], Choice((True, 1, None, "a"))),
        ({"choices": ["a", "b"]}, Choice(("a", "b"))),
        ("loguniform(1e-5, 1e-3)", Range(1e-5, 1e-3, log=True)),
        ("uniform(0,1)", Range(0, 1)),
        ("interval(0,1)", Range(0, 1)),
        ("tag(log, interval(1e-4, 1))", Range(1e-4, 1, log=True)),
        ("int(interval(1, 8))", Range(1, 8)),
        ("range(2,9,2)", Choice((2, 4, 6, 8))),
        ("choice(a,'b c',3)", Choice(("a", "b c", 3))),
        ("8,16,32", Choice((8, 16, 32))),
    ],
)
def test_what_is_written_is_a_range(written: Any, meant: Range | Choice) -> None:
    assert read_range(written) == meant


@pytest.mark.parametrize("word", ["1e-4", "a", "[1,2]", "{a: 1, b: 2}", "'a,b'", "/some/place=1", ""])
def test_a_plain_value_is_none(word: str) -> None:
    assert range_in(word) is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"low": 2, "high": 1}, "nothing between"),
        ({"low": 1, "high": 1}, "nothing between"),
        ({"low": 0, "high": 1, "log": True}, "logarithm"),
        ({"low": 1e-5}, "needs low and high"),
        ({"low": "a", "high": 1}, "no number"),
        ({"low": 1, "high": float("inf")}, "not finite"),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "do not go together"),
        ({"low": 1, "high": 9, "step": 0}, "step is 0"),
        ({"low": 1, "hihg": 9}, "no hihg"),
        ({"training_args": {"learning_rate": {"low": 1, "high": 2}}}, "no training_args"),
        ([8], "nothing to choose"),
        ([8, 8], "nothing to choose"),
        ([[1], [2]], "no single value"),
        ("loguniform(1)", "cannot be read"),
        ("gaussian(0,1)", "cannot be read"),
        ("abc", "no range"),
        (3, "no range"),
    ],
)
def test_what_is_none_is_refused_with_a_fix(written: Any, said: str) -> None:
    with pytest.raises(FixableError, match=said) as refused:
        read_range(written)
    assert refused.value.fix


@pytest.mark.parametrize(
    "value", [None, True, 3, 0.1, 1 / 3, 1e-5, 2.5e-4, "a", "true", "null", "b c", "it's", "1e3", ""]
)
def test_a_value_on_the_command_line_is_read_as_itself_by_hydra(value: Any) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    read = OverridesParser.create().parse_override(f"key={format_value(value)}").value()
    assert read == value and isinstance(read, bool) == isinstance(value, bool)
