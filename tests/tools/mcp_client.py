"""A client for the protocol's conformance suite, which gives it the address of a server: calls every tool of it."""

from __future__ import annotations

import json
import sys

from roll.config.tool_use import ToolUse
from roll.tools import Toolbox, make_tools

if __name__ == "__main__":
    box = Toolbox(make_tools([{"mcp": {"url": sys.argv[-1], "own": True}}]), ToolUse(timeout=30))
    for schema in box.schemas:
        function = schema["function"]
        arguments = {name: number for number, name in enumerate(function["parameters"].get("properties", {}), 2)}
        call = json.dumps({"name": function["name"], "arguments": arguments})
        print(box.answer(box.find(f"<tool_call>{call}</tool_call>")))
    box.close()
