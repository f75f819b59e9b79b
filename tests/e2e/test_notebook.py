"""A real notebook: the shipped one and the page about them, in Jupyter's own client and one kernel, and interrupted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.e2e.support import ROOT, environment

pytestmark = pytest.mark.exhaustive

PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_run.ipynb"
SECONDS = 400

# What a notebook often has done before: torch is loaded, and a loop runs.
BEFORE = "import asyncio, torch\nfrom pathlib import Path\ntorch.ones(9) @ torch.ones(9)\nasyncio.get_running_loop()"

LONG = """
changes = {"max_steps": 500, "save_steps": 0, "eval_steps": 0, "output_dir": Path("stopped")}
config = config.model_copy(update=changes)
run_agentic(config)
"""

AGAIN = """
config = config.model_copy(update={"max_steps": 0, "resume_from_checkpoint": True})
print("trained", run_agentic(config).steps)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def cells(folder: Path) -> dict[str, Any]:
    """The cells of the notebook, then those of the rest of the page, and around it what a person does; all ran."""
    page = re.findall(r"```python\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    first = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert page[:3] == first, "the notebook has the first three programs of the page: change both"
    *_, two_steps, coin = page
    sources = dict(zip(("trained", "looked", "answered"), first, strict=True))
    sources |= {"before": BEFORE, "two steps": two_steps, "long": LONG, "again": AGAIN, "coin": coin}
    made = {name: nbformat.v4.new_code_cell(source) for name, source in sources.items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.environ", environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"))
        asyncio.run(_execute(made.values(), folder))
    return made


def test_the_first_notebook_trains_a_policy_looks_at_what_came_of_it_and_lets_it_answer(cells: dict[str, Any]) -> None:
    assert not [output for cell in cells.values() for output in cell.outputs if _failed(output) and cell.source != LONG]
    trained, looked, answered = (cells[name] for name in ("trained", "looked", "answered"))
    [drawn] = [output for output in trained.outputs if output.output_type == "display_data"]  # one, drawn anew
    assert "step 4/4  ████" in drawn.data["text/plain"] and "val/success" in drawn.data["text/plain"]
    curve = re.search(r"val/success  (\d\.?\d*) \S\S (\d\.?\d*)", _text(trained))
    assert curve is not None and float(curve[2]) > float(curve[1]) + 0.2
    assert "finished 4 output/frozen_lake/checkpoints/step=000004" in _text(looked)
    assert re.search(r"sampled  success 0\.\d+ ± 0\.\d+ \(32 episodes\)", _text(answered))


def test_a_pipeline_runs_beside_a_loop_and_a_torch_that_were_there_before(cells: dict[str, Any]) -> None:
    text = _text(cells["two steps"])
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", text)  # colours at most: nothing takes a terminal over
    assert "step 1/2" in text and "step 2/2" in text
    assert re.search(r"^0\.\d+ → 0\.\d+$", text.rstrip().splitlines()[-1])


def test_an_interrupt_saves_and_the_message_says_how_to_go_on(cells: dict[str, Any], folder: Path) -> None:
    assert "train_state.pt" in {path.name for path in (folder / "stopped" / "checkpoints").glob("*/*")}
    [error] = [output for output in cells["long"].outputs if _failed(output)]
    assert error.ename == "KeyboardInterrupt" and "The newest checkpoint is stopped/checkpoints/step=" in error.evalue
    assert re.search(r"trained [1-9]", _text(cells["again"]))


async def _execute(cells: Iterable[Any], folder: Path) -> None:
    """Execute the cells in one kernel; the long one is interrupted as the button of a notebook does it."""
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}})
    async with client.async_setup_kernel():
        for index, cell in enumerate(notebook.cells):
            running = asyncio.ensure_future(client.async_execute_cell(cell, index))
            if cell.source != LONG:
                await running
                continue
            while not running.done() and not re.search(r"step +1/", _text(cell)):
                await asyncio.sleep(0.2)
            await client.km.interrupt_kernel()  # type: ignore[union-attr]
            with pytest.raises(CellExecutionError):
                await running


def _failed(output: Any) -> bool:
    return bool(output.output_type == "error")


def _text(cell: Any) -> str:
    """What a cell has written so far."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")
