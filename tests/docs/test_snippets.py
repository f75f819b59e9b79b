"""Python on the pages runs as it stands; what needs several ranks is checked against the signatures it calls."""

from __future__ import annotations

import ast
import asyncio
import builtins
import functools
import importlib
import inspect
import json
import tomllib
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from docs_support import ROOT, Block, blocks, write_record

from roll.algorithms import registry
from roll.config.strategies import is_installed
from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.store import trajectory_path, write_trajectories

GIVEN_BY_THE_READER: dict[str, set[str]] = {
    "docs/deepspeed.md": {"rows_of_this_rank", "loss"},
    "docs/megatron.md": {"rows_of", "loss"},
    "docs/train_strategies.md": {"rows_of_this_rank", "loss"},
    "docs/cluster.md": {"config", "batch", "step", "TrainWorker", "EngineWorker", "EnvWorker"},
}
"""Pages whose snippets run on several ranks, and the names that they leave to the reader."""

RUN_ELSEWHERE = {
    "docs/rewards.md": "tests/rewards/test_rewards_page.py",
    "docs/data.md": "tests/data/test_data_page.py",
    "docs/python.md": "tests/e2e/test_notebook.py",
    "docs/extending.md": "tests/docs/test_extending.py",
    "docs/training_service.md": "tests/service/test_tinker_client.py",
    **{f"docs/from_{name}.md": "tests/docs/test_from_elsewhere.py" for name in ("trl", "verl", "roll")},
}

ELSEWHERE = {*GIVEN_BY_THE_READER, *RUN_ELSEWHERE}


def snippets(pages: set[str], *, inside: bool) -> list[Block]:
    return [block for block in blocks("python") if (block.page in pages) is inside]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what runs of the shipped configurations leave for the snippets to read."""
    for name in ("sokoban", "eval_math"):
        turn = Turn(
            prompt_ids=[1], completion_ids=[2], logprobs=[-0.1], policy_version=(0, 0), observation="", response=""
        )
        won = Trajectory(tag="SimpleSokoban", group_id="g0", episode=0, seed=1, initial_hash="a", turns=[turn])
        won.status, won.score = Status.COMPLETED, 1.0
        path = trajectory_path(tmp_path / "output" / name, 1, "train")
        write_trajectories(path, [won], step=1, phase="train", run=name)
        logs = tmp_path / "output" / name / "logs"
        logs.mkdir()
        (logs / "metrics.jsonl").write_text(json.dumps({"step": 0, "val/success": 0.5}) + "\n", encoding="utf-8")
    write_record(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def names_of_the_reader() -> dict[str, Any]:
    """What a reader of a page has at hand: a batch of two responses, and options of a configuration."""
    mask = torch.tensor([[False, True, True], [False, True, False]])
    return {
        "mask": mask,
        "scores": torch.tensor([1.0, 0.0]),
        "ids": torch.tensor([0, 0]),
        "settings": {"epsilon": 1e-6},
    }


@pytest.mark.processes
@pytest.mark.usefixtures("folder", "algorithms_as_they_were")
@pytest.mark.parametrize(
    "page", sorted({b.page for b in snippets({*GIVEN_BY_THE_READER, *RUN_ELSEWHERE}, inside=False)})
)
def test_the_python_of_the_page_runs_as_it_stands(page: str, names_of_the_reader: dict[str, Any]) -> None:
    names: dict[str, Any] = {"__name__": "page", **names_of_the_reader}
    for block in blocks("python"):
        if block.page == page and "run_agentic" not in block.text:  # that one is run by tests/e2e
            code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)  # our own documentation
            if inspect.isawaitable(running):
                asyncio.run(_to_its_end(running))


async def _to_its_end(running: Awaitable[Any]) -> None:
    await running


@pytest.fixture
def algorithms_as_they_were() -> Iterator[None]:
    """Forget the estimators and losses that a page registers."""
    with registry.ADVANTAGES.restored(), registry.LOSSES.restored():
        yield


@pytest.mark.long
@pytest.mark.parametrize("block", snippets(set(GIVEN_BY_THE_READER), inside=True), ids=str)
def test_what_the_snippet_imports_is_there_and_takes_what_it_is_given(block: Block) -> None:
    tree = ast.parse(block.text)
    known = _imported(block.page)
    given = {*GIVEN_BY_THE_READER[block.page], *dir(builtins), *known, *_assigned(tree)}
    unknown = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - given
    assert not unknown
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    bound = 0
    for call in calls:
        called = _look_up(call.func, known)
        if called is not None:
            keywords = {word.arg: None for word in call.keywords if word.arg}
            parts = [None] * len(call.args)
            if called is functools.partial:
                called, parts = _look_up(call.args[0], known), parts[1:]
            inspect.signature(called).bind_partial(*parts, **keywords)
            bound += 1
    assert bound


def _imported(page: str) -> dict[str, Any]:
    """Return what the imports of a page bring, all snippets together: a reader reads them in order."""
    found: dict[str, Any] = {}
    for block in blocks("python"):
        if block.page == page:
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    if ".megatron" in node.module and not is_installed("megatron.core"):
                        pytest.skip("needs Megatron-Core: pip install 'roll-rl[megatron]'")
                    module = importlib.import_module(node.module)
                    found |= {alias.name: getattr(module, alias.name) for alias in node.names}
                elif isinstance(node, ast.Import):
                    found |= {alias.asname or alias.name: importlib.import_module(alias.name) for alias in node.names}
    return found


def _assigned(tree: ast.AST) -> set[str]:
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def _look_up(function: ast.expr, known: dict[str, Any]) -> Any:
    """Return what an expression like ``WorkerSpec`` or ``dist.init_process_group`` calls, ``None`` if a local name."""
    if isinstance(function, ast.Name):
        return known.get(function.id)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in known:
        return getattr(known[function.value.id], function.attr)
    return None


@pytest.mark.parametrize("block", [*blocks("json"), *blocks("toml")], ids=str)
def test_data_on_the_pages_can_be_read(block: Block) -> None:
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        try:
            assert json.loads(block.text)
        except json.JSONDecodeError:  # one row a line
            assert all(json.loads(line) for line in block.text.splitlines())


def test_pages_that_other_tests_run_are_named_there() -> None:
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
