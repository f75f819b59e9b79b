"""A harness of verifiers: a chat with tools in the process that plays, where verifiers starts a program for each turn.

It is the default of seats, so that an episode costs milliseconds in place of the start of a Python program. The file is
read by :mod:`roll.envs.adapters.verifiers_program` where verifiers is installed, and imports nothing of roll.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.compaction import CONTEXT_OVERFLOW_MARKERS, bound_tool_message
from verifiers.v1.harnesses.utils.mcp import MCPConnection, call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]


class ChatHarness(Harness[HarnessConfig]):
    """Talks until the policy calls no tool, or until its conversation is too long."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> ProgramResult:
        """Talk; see verifiers' ``Harness.launch``."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            # The address is on this machine: no certificates are looked for.
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, verify=False, trust_env=False))
            while True:
                body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
                answer = await client.post(
                    f"{endpoint.rstrip('/')}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"}
                )
                if answer.is_error:
                    return _refused(answer)
                said = answer.json()["choices"][0]["message"]
                messages.append({name: value for name, value in said.items() if value is not None})
                if not said.get("tool_calls"):
                    return ProgramResult(0, "", "")
                for call in said["tool_calls"]:
                    content = await _called(call["function"], dispatch, connections)
                    told = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"]}
                    messages.append(bound_tool_message({**told, "content": content}))


def _refused(answer: httpx.Response) -> ProgramResult:
    """Return how a conversation ends whose next call is refused: well, where it is too long."""
    too_long = answer.status_code in (400, 413) and any(
        marker in answer.text.casefold() for marker in CONTEXT_OVERFLOW_MARKERS
    )
    return ProgramResult(0 if too_long else 1, "", answer.text)


async def _called(
    function: dict[str, Any], dispatch: dict[str, tuple[str, str]], connections: dict[str, MCPConnection]
) -> Any:
    """Return what a tool answers, or what is wrong with the call."""
    name = function["name"]
    if name not in dispatch:
        return f"error: there is no tool {name!r}"
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments are no JSON object"
    return await call_mcp(connections, dispatch, name, arguments)
