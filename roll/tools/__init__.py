"""Tools that a policy may call: typed functions with a docstring, by name; calls are read, limited and answered."""

from roll.common.unavailable import UnavailableError
from roll.tools.errors import ToolConfigError, UnknownToolError, WrongCallError
from roll.tools.registry import TOOLS, make_tools, register_tool
from roll.tools.tool import Tool, tool_of
from roll.tools.toolbox import Toolbox

__all__ = [
    "TOOLS",
    "Tool",
    "ToolConfigError",
    "Toolbox",
    "UnavailableError",
    "UnknownToolError",
    "WrongCallError",
    "make_tools",
    "register_tool",
    "tool_of",
]
