"""The tools that run programs and search texts."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from roll.tools import ToolConfigError, UnavailableError, WrongCallError, make_tools


def run(name: str, arguments: dict[str, object], **options: object) -> str:
    (tool,) = make_tools([{name: options}])
    return tool.run(arguments)


@pytest.mark.processes
def test_python_returns_what_is_printed_and_the_last_value() -> None:
    assert run("python", {"code": "print('a')\nx = 6\nx * 7"}) == "a\n42"
    assert run("python", {"code": "x = 1"}) == "(it printed nothing)"
    assert run("python", {"code": "print(1)\n1/0"}).endswith("ZeroDivisionError: division by zero")
    assert "SyntaxError" in run("python", {"code": "def"})
    assert "stopped: it took longer than 0.5 s" in run("python", {"code": "while True: pass"}, seconds=0.5)
    assert "Error" in run("python", {"code": "import socket; socket.create_connection(('127.0.0.1', 1))"})


@pytest.mark.processes
def test_python_keeps_names_for_an_episode_where_it_is_told_to() -> None:
    (kept,), (other,) = make_tools([{"python": {"keep": True}}]), make_tools([{"python": {"keep": True}}])
    assert kept.run({"code": "print('once')\nx = 3\ndef double(y): return 2 * y"}) == "once"
    assert "ZeroDivisionError" in kept.run({"code": "x = 9; 1/0"})
    assert kept.run({"code": "double(x)"}) == "6"
    assert "NameError" in other.run({"code": "x"})
    assert "NameError" in run("python", {"code": "x"})


def corpus(folder: Path) -> Path:
    rows = [
        {"title": "Lima", "text": "Lima is the capital of Peru."},
        {"text": "Paris is the capital of France."},
        {"text": "Boxes are pushed in Sokoban, and never pulled."},
    ]
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_search_asks_a_server_in_the_form_of_search_r1() -> None:
    """The server is a fake in this process; its answers have the forms that such servers give."""
    answers: list[Any] = [
        (200, {"result": [[{"document": {"id": "1", "contents": "Lima is in Peru."}, "score": 2.5}]]}),
        (200, {"result": [[{"title": "Peru", "text": "Its capital is Lima."}, "Quito"]]}),
        (200, {"result": [[]]}),
        (503, "busy"),
        (422, "no field queries"),
        (200, {"found": []}),
    ]
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, answer = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tool,) = make_tools([{"search": {"url": f"http://127.0.0.1:{server.server_port}/retrieve", "results": 2}}])
        assert tool.risk == "network" and tool.lane is None
        assert tool.run({"query": "Peru"}) == "[1] Lima is in Peru."
        assert asked == [{"queries": ["Peru"], "topk": 2, "return_scores": True}]
        assert tool.run({"query": "Peru"}) == "[1] Peru\nIts capital is Lima.\n[2] Quito"
        assert tool.run({"query": "Peru"}) == "Nothing was found."
        with pytest.raises(UnavailableError, match="503"):
            tool.run({"query": "Peru"})
        for told in ("422", "expected .*result"):
            with pytest.raises(RuntimeError, match=told):
                tool.run({"query": "Peru"})
        server.shutdown()
    with pytest.raises(UnavailableError, match="ConnectError"):
        tool.run({"query": "Peru"})


def test_search_returns_the_passages_that_suit_best(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    path = str(corpus(tmp_path))
    assert run("search", {"query": "capital of Peru"}, corpus=path, results=2) == (
        "[1] Lima\nLima is the capital of Peru.\n[2] Paris is the capital of France."
    )
    assert run("search", {"query": "sokoban"}, corpus=path) == "[1] Boxes are pushed in Sokoban, and never pulled."
    assert run("search", {"query": "quantum"}, corpus=path) == "Nothing was found."
    with pytest.raises(WrongCallError, match="no word"):
        run("search", {"query": "  ?"}, corpus=path)


def test_a_corpus_that_cannot_be_read_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ToolConfigError, match="no-such-file"):
        make_tools([{"search": {"corpus": str(tmp_path / "no-such-file")}}])
    with pytest.raises(ToolConfigError, match="either corpus"):
        make_tools(["search"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"title": "x"}')
    with pytest.raises(ToolConfigError, match="line 1: expected a JSON object with `text`"):
        make_tools([{"search": {"corpus": str(bad)}}])
