"""When values and outputs of programs equal what a test expects."""

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.rewards.code_harness import encode
from roll.rewards.code_values import decode, equals_json, equals_output

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False) | st.fractions()
)  # fmt: skip
KEYS = st.recursive(SCALARS, lambda items: st.lists(items, max_size=3).map(tuple) | st.frozensets(items, max_size=3))
VALUES = st.recursive(
    KEYS,
    lambda items: st.lists(items, max_size=3) | st.dictionaries(KEYS, items, max_size=3) | st.sets(KEYS, max_size=3),
    max_leaves=10,
)


def same_types(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return all(map(same_types, left, right))
    return True


@given(VALUES)
def test_value_survives_the_way_out_of_the_sandbox(value: Any) -> None:
    back = decode(json.dumps(encode(value)).encode("utf-8", "surrogatepass"))
    assert back == value
    assert same_types(back, value)


def test_values_without_a_plain_form_are_refused() -> None:
    with pytest.raises(TypeError, match="type object"):
        encode([object()])


@pytest.mark.parametrize(
    "report",
    [b"", b"{", b"{}", b'{"float": 1}', b'{"a": 1, "b": 2}', b'{"evil": 1}', b'{"set": [[1]]}', b'{"dict": 3}', b"\xff",
     b'{"Fraction": [1, 0]}', b'{"float": "0x1p99999"}', b'{"Decimal": "x"}', b"[" * 100_000, b"1" * 10_000],
)  # fmt: skip
def test_reports_that_are_none_are_value_errors(report: bytes) -> None:
    with pytest.raises(ValueError):
        decode(report)


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (3, 3, True),
        (True, 1, False),
        (1, True, False),
        ("3", 3, False),
        ((1, (2,)), [1, [2]], True),
        ({2, 1}, [1, 2], True),
        ({1: "a"}, {"1": "a"}, True),
        ({1: "a"}, {"1": "b"}, False),
        ([1, 2], [1], False),
        (0.1 + 0.2, 0.3, True),
        (0.31, 0.3, False),
        (2, 2.0, True),
        (float("inf"), 1.0, False),
        (10**400, 1.5, False),
        (None, None, True),
        (None, 0, False),
        ("a", "a", True),
        (Decimal(1), 1, False),
        (Fraction(1, 2), 0.5, False),
    ],
)
def test_values_against_json(value: Any, expected: Any, equal: bool) -> None:
    assert equals_json(value, expected) is equal


@pytest.mark.parametrize(
    ("output", "expected", "equal"),
    [
        ("3\n", "3", True),
        ("1  \n2\n\n\n", "1\n2", True),
        ("1\r\n2", "1\n2\n", True),
        ("1 2", "1\n2", False),
        ("1\n\n2", "1\n2", False),
        ("1   2", "1 2", True),
        ("0.3333333333", "0.3333333", True),
        ("0.34", "0.33", False),
        ("2.0", "2", True),
        ("1000000001", "1000000000", False),
        ("1e400", "1", False),
        ("yes", "YES", False),
        ("nan", "nan", True),
        ("", "", True),
        ("", "0", False),
    ],
)
def test_outputs(output: str, expected: str, equal: bool) -> None:
    assert equals_output(output, expected) is equal
