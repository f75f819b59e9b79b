"""A real notebook: the page that is for them, run by Jupyter's own client in Jupyter's own kernel, and interrupted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.e2e.support import ROOT, environment

PAGE = ROOT / "docs" / "python.md"
SECONDS = 120

LONG = """
config = config.model_copy(update={"max_steps": 500, "save_steps": 0, "output_dir": Path("stopped")})
run_agentic(config)
"""

AGAIN = """
config = config.model_copy(update={"max_steps": 0, "eval_steps": 0, "resume_from_checkpoint": True})
print("trained", run_agentic(config).steps)
"""


def test_the_page_for_notebooks_runs_in_one_and_an_interrupt_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="2"))
    train, coin = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    # What a notebook often has done before: torch is loaded, and a loop runs.
    first = "import asyncio, torch\nfrom pathlib import Path\ntorch.ones(9) @ torch.ones(9)\nasyncio.get_running_loop()"
    cells = [nbformat.v4.new_code_cell(text) for text in (first, train, LONG, AGAIN, coin)]
    asyncio.run(_execute(cells, tmp_path))

    text = _text(cells[1])
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", text)  # colours at most: nothing takes a terminal over
    assert [f"step {step}/6" in text for step in range(1, 7)] == [True] * 6
    before, after = (float(share) for share in text.rstrip().splitlines()[-1].split(" → "))
    assert after > before + 0.2
    assert "train_state.pt" in {path.name for path in (tmp_path / "stopped" / "checkpoints").glob("*/*")}
    error = next(output for output in cells[2].outputs if output.output_type == "error")
    assert error.ename == "KeyboardInterrupt" and "The newest checkpoint is stopped/checkpoints/step=" in error.evalue
    assert re.search(r"trained [1-9]", _text(cells[3]))
    assert not [output for output in cells[4].outputs if output.output_type == "error"]


async def _execute(cells: Sequence[Any], folder: Path) -> None:
    """Execute the cells in one kernel; the third is interrupted as the button of a notebook does it."""
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}})
    async with client.async_setup_kernel():
        for index, cell in enumerate(cells):
            running = asyncio.ensure_future(client.async_execute_cell(cell, index))
            if cell.source != LONG:
                await running
                continue
            while not running.done() and not re.search(r"step +2/", _text(cell)):
                await asyncio.sleep(0.2)
            await client.km.interrupt_kernel()  # type: ignore[union-attr]
            with pytest.raises(CellExecutionError):
                await running


def _text(cell: Any) -> str:
    """What a cell has written so far."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")
