"""A gateway over real HTTP around a scripted engine, which works in an event loop of a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from recorded_calls import BookEngine, recorder

from roll.gateway import Gateway, GatewayLimits, GatewayServer, OnLoop, Recorder
from roll.generation import GenerationRequest
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer, with_template


@dataclass
class Served:
    """What a test sees of it."""

    gateway: Gateway
    url: str
    loop: asyncio.AbstractEventLoop
    engine: BookEngine
    renderer: ChatRenderer
    policy: dict[str, Any]
    recorders: dict[str, Recorder] = field(default_factory=dict)

    def episode(self) -> str:
        """Begin an episode; return its key."""
        episode = recorder(self.engine, self.renderer, **self.policy)
        key = self.gateway.open(OnLoop(episode, self.loop))
        self.recorders[key] = episode
        return key


def renderer(template: str | None = None) -> ChatRenderer:
    return ChatRenderer(with_template(load_tokenizer("toy"), template))


def replies(renderer: ChatRenderer, *texts: str) -> Callable[[GenerationRequest], list[int]]:
    """The n-th request of an episode gets the n-th text, and all further ones the last."""
    stop = renderer.stop_token_ids[0]

    def next_ids(request: GenerationRequest) -> list[int]:
        number = int(request.request_id.rsplit("/", 1)[1])
        return [*renderer.encoder.encode(texts[min(number, len(texts) - 1)]), stop]

    return next_ids


@contextmanager
def serving(
    *texts: str, template: str | None = None, limits: GatewayLimits | None = None, **policy: Any
) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    gateway = Gateway("toy", limits)
    server = GatewayServer(gateway)
    spoken = renderer(template)
    try:
        yield Served(gateway, server.url, loop, BookEngine(replies(spoken, *texts)), spoken, policy)
    finally:
        server.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
