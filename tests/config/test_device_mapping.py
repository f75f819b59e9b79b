from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.config.device_mapping import (
    MAX_DEVICES,
    DeviceMappingError,
    format_device_mapping,
    parse_device_mapping,
)


@pytest.mark.parametrize(
    ("written", "devices"),
    [
        ("list(range(0,16))", list(range(16))),
        ("list(range(4))", [0, 1, 2, 3]),
        ("list([0,1,8,9])", [0, 1, 8, 9]),
        ("list((4,5)) + list(range(12,14))", [4, 5, 12, 13]),
        ("range(0,8,2)", [0, 2, 4, 6]),
        ("[0,1,2]", [0, 1, 2]),
        ("(3, 1)", [3, 1]),
        ("0-7", list(range(8))),
        ("0,2,4", [0, 2, 4]),
        ("0-2, 8", [0, 1, 2, 8]),
        (" 5 ", [5]),
        ("list(range(0,4))+list(range(8,12))", [0, 1, 2, 3, 8, 9, 10, 11]),
        ("[0] + range(2, 4) + [9]", [0, 2, 3, 9]),
        ("[]", []),
        ([], []),
        ([1, 0], [1, 0]),
        (3, [3]),
    ],
)
def test_every_documented_form_is_read(written: object, devices: list[int]) -> None:
    assert parse_device_mapping(written) == devices


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/owned')",
        "list(range(__import__('os').getpid()))",
        "[i for i in range(4)]",
        "open('/etc/passwd')",
        "list(open('/etc/passwd'))",
        "range(0, 8) * 2",
        "\0",
        "range(*[0, 8])",
        "range(stop=8)",
        "list(range(0,4), 5)",
        "[True, False]",
        "[0.0]",
        "['0']",
        "[-1]",
        "range(-2, 2)",
        "range(0, 8, 0)",
        "range(5, 5)",
        "7-0",
        "0,,1",
        "0-",
        "",
        "lambda: 0",
        "(" * 300 + "0" + ")" * 300,
        "[0]" + "+[0]" * 3000,
        "[1, 1]",
        "0-3,2",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(DeviceMappingError):
        parse_device_mapping(text)


@pytest.mark.parametrize(
    "text",
    ["range(0, 10**12)", "list(range(0, 99999999999999999999999999))", f"0-{10**18}", f"range({MAX_DEVICES + 1})"],
)
def test_a_mapping_too_large_for_any_cluster_is_refused_before_it_fills_memory(text: str) -> None:
    with pytest.raises(DeviceMappingError):
        parse_device_mapping(text)


@pytest.mark.parametrize("value", [None, 1.5, True, [0, "1"], [True], {"a": 1}, [0, 0], [-1], -1])
def test_values_that_are_no_devices_are_refused(value: object) -> None:
    with pytest.raises(DeviceMappingError):
        parse_device_mapping(value)


@given(st.lists(st.integers(0, 5000), unique=True, max_size=60))
def test_formatting_and_parsing_are_inverse(devices: list[int]) -> None:
    assert parse_device_mapping(format_device_mapping(devices)) == devices


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9))
def test_a_range_means_what_python_means(start: int, length: int, step: int) -> None:
    expected = list(range(start, start + length, step))
    for text in (f"range({start}, {start + length}, {step})", f"list(range({start},{start + length},{step}))"):
        if expected:
            assert parse_device_mapping(text) == expected
        else:
            with pytest.raises(DeviceMappingError, match="empty"):
                parse_device_mapping(text)


@given(st.text(max_size=40))
def test_arbitrary_text_is_read_or_refused_but_never_breaks(text: str) -> None:
    try:
        devices = parse_device_mapping(text)
    except DeviceMappingError:
        return
    assert all(isinstance(device, int) and device >= 0 for device in devices)
