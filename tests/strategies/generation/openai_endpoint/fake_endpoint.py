"""A fake of an OpenAI-compatible server, for its faults; real servers are in tests/integration."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What a server may do instead of answering."""

    status: int = 200
    content: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class FakeEndpoint:
    """What the server was asked, and what it answers: a text, or a fault, for the number of a request and its body."""

    answer: Callable[[int, Body], str | Fault] = lambda number, body: "hello"
    models: tuple[str, ...] | None = ("policy-1",)
    key: str | None = None
    bodies: list[Body] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(endpoint: FakeEndpoint) -> Iterator[FakeEndpoint]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self._admitted():
                return
            if self.path != "/v1/models" or endpoint.models is None:
                self._reply(Fault(404, b'{"detail": "Not Found"}'))
            else:
                listed = [{"id": name, "object": "model"} for name in endpoint.models]
                self._reply(Fault(content=json.dumps({"object": "list", "data": listed}).encode()))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self._admitted():
                return
            known = endpoint.models is None or body["model"] in endpoint.models
            if self.path != "/v1/chat/completions" or not known:
                self._reply(Fault(404, b'{"error": {"message": "The model does not exist."}}'))
                return
            with lock:
                number = len(endpoint.bodies)
                endpoint.bodies.append(body)
            said = endpoint.answer(number, body)
            if isinstance(said, str):
                choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
                said = Fault(content=json.dumps({"choices": [choice]}).encode())
            self._reply(said)

        def _admitted(self) -> bool:
            if endpoint.key is None or self.headers["authorization"] == f"Bearer {endpoint.key}":
                return True
            self._reply(Fault(401, b'{"error": {"message": "Incorrect API key provided."}}'))
            return False

        def _reply(self, fault: Fault) -> None:
            time.sleep(fault.seconds)
            try:
                self.send_response(fault.status)
                for name, value in {"content-length": str(len(fault.content)), **fault.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(fault.content)
            except (BrokenPipeError, ConnectionResetError):
                pass  # who asked has given up

        def log_message(self, *arguments: Any) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        http.shutdown()
        http.server_close()
