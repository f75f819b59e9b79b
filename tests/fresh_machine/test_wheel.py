"""What a newcomer does: install the wheel with the core alone, in an empty folder, and train, evaluate, check, ask."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import urljoin

import pytest
from packaging.metadata import Metadata

from roll import __version__ as roll_version

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("max_steps=1", "eval_steps=0", "rollout_batch_size=16", "train_env_manager.env_groups=2")
pytestmark = [pytest.mark.processes, pytest.mark.exhaustive]

# Torch, and what torch itself requires.
_OF_TORCH = ("torch", "functorch", "torchgen", "sympy", "mpmath", "networkx", "setuptools", "pip", "_distutils_hack")


def said(words: list[str | Path], folder: Path, code: int = 0) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    told = [str(word) for word in words]
    done = subprocess.run(told, cwd=folder, env=variables, capture_output=True, text=True, timeout=1200)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from that."""
    out = tmp_path_factory.mktemp("distributions")
    build(ROOT, out)
    return out


def build(source: Path, out: Path, *options: str) -> None:
    said([sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out, source], out)


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("roll_rl-*.whl")
    return found


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder beside an environment that has the wheel and its core dependencies."""
    folder = tmp_path_factory.mktemp("machine")
    said([sys.executable, "-m", "venv", folder / "venv"], folder)
    (folder / "empty").mkdir()
    # Bytecode of all of PyTorch takes as long as everything else: here only what a run imports has some.
    python = folder / "venv/bin/python"
    said([python, "-m", "pip", "install", "--no-compile", "--quiet", "-c", ROOT / "constraints.txt", wheel], folder)
    said([python, "-c", "import roll.pipelines.agentic, roll.pipelines.rlvr"], folder)
    return folder


def roll(machine: Path, *words: str, code: int = 0) -> str:
    return said([machine / "venv/bin/roll", *words], machine / "empty", code)


@pytest.fixture(scope="module")
def trained(machine: Path) -> Callable[[str], tuple[str, float]]:
    """Each toy policy trained once: what the run said, and its seconds of processor until it had ended."""
    words = {"sokoban": SMALL, "rlvr_math": (*SMALL[:2], "rollout_batch_size=4")}

    def train(name: str) -> tuple[str, float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = roll(machine, "train", name, *words[name])
        return out, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime

    return cache(train)


def test_the_wheel_holds_presets_problems_and_toy_policies_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "presets/config/sokoban.yaml",
        "presets/data/arithmetic_train.jsonl",
        "models/toy/weights/config.json",
    ):
        assert names.count(f"roll/{name}") == 1
    assert not [name for name in names if not name.startswith(("roll/", "roll_rl-"))]


def test_tools_of_the_package_index_find_nothing_wrong(distributions: Path, wheel: Path) -> None:
    said([sys.executable, "-m", "twine", "check", "--strict", *distributions.iterdir()], distributions)
    settings = ("--config", ROOT / "pyproject.toml", "--package", ROOT / "roll", "--package-omit", "__pycache__,*.pyc")
    said([sys.executable, "-m", "check_wheel_contents", *settings, wheel], distributions)


def test_the_wheel_of_the_sources_is_the_wheel_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    # A copy: what an earlier build left in the repository would get into the wheel.
    shutil.copytree(ROOT / "roll", tmp_path / "copy" / "roll", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "copy")
    (tmp_path / "out").mkdir()
    build(tmp_path / "copy", tmp_path / "out", "--wheel")
    (direct,) = (tmp_path / "out").glob("*.whl")
    assert contents(wheel) == contents(direct)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    packed = contents(wheel)
    (name,) = (name for name in packed if name.endswith(".dist-info/METADATA"))
    found = Metadata.from_email(packed[name], validate=True)
    assert (found.name, str(found.version)) == ("roll-rl", roll_version)
    assert found.license_expression == "Apache-2.0" and found.license_files == ["LICENSE"]
    assert packed[name.replace("METADATA", "licenses/LICENSE")] == (ROOT / "LICENSE").read_bytes()
    assert found.description == (ROOT / "README.md").read_text(encoding="utf-8")
    assert found.description_content_type == "text/markdown" and found.summary and found.keywords
    for python in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {python}" in (found.classifiers or [])
        assert found.requires_python is not None and python in found.requires_python
    assert "Typing :: Typed" in (found.classifiers or []) and "roll/py.typed" in packed
    assert packed[name.replace("METADATA", "entry_points.txt")].decode().split() == [
        "[console_scripts]",
        "roll",
        "=",
        "roll.cli.app:main",
    ]


def test_the_core_is_complete_light_and_without_engines(machine: Path) -> None:
    said([machine / "venv/bin/python", "-m", "pip", "check"], machine)
    (packages,) = (machine / "venv/lib").glob("python*/site-packages")
    assert not [name for name in ("ray", "deepspeed", "megatron", "vllm", "peft") if (packages / name).exists()]
    beside = [path for path in packages.iterdir() if not path.name.startswith(_OF_TORCH)]
    files = [file for path in beside for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    # With bytecode, which is left out here and is about as long as what it is compiled from.
    files += [file for file in files if file.suffix == ".py"]
    assert sum(file.stat().st_size for file in files) / 2**20 <= 700


@pytest.mark.parametrize("name", ["sokoban", "rlvr_math"])
def test_both_toy_policies_train_at_once(machine: Path, trained: Callable[[str], tuple[str, float]], name: str) -> None:
    out, seconds = trained(name)
    assert "step 1/1" in out and f"roll train {name} " in out
    assert (machine / "empty" / "output" / name / "checkpoints" / "step=000001" / "hf").is_dir()
    # First step and checkpoint included: about 7, on a machine that is shared.
    assert seconds <= 20


def test_what_was_trained_is_reviewed_and_evaluated_and_configurations_are_checked(
    machine: Path, trained: Callable[[str], tuple[str, float]]
) -> None:
    trained("sokoban")
    assert "16 episodes" in reviewed(machine)
    roll(machine, "view", "output/sokoban", "--export", "review.html")
    assert "SimpleSokoban" in (machine / "empty" / "review.html").read_text(encoding="utf-8")
    levels = ("val_env_manager.env_groups=8", "val_batch_size=8")
    roll(machine, "eval", "output/sokoban", "--env", "SimpleSokoban", *levels)
    assert (machine / "empty" / "output" / "eval_SimpleSokoban" / "trajectories").is_dir()
    assert "can be used" in roll(machine, "config", "check", "rlvr_math")
    assert json.loads(roll(machine, "doctor", "--json"))["problems"] == []
    roll(machine, "train", "sokoban", "max_stepz=1", code=2)


def reviewed(machine: Path) -> str:
    """Return the table of episodes as a browser gets it from ``roll view``."""
    words = [machine / "venv/bin/roll", "view", "output/sokoban", "--no-browser"]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with subprocess.Popen(words, cwd=machine / "empty", stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = next(found[1] for line in server.stdout if (found := re.search(r"Open (http\S+)", line)))
        try:
            home = browser.open(address, timeout=60).url  # where the key led
            with browser.open(urljoin(home, "/episodes"), timeout=60) as page:
                return " ".join(re.sub(r"<[^>]+>", " ", page.read().decode()).split())
        finally:
            server.send_signal(signal.SIGINT)


def test_completion_works_in_bash(machine: Path) -> None:
    script = f"""
export PATH={machine / "venv/bin"}:$PATH
eval "$(_ROLL_COMPLETE=source_bash roll)"
COMP_WORDS=(roll train rlvr); COMP_CWORD=2
$(complete -p roll | sed 's/.*-F \\([^ ]*\\).*/\\1/') roll rlvr train
echo "${{COMPREPLY[@]}}"
"""
    assert "rlvr_math" in said(["bash", "-c", script], machine)
