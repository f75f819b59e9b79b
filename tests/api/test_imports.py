"""``import roll`` is light: what it offers is imported when it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import roll
import roll.config

ASKED = """
import sys, time
before, began = set(sys.modules), time.process_time()
import roll
spent = time.process_time() - began
assert sorted(set(sys.modules) - before - {"importlib", "typing"}, key=str), "nothing was imported"
print(spent, *sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
dir(roll)
assert not {"torch", "transformers", "ray", "pyarrow", "omegaconf", "pydantic", "rich"} & set(sys.modules)
"""


@pytest.mark.processes
def test_importing_roll_takes_next_to_no_time_and_imports_nothing_but_itself() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    spent, *imported = done.stdout.split()
    assert float(spent) < 0.05
    assert "roll" in imported and {name for name in imported if name not in sys.stdlib_module_names} == {"roll"}


@pytest.mark.processes
@pytest.mark.parametrize("package", ["roll.rewards", "roll.rendering", "roll.tracking"])
def test_what_starts_in_many_processes_reads_no_keys(package: str) -> None:
    code = f"import sys, {package}; print(*{{'pydantic', 'omegaconf', 'numpy'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


@pytest.mark.parametrize("package", [roll, roll.config], ids=lambda package: package.__name__)
def test_what_type_checkers_see_is_what_is_offered(package: ModuleType) -> None:
    assert package.__file__
    seen = {
        name.asname: block.module
        for node in ast.parse(Path(package.__file__).read_text()).body
        if isinstance(node, ast.If)
        for block in node.body
        if isinstance(block, ast.ImportFrom)
        for name in block.names
    }
    assert seen == package._FROM
    assert all(hasattr(package, name) for name in seen)


def test_everything_that_it_offers_is_there_and_named_in_its_completion() -> None:
    offered = [name for name in roll._FROM if callable(getattr(roll, name))]
    assert {"train", "open_run", "load_policy", "evaluate"} <= set(offered) and set(offered) <= set(dir(roll))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = roll.trian  # type: ignore[attr-defined]
