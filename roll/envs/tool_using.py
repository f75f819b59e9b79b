"""Any text environment, with tools beside it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roll.envs.base import RenderFrame, TextEnv
from roll.tools import Toolbox, make_tools
from roll.tools.calls import ToolCall

if TYPE_CHECKING:
    from roll.config.tool_use import ToolUse

_COUNTS = ("tool_calls", "tool_calls_wrong", "tool_failures")


class ToolUsingEnv(TextEnv):
    """Answers the calls of tools in a response; a response without any goes to the environment inside.

    A turn of calls is no step of the environment: nothing in it changes, its limits do not count it, and what else
    such a response says is not read. The results are ``info["messages"]``, one of the role ``tool`` for each call. A
    call that cannot be answered as it is written earns ``wrong_call_penalty``, and says what to change.

    Attributes:
        inner: The environment.
        toolbox: The tools of the running episode.
    """

    def __init__(
        self,
        inner: TextEnv,
        tools: Sequence[str | Mapping[str, Mapping[str, Any] | None]],
        use: ToolUse,
    ) -> None:
        """Make the tools, so that what is wrong with them shows at once.

        Args:
            inner: The environment.
            tools: Names of tools, or mappings of a name to options.
            use: Formats, limits, penalties.

        Raises:
            ToolConfigError: A tool cannot be made.
        """
        self.inner = inner
        self._tools = tools
        self._use = use
        self._begun_once = False
        self._awaits = inspect.iscoroutinefunction(inner.step)
        self.toolbox = Toolbox(make_tools(tools), use)

    def beside(self, env: TextEnv) -> ToolUsingEnv:
        """Return the same tools, made anew, beside another environment: one seat of a game, say."""
        return ToolUsingEnv(env, self._tools, self._use)

    def __getattr__(self, name: str) -> Any:
        """Return what the environment has."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def unwrapped(self) -> Any:
        """The environment itself."""
        return self.inner.unwrapped

    @property
    def instruction(self) -> str:
        """The environment's; what there is to say of tools, a chat template says."""
        return self.inner.instruction

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """The environment's."""
        return self.inner.render_mode

    @property
    def initial_seed(self) -> int | None:
        """The environment's."""
        return self.inner.initial_seed

    @initial_seed.setter
    def initial_seed(self, seed: int | None) -> None:
        self.inner.initial_seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin a new episode, with new tools; to be awaited where the environment's is."""
        if self._begun_once:
            self.toolbox.close()
            self.toolbox = Toolbox(make_tools(self._tools), self._use)
        self._begun_once = True
        return self.inner.reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        """Answer the calls of a response, or let the environment take it; to be awaited where the environment's is."""
        calls = self.toolbox.find(action)
        if calls:
            return asyncio.to_thread(self._answered, calls) if self._awaits else self._answered(calls)
        taken = self.inner.step(action)
        return self._counted_later(taken) if inspect.isawaitable(taken) else self._counted(taken)

    def render(self) -> RenderFrame | None:
        """Return what the environment shows."""
        return self.inner.render()

    def close(self) -> Any:
        """Close the tools and the environment; to be awaited where the environment's is."""
        self.toolbox.close()
        return self.inner.close()

    def idle(self) -> dict[str, float]:
        """Return what the environment gives a response without a valid action."""
        return self.inner.idle()

    def solution(self) -> Sequence[str] | None:
        """Return what the environment does."""
        return self.inner.solution()

    def parse_action(self, response: str) -> str | None:
        """Return the action that the environment reads."""
        return self.inner.parse_action(response)

    def response_with(self, action: str) -> str | None:
        """Return a response in which the environment reads ``action``."""
        return self.inner.response_with(action)

    def _answered(self, calls: Sequence[ToolCall]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        answers = self.toolbox.answer(calls)
        penalty = answers.wrong * self._use.wrong_call_penalty if answers.wrong else 0.0  # and not -0.0
        names = [call.name for call in calls if call.name]
        info = {
            "action": ", ".join(names) or None,
            "reward_parts": {"wrong_call": penalty} if penalty else {},
            "metrics": {
                "success": 0.0,
                "action_is_valid": float(answers.wrong == 0),
                "action_is_effective": float(answers.wrong < len(calls)),
                "format_penalty": penalty,
                **answers.metrics,
            },
            "metrics_agg": {**self.STANDARD_METRICS, **dict.fromkeys(answers.metrics, "sum")},
            "messages": [{"role": "tool", "content": result} for result in answers.results],
        }
        return "\n".join(answers.results), penalty, False, False, info

    def _counted(self, taken: Any) -> Any:
        observation, reward, terminated, truncated, info = taken
        metrics = {**dict.fromkeys(_COUNTS, 0.0), **info.get("metrics", {})}
        how = {**dict.fromkeys(_COUNTS, "sum"), **info.get("metrics_agg", {})}
        return observation, reward, terminated, truncated, {**info, "metrics": metrics, "metrics_agg": how}

    async def _counted_later(self, taken: Any) -> Any:
        return self._counted(await taken)
