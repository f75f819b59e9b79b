"""Which devices a role owns, written as a list, a range, or a Python-looking expression that is never evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from roll.config.errors import FixableError

MAX_DEVICES = 65_536
"""More devices than any cluster has; refuses ``range(0, 10**12)`` before it fills memory."""

_MAX_TEXT = 4_096
_COMPACT = re.compile(r"\d+(?:\s*-\s*\d+)?(?:\s*,\s*\d+(?:\s*-\s*\d+)?)*")
_FORMS = "write list(range(0,8)), range(0,8,2), [0,1,2], 0-7 or 0,2,4; join parts with +."


class DeviceMappingError(FixableError):
    """The text or list does not name a set of devices."""

    def __init__(self, message: str, fix: str = _FORMS) -> None:
        super().__init__(message, fix)


def parse_device_mapping(value: Any) -> list[int]:
    """Return the device ids that ``value`` names, in the order written.

    Args:
        value: A list of ids, one id, or text: ``list(range(0,16))``, ``range(0,8,2)``, ``[0,1]``, ``0-7``, ``0,2,4``,
            and sums of these such as ``list(range(0,4)) + list(range(8,12))``.

    Returns:
        Distinct ids, each at least 0. An empty list (``[]``) means that the role owns no device.

    Raises:
        DeviceMappingError: Anything else: other names or operators, negative ids, duplicates, an empty range, more
            than :data:`MAX_DEVICES` ids.
    """
    if isinstance(value, str):
        return _checked(_parse_text(value), value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked([value], value)
    if isinstance(value, Sequence) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return _checked(list(value), value)
    raise DeviceMappingError(f"{value!r} does not name devices.")


def format_device_mapping(devices: Sequence[int]) -> str:
    """Return the shortest text that :func:`parse_device_mapping` reads back as ``devices`` (``0-7,9``)."""
    runs: list[tuple[int, int]] = []
    for device in devices:
        if runs and device == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], device)
        else:
            runs.append((device, device))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "[]"


def _parse_text(text: str) -> list[int]:
    stripped = text.strip()
    if len(stripped) > _MAX_TEXT:
        raise DeviceMappingError(f"a device mapping of {len(stripped)} characters is too long.")
    if _COMPACT.fullmatch(stripped):
        return _parse_compact(stripped)
    try:
        tree = ast.parse(stripped, mode="eval")
        return _walk(tree.body, text)
    except DeviceMappingError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # ValueError: NUL, before Python 3.11.4
        raise DeviceMappingError(f"{text!r} is not a device mapping.") from error


def _parse_compact(text: str) -> list[int]:
    devices: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        devices.extend(_limited(range(int(first), int(last or first) + 1), part.strip()))
    return devices


def _walk(node: ast.expr, text: str) -> list[int]:
    """Read the few syntax nodes that can occur; the tree is only looked at, nothing is called."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _walk(left, text) + _walk(right, text)
        case ast.Call(
            func=ast.Name(id="list"),
            args=[(ast.Call(func=ast.Name(id="range")) | ast.List() | ast.Tuple()) as inner],
            keywords=[],
        ):
            return _walk(inner, text)
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]) if 1 <= len(arguments) <= 3:
            bounds = [_integer(argument, text) for argument in arguments]
            if len(bounds) == 3 and bounds[2] == 0:
                raise DeviceMappingError(f"{text!r} has a range with step 0.")
            return _limited(range(*bounds), text)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_integer(item, text) for item in items]
    raise DeviceMappingError(f"{text!r} is not a device mapping: {ast.unparse(node)!r} is not allowed.")


def _integer(node: ast.expr, text: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise DeviceMappingError(f"{text!r} is not a device mapping: {ast.unparse(node)!r} is no device id.")


def _limited(devices: range, text: str) -> list[int]:
    # Python's len() overflows above 2**63, so the size is taken from the bounds.
    size = max(0, -(-(devices.stop - devices.start) // devices.step))
    if size > MAX_DEVICES:
        raise DeviceMappingError(f"{text!r} names more than {MAX_DEVICES} devices.")
    if size == 0:
        raise DeviceMappingError(f"the range in {text!r} is empty.", "use null or [] for a role without devices.")
    return list(devices)


def _checked(devices: list[int], value: Any) -> list[int]:
    if len(devices) > MAX_DEVICES:
        raise DeviceMappingError(f"{len(devices)} devices are more than {MAX_DEVICES}.")
    if any(device < 0 for device in devices):
        raise DeviceMappingError(f"{value!r} holds a negative device id.")
    if len(set(devices)) != len(devices):
        repeated = sorted({device for device in devices if devices.count(device) > 1})
        raise DeviceMappingError(f"{value!r} names device {repeated[0]} twice.", "name every device once.")
    return devices
