"""A server of the protocol in a thread, and Tinker's own client of it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
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

_CLIENTS: defaultdict[str, list[tinker.ServiceClient]] = defaultdict(list)
"""Those of each server; they have tasks that go on writing to it, and when it is gone about its silence."""


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
    """Serve until the block ends, and close its clients; yields the address."""
    listener = listen(HOST, 0)
    app = Service(clients, KEY).app
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://{HOST}:{listener.getsockname()[1]}"
    try:
        yield address
    finally:
        for each in _CLIENTS.pop(address, []):
            each.close("success").result(timeout=30)
        server.should_exit = server.force_exit = True
        thread.join(10)


def client(address: str, key: str = KEY) -> tinker.ServiceClient:
    _CLIENTS[address].append(tinker.ServiceClient(base_url=address, api_key=key))
    return _CLIENTS[address][-1]
