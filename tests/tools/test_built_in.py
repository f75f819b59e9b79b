"""The tools that run programs and search texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.tools import ToolConfigError, WrongCallError, make_tools


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
    with pytest.raises(ToolConfigError, match="'corpus'"):
        make_tools(["search"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"title": "x"}')
    with pytest.raises(ToolConfigError, match="line 1: expected a JSON object with `text`"):
        make_tools([{"search": {"corpus": str(bad)}}])
