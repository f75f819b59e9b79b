"""The claims of papers: their pages hold what was measured, and their program runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import programs

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "claims"
sys.path.append(str(FOLDER))

from claim import BEGIN, END, PAGES  # noqa: E402
from claims import CLAIMS  # noqa: E402


@pytest.mark.parametrize("name", CLAIMS)
def test_a_page_holds_the_table_of_its_figures(name: str) -> None:
    claim = CLAIMS[name]
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"{BEGIN}\n\n{claim.table()}\n\n{END}" in page
    figures = claim.read()
    assert list(figures) == list(claim.arms)
    assert len({tuple(seeds) for seeds in figures.values()}) == 1, "the arms have seeds of their own"


@pytest.mark.exhaustive
def test_a_claim_is_tried_with_one_command(tmp_path: Path) -> None:
    words = [sys.executable, str(FOLDER / "run.py"), "length_bias", "--seeds", "1", "--folder", str(tmp_path)]
    words += ["--set", "max_steps=1", "eval_steps=1", "rollout_batch_size=2", "validation.data_args.max_samples=4"]
    done = programs.run(words, tmp_path, {**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "length_bias, GRPO, seed 1: {" in done.stdout and "length_bias, Dr. GRPO, seed 1: {" in done.stdout
