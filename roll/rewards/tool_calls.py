"""Calls of tools, compared with those that are right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from roll.rewards.answers import after_thinking
from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.registry import register_verifier, row_name

_BLOCK: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@register_verifier("tool_calls", needs_row=("ground_truth",), is_quick=True)
def tool_calls(request: RewardRequest) -> Verdict:
    """1 if the response calls the tools of the ground truth with its arguments, in any order, else 0.

    The ground truth is a call or a list of calls, ``{"name": …, "arguments": {…}}``, as JSON; an empty list, where none
    is right. Calls are written in ``<tool_call>…</tool_call>``, as Hermes and Qwen do.

    Args:
        request: The response.
    """
    right = _calls(request.ground_truth or "")
    if right is None:
        return Verdict(None, error=f"the ground truth of {row_name(request)} is no list of calls")
    blocks = _BLOCK.findall(after_thinking(request.response))
    called = [call for block in blocks for call in (_calls(block) or ["?"])]
    return Verdict(float(sorted(called) == sorted(right)), {"called": float(bool(blocks))})


def _calls(text: str) -> list[str] | None:
    """Return calls in a form that can be compared, ``None`` where they cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, Mapping) and "name" in call for call in calls):
        return None
    return [json.dumps([call["name"], _arguments(call)], sort_keys=True) for call in calls]


def _arguments(call: Mapping[str, Any]) -> Any:
    given = call.get("arguments", call.get("parameters", {}))
    if isinstance(given, str):
        try:
            return json.loads(given)
        except ValueError:
            return given
    return given
