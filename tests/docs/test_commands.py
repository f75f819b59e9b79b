"""Every command on the pages works: it is started up to where a model would load, or read by its program's parser."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from docs_support import KINDS, PAGES, ROOT, Block, blocks, commands, shipped, write_record
from typer.main import get_command

from roll.cli.app import app
from roll.config import RLConfig
from roll.envs import ENV_TYPES, TAGS
from roll.models.toy import build
from roll.pipelines.run.life_cycle import is_due
from tests import programs
from tests.rings import exhaustive_but

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXAMPLES = ROOT / "examples"
BLOCKS = blocks("bash")
TARGETS = set("setup quick test test-all check vllm sglang test-sglang smollm agents".split())


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RLConfig]:
    """Configurations of the runs that a command starts: checked as a run checks them, and then not run."""
    from roll.pipelines import agentic, evaluation, rlvr

    runs: list[RLConfig] = []
    toys = ("toy", "toy_math", "toy_sokoban")

    def recorder(check: Callable[[Any], Any]) -> Callable[[Any], None]:
        def record(config: RLConfig) -> None:
            runs.append(config)
            engines = {config.actor_train.strategy_args.strategy_name, config.actor_infer.strategy_args.strategy_name}
            here = config.cluster == "local" and not engines & {"megatron_train", "sglang"}
            if config.pretrain in toys and here:  # the others want a download, a cluster, a GPU or their own packages
                check(config)

        return record

    monkeypatch.setattr(agentic.AgenticPipeline, "start", recorder(agentic.check_agentic))
    monkeypatch.setattr(rlvr.RlvrPipeline, "start", recorder(rlvr.check_rlvr))
    monkeypatch.setattr(evaluation, "run_evaluation", recorder(lambda config: None))
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "benchmarks", "scripts", "tests", "roll", "Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    return runs


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::roll.config.ConfigWarning")
@pytest.mark.parametrize("block", exhaustive_but(BLOCKS, *(b for b in BLOCKS if b.page == "README.md")), ids=str)
def test_the_commands_of_the_page_are_understood(block: Block, started: list[RLConfig], tmp_path: Path) -> None:
    _write_named_files(block.page, tmp_path)
    for words in commands(block):
        check_command(words, started)


def check_command(words: list[str], started: list[RLConfig]) -> None:
    """Try a command as far as this machine can: a program, option or file that is not there is a failure."""
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    program = Path(words[0]).name
    assert program in PROGRAMS, f"no way to check {program!r}: add one to PROGRAMS"
    PROGRAMS[program](words[1:], started)
    for word in words:
        check_run_path(word.partition("=")[2] or word)


def _python(words: list[str], started: list[RLConfig]) -> None:
    if words[0] == "-m":
        module, rest = words[1], words[2:]
        assert module in MODULES, f"no way to check python -m {module}: add one to MODULES"
        MODULES[module](rest)
    elif words[0].startswith("examples/start_") or words[0] == "examples/custom_env.py":
        _start(words, started)
    elif not Path(words[0]).resolve().is_relative_to(ROOT):
        # A program that the page shows: tests of its own run it.
        compile(Path(words[0]).read_text(encoding="utf-8"), words[0], "exec")
    else:
        help_ = _help(sys.executable, str(Path(words[0]).resolve()))
        assert all(option in help_ for option in words if option.startswith("--"))


@cache
def _help(*program: str) -> str:
    """Return what a program says of its options; many pages name the same."""
    words = [*program, "--help"]
    if programs.can_fork(words):
        answer = programs.run(words, ROOT, {**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)
    else:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def _start(words: list[str], started: list[RLConfig]) -> None:
    """Start an example program; its configuration is loaded and checked, and the run is recorded instead of made."""
    before = len(started)
    with pytest.MonkeyPatch.context() as patch, ENV_TYPES.restored(), TAGS.restored():
        patch.setattr(sys, "argv", words)
        runpy.run_path(words[0], run_name="__main__")
    if "--cfg" not in words:
        jobs = max((word.count(",") + 1 for word in words if "=" in word), default=1) if "--multirun" in words else 1
        assert len(started) == before + jobs


def _make(words: list[str], started: list[RLConfig]) -> None:
    """Ask make what it would do, and check that too."""
    answer = subprocess.run(["make", "--dry-run", *words], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    lines = [line for line in answer.stdout.splitlines() if line.startswith(".venv/bin/python examples/")]
    for line in lines:
        _start(line.split()[1:], started)
    assert lines or words[0] in TARGETS


def _pip(words: list[str], _: list[RLConfig]) -> None:
    """A wheel of an extra of ours, or of a package of a range that an extra has."""
    for extra in re.findall(r"roll-rl\[([\w,]+)\]", " ".join(words)):
        assert set(extra.split(",")) <= set(PROJECT["optional-dependencies"])


def _help_has(*program: str) -> Callable[[list[str], list[RLConfig]], None]:
    def check(words: list[str], _: list[RLConfig]) -> None:
        sub = [word for word in words[:1] if not word.startswith("-")]
        help_ = _help(str(Path(sys.executable).parent / program[0]), *sub)
        assert all(word.partition("=")[0] in help_ for word in words if word.startswith("--"))

    return check


def _nothing_of_ours(words: list[str], _: list[RLConfig]) -> None:
    """A program of the system whose arguments are paths: those of runs are checked by ``check_run_path``."""


def _roll(words: list[str], started: list[RLConfig]) -> None:
    """Parse the words of `roll`, down to the command that they name, without calling it."""
    command: Any = get_command(app)
    context = None
    while True:
        context = command.make_context(command.name or "roll", list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


PROGRAMS: dict[str, Callable[[list[str], list[RLConfig]], None]] = {
    "make": _make,
    "python": _python,
    "pip": _pip,
    "roll": _roll,
    "ray": _help_has("ray"),
    "tensorboard": _help_has("tensorboard"),
    "pre-commit": _help_has("pre-commit"),
    "source": _nothing_of_ours,
    "xdg-open": _nothing_of_ours,
    "ls": _nothing_of_ours,
}


def _sandbox(words: list[str]) -> None:
    assert words == []  # run for real by tests/sandbox


def _pytest(words: list[str]) -> None:
    assert all((ROOT / word).exists() for word in words if not word.startswith("-"))


def _build_policy(words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made: list[Path] = []
        patch.setattr(build, "build", lambda directory, *_, **__: made.append(directory))
        patch.setattr(sys, "argv", ["build", *words])
        build.main()
    assert made


MODULES: dict[str, Callable[[list[str]], None]] = {
    "roll.sandbox": _sandbox,
    "roll.models.toy.build": _build_policy,
    "pytest": _pytest,
}


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_runs_are_those_that_the_shipped_configurations_write(page: Path) -> None:
    for path in re.findall(r"output/[\w./=*-]*[\w*]", page.read_text(encoding="utf-8")):
        check_run_path(path)


def check_run_path(path: str) -> None:
    """Refuse a path below ``output/NAME`` that a run of the shipped configuration NAME does not leave behind."""
    match = re.fullmatch(r"output/(\w+)/(\w+)(?:/(.*))?", path)
    if match is None or match[1] not in KINDS:
        return
    config, part, rest = shipped(match[1]), match[2], match[3] or ""
    assert part in ("logs", "render", "checkpoints", "trajectories", "tune"), path
    step = re.search(r"step=(\d+)", rest)
    if step is None:
        return
    number = int(step[1])
    if part == "checkpoints":
        saved = [n for n in range(1, config.max_steps + 1) if is_due(n, config.save_steps, config.max_steps)]
        assert number in saved[-config.checkpoint_config.keep :], f"{path} is not kept by {match[1]}"
    elif part == "trajectories" and rest.startswith("val_"):
        assert is_due(number, config.eval_steps, config.max_steps), f"{path} is not written by {match[1]}"


def _write_named_files(page: str, folder: Path) -> None:
    """Write the files that a page tells the reader to write: ``my_configs/qwen.yaml`` by its ``exp_name``.

    A file may say its name in its first line, ``# mine.yaml``.

    And the record that a run leaves behind, with which it can be started again.
    """
    write_record(folder)
    for block in blocks("yaml"):
        name = re.search(r"^exp_name: (\w+)", block.text, re.MULTILINE)
        if block.page == page and name:
            (folder / "my_configs").mkdir(exist_ok=True)
            for stem in (name[1], "mine"):
                # What the page leaves to the reader (RLVR's has no defaults list) is a file of its own.
                text = block.text if "defaults:" in block.text else f"defaults: [_self_]\n{block.text}"
                (folder / "my_configs" / f"{stem}.yaml").write_text(text, encoding="utf-8")
    for block in (*blocks("yaml"), *blocks("python")):
        name = re.match(r"# ([\w/]+\.\w+)\n", block.text)
        if block.page == page and name and not (folder / name[1]).exists():  # the first section's, of several
            (folder / name[1]).write_text(block.text, encoding="utf-8")
