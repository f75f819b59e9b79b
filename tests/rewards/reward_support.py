from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from roll.rewards import Grade, RewardRequest, Rubric, Verdict, Verifier


def asked(response: str, ground_truth: str | None = None, **changes: Any) -> RewardRequest:
    given = {"messages": [{"role": "user", "content": "What is it?"}], "response": response}
    return RewardRequest(**{**given, "ground_truth": ground_truth, **changes})


def verdict(verifier: Verifier, request: RewardRequest) -> Verdict:
    async def run() -> Verdict:
        try:
            return await verifier(request)
        finally:
            if hasattr(verifier, "close"):
                await verifier.close()

    return asyncio.run(run())


def grades(rubric: Rubric, *requests: RewardRequest) -> list[Grade]:
    async def run() -> list[Grade]:
        try:
            return await asyncio.gather(*(rubric.grade(request) for request in requests))
        finally:
            await rubric.close()

    return asyncio.run(run())


Answer = tuple[int, Any]


class Server:
    """What a local HTTP server was asked; ``answer`` maps the number of the request and its body to status and JSON."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []


@contextmanager
def serving(answer: Callable[[int, Any], Answer]) -> Iterator[Server]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = len(server.bodies)
                server.bodies.append(body)
                server.headers.append({key.lower(): value for key, value in self.headers.items()})
                server.paths.append(self.path)
            status, value = answer(number, body)
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
