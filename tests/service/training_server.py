"""A server of the protocol in a thread, and Tinker's own client of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tinker
import uvicorn

from roll.api.policy import load_policy
from roll.gateway.server import HOST, listen
from roll.models.finding import resolve_pretrain
from roll.service.app import Service
from roll.service.clients import Base, Clients

KEY = "tml-test"


def base() -> Base:
    policy = load_policy("toy_math")
    return Base(
        name="toy_math",
        folder=resolve_pretrain("toy_math"),
        model=policy.model,
        decode=policy.text.written,
        stop_token_ids=tuple(policy.text.renderer.stop_token_ids),
        longest=512,
    )


@contextmanager
def serving(clients: Clients) -> Iterator[str]:
    """Serve until the block ends; yields the address."""
    listener = listen(HOST, 0)
    app = Service(clients, KEY).app
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def client(address: str, key: str = KEY) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=address, api_key=key)
