"""The tools of one episode: what is said of them, what calls come to, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roll.common.spelling import did_you_mean
from roll.tools.calling import Call, Come, call_all
from roll.tools.calls import EXAMPLES, ToolCall, described, find_calls, typed_arguments
from roll.tools.errors import WrongCallError
from roll.tools.tool import Tool

if TYPE_CHECKING:  # all of the configuration, which an environment without tools needs nothing of
    from roll.config.tool_use import ToolUse


@dataclass(frozen=True, slots=True)
class Answers:
    """What calls came to.

    Attributes:
        results: A text for each call, in their order.
        wrong: Calls that could not be answered as they were written.
        metrics: Calls, wrong ones, failures of tools, and calls by tool, as numbers of this turn.
    """

    results: tuple[str, ...]
    wrong: int
    metrics: Mapping[str, float]


class Toolbox:
    """Tools and their limits, for one episode. ``close`` lets go of what they hold."""

    def __init__(self, tools: Sequence[Tool], use: ToolUse) -> None:
        """Take tools that were made for this episode."""
        self._tools = {tool.name: tool for tool in tools}
        self._use = use
        self._made = 0

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The descriptions that chat templates take."""
        return [tool.schema for tool in self._tools.values()]

    def description(self) -> str:
        """Return what a policy is told of the tools where its chat template does not say it."""
        return described(self.schemas, self._use.formats[0])

    @property
    def example(self) -> tuple[str, dict[str, str]]:
        """A tool and arguments, to try how a chat template writes a call."""
        tool = next(iter(self._tools.values()))
        return tool.name, dict.fromkeys(tool.parameters.get("properties", {}), "probe")

    def reads(self, text: str, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether ``text`` is read as the call of that tool with these arguments."""
        calls = find_calls(text, self._use.formats)
        return len(calls) == 1 and (calls[0].name, calls[0].arguments) == (name, arguments)

    def find(self, response: str) -> list[ToolCall]:
        """Return the calls of a response; none once the episode has made all that it may."""
        return find_calls(response, self._use.formats) if self._made < self._use.max_calls else []

    def answer(self, calls: Sequence[ToolCall]) -> Answers:
        """Return what calls come to; they are made at the same time, but for those of one tool that remembers.

        Raises:
            UnavailableError: What a tool needs is not there, a server say, through no fault of the policy.
        """
        left = max(0, self._use.max_calls - self._made)
        self._made += min(left, len(calls))
        come = iter(call_all([self._call(call) for call in calls[:left]], self._use.timeout))
        counts: Counter[str] = Counter(tool_calls=len(calls), tool_calls_wrong=0, tool_failures=0)
        results = []
        for call in calls[:left]:
            told = next(come)
            counts[told.kind or f"tool/{call.name}"] += 1
            results.append(self._cut(told.text))
        for _ in calls[left:]:
            counts["tool_calls_wrong"] += 1
            results.append(f"error: no call was made, since an episode has {self._use.max_calls} calls at most.")
        if self._made >= self._use.max_calls and results:
            results[-1] += "\n(No calls are left.)"
        wrong = counts["tool_calls_wrong"]
        return Answers(tuple(results), wrong, {name: float(count) for name, count in counts.items()})

    def close(self) -> None:
        """Let go of what the tools hold."""
        for tool in self._tools.values():
            tool.close()

    def _call(self, call: ToolCall) -> Call | Come:
        """Return what is to be called, or why nothing is."""
        if call.problem:
            written = EXAMPLES[self._use.formats[0]]
            return Come.wrong(WrongCallError(f"this call cannot be read: {call.problem}. Write it as\n{written}"))
        tool = self._tools.get(call.name)
        if tool is None:
            return Come.wrong(WrongCallError(f"there is no tool {call.name!r}. {did_you_mean(call.name, self._tools)}"))
        return Call(tool, typed_arguments(call.arguments, tool.parameters) if call.as_text else call.arguments)

    def _cut(self, text: str) -> str:
        most = self._use.max_result_characters
        return text if len(text) <= most else f"{text[:most]}\n[cut: {len(text)} characters in all]"
