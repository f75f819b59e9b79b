"""A collector of OpenTelemetry, made here of the messages of the official package ``opentelemetry-proto``."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest], list[dict[str, str]]]]:
    """Yield the address of a collector, and what it was sent: requests and their headers."""
    requests: list[ExportTraceServiceRequest] = []
    headers: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            requests.append(ExportTraceServiceRequest.FromString(body))
            headers.append(dict(self.headers))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", requests, headers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
