"""What an agent program in this process is given: where the policy answers, and a way to ask it without HTTP."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from roll.common.proxies import past_proxies
from roll.gateway.openai_chat import ChatBody
from roll.gateway.records import Ask
from roll.gateway.server import GatewayServer


class AgentClient:
    """The policy, as an agent reaches it while its episode runs.

    Attributes:
        base_url: For clients of OpenAI's APIs (``OPENAI_BASE_URL``); ends with ``/v1``.
        anthropic_base_url: For clients of Anthropic's (``ANTHROPIC_BASE_URL``).
        api_key: The key of the episode.
        model: The name of the policy; any other name gets it too.
        port: Of the loopback interface, where it answers.
    """

    def __init__(self, server: GatewayServer, key: str, model: str, ask: Ask) -> None:
        url = server.url
        self.port = server.port
        self.base_url = f"{url}/v1"
        self.anthropic_base_url = url
        self.api_key = key
        self.model = model
        self._ask = ask
        self._server = server

    def answering_at(self, listener: socket.socket) -> AbstractContextManager[None]:
        """Answer at another socket as well while the block runs, such as one in a network of its own."""
        return self._server.also_at(listener)

    async def chat(self, messages: str | Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
        """Return a chat completion, as OpenAI's API answers it.

        Args:
            messages: The conversation, or what the user says.
            fields: Further fields of a request: ``tools``, ``n``, ``stop``, ``max_tokens``.

        Raises:
            ApiError: The call is refused.
        """
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = ChatBody.read({"model": self.model, "messages": said, **fields})
        return body.response(await self._ask.ask(body.asked()))

    def environment(self) -> dict[str, str]:
        """Return what a program in a process of its own finds in its environment."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": self.api_key,
            "ANTHROPIC_MODEL": self.model,
            **past_proxies(),
        }
