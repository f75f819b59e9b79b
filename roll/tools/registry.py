"""Names of tools, and the decorator with which users add their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from roll.common.registry import Registry
from roll.common.spelling import did_you_mean
from roll.sandbox import SandboxError, capabilities
from roll.tools.errors import ToolConfigError, UnknownToolError
from roll.tools.tool import Risk, Tool, tool_of

Defined = TypeVar("Defined", bound=Callable[..., Any])

_BUILT_IN: Final[Mapping[str, str]] = {
    "calculator": "roll.tools.calculator",
    "python": "roll.tools.python",
    "search": "roll.tools.search",
    "mcp": "roll.tools.mcp",
}
"""The module that registers each built-in tool; it is imported when the name is first used."""


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One registered tool.

    Attributes:
        name: Its name.
        factory: The function itself, or a class: it is made anew for each episode from its options, and called.
        risk: What it may do; an object that is made may have a ``risk`` of its own.
    """

    name: str
    factory: Callable[..., Any]
    risk: Risk

    def make(self, options: Mapping[str, Any]) -> Sequence[Tool]:
        """Return the tools of this name, new for an episode: one, or those that a server offers.

        Raises:
            ToolConfigError: An option is unknown or cannot work, or this machine cannot shut in the code it would run.
        """
        takes = set(inspect.signature(self.factory).parameters) if inspect.isclass(self.factory) else set()
        for option in options:
            if option not in takes:
                advice = did_you_mean(option, takes) if takes else "It has none."
                raise ToolConfigError(f"tool {self.name!r} has no option {option!r}. {advice}")
        if self.risk == "code":
            _require_sandbox(self.name)
        try:
            made: Any = self.factory(**options) if inspect.isclass(self.factory) else self.factory
        except ToolConfigError:
            raise
        except (TypeError, ValueError, OSError, ImportError) as error:
            raise ToolConfigError(f"tool {self.name!r} cannot be made: {error}") from error
        offered = getattr(made, "tools", None)
        return [tool_of(self.name, made, getattr(made, "risk", self.risk))] if offered is None else offered()


TOOLS: Registry[ToolEntry] = Registry("tool", built_in=_BUILT_IN, unknown=UnknownToolError)


def register_tool(name: str, *, risk: Risk = "pure") -> Callable[[Defined], Defined]:
    """Register a tool: a function, or a class whose objects are called; its parameters are then options.

    Args:
        name: What ``tools:`` lists, and the policy calls.
        risk: ``pure`` computes, ``network`` reaches other machines, ``code`` runs what the policy wrote: it is refused
            on machines where :mod:`roll.sandbox` cannot shut that in.

    Raises:
        DuplicateNameError: The name is taken.
        ToolConfigError: A function has no docstring, or a parameter without type or description.
    """

    def decorate(definition: Defined) -> Defined:
        if not inspect.isclass(definition):
            tool_of(name, definition, risk)
        TOOLS.add(name, ToolEntry(name, definition, risk), definition=definition)
        return definition

    return decorate


def make_tools(names: Sequence[str | Mapping[str, Mapping[str, Any] | None]]) -> list[Tool]:
    """Return new tools, as ``tools:`` lists them.

    Args:
        names: Names, or mappings of a name to its options.

    Raises:
        ToolConfigError: A name or an option is unknown or given twice, or a tool cannot be made.
    """
    made: dict[str, Tool] = {}
    with ExitStack() as unwanted:
        for each in names:
            named = {each: None} if isinstance(each, str) else each
            for name, options in named.items():
                for tool in TOOLS.get(name).make(options or {}):
                    unwanted.callback(tool.close)
                    if tool.name in made:
                        raise ToolConfigError(f"there are two tools of the name {tool.name!r}; leave one of them out")
                    made[tool.name] = tool
        unwanted.pop_all()
    return list(made.values())


def _require_sandbox(name: str) -> None:
    try:
        walls = capabilities()
    except SandboxError as error:
        raise ToolConfigError(
            f"tool {name!r} runs code of the policy, and there is no sandbox here: {error}"
        ) from error
    if walls.network == "none":
        raise ToolConfigError(
            f"tool {name!r} runs code of the policy, which could reach the network from here: allow network namespaces "
            "or seccomp filters (docs/sandbox.md)"
        )
