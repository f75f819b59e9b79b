"""The command line of an example script, as a person uses it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig, launch
from roll.config.shipped import shipped_configs
from tests import programs
from tests.rings import exhaustive_but

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "config"

SCRIPT = f"""
from pathlib import Path
from roll.config import launch

def main(config):
    for path in (config.output_dir, config.logs_path, config.render_path):
        path.mkdir(parents=True, exist_ok=True)
    print("RUN", config.max_steps, config.ppo_epochs, config.output_dir, config.logs_path, config.render_path)

if __name__ == "__main__":
    launch(main, config_dir=Path({str(EXAMPLES)!r}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "start.py").write_text(SCRIPT)
    return tmp_path


def start(folder: Path, *arguments: str, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the script by a fork of the warm process, or ``cold`` as a shell does; without PyTorch nothing is warm."""
    return ran("start.py", *arguments, folder=folder, cold=cold)


def ran(*words: str, folder: Path, cold: bool = False) -> subprocess.CompletedProcess[str]:
    if cold or importlib.util.find_spec("torch") is None:
        return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    return programs.run([sys.executable, *words], folder, {**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)


def test_overrides_reach_the_run_and_nothing_is_littered(folder: Path) -> None:
    done = start(folder, "--config-name", "sokoban", "max_steps=5", "ppo_epochs=2", "output_dir=here", cold=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["RUN", "5", "2", "here", "here/logs", "here/render"]
    assert sorted(path.name for path in folder.iterdir()) == ["here", "start.py"]
    assert done.stderr == ""


def test_a_wrong_name_lists_the_close_ones(folder: Path) -> None:
    done = start(folder, "--config-name", "sokobann")
    assert done.returncode == 1
    assert "sokobann" in done.stderr and "Did you mean sokoban" in done.stderr and "frozen_lake" in done.stderr
    assert "deepspeed" not in done.stderr
    assert "Traceback" not in done.stderr and "RUN" not in done.stdout


def test_no_name_lists_all_that_this_program_reads(folder: Path) -> None:
    done = start(folder)
    assert done.returncode == 1
    assert "--config-name" in done.stderr and "sokoban_qwen2.5_0.5b" in done.stderr
    assert "rlvr_math" not in done.stderr + done.stdout and "eval_math" not in done.stderr + done.stdout


def test_a_problem_is_a_message_without_a_traceback(folder: Path) -> None:
    done = start(folder, "--config-name", "sokoban", "max_stepz=5", "train_env_manager.grop_size=2", "mini_batches=x")
    assert done.returncode == 2
    for part in (
        "3 problems",
        "[command line: max_stepz=5]",
        "did you mean max_steps?",
        "train_env_manager.group_size?",
        "whole number",
        str(shipped_configs() / "sokoban.yaml"),
    ):
        assert part in done.stderr
    assert "Traceback" not in done.stderr and "RUN" not in done.stdout


def test_a_file_of_ones_own_is_found_and_its_lines_are_named(folder: Path) -> None:
    (folder / "mine").mkdir()
    own = folder / "mine" / "own.yaml"
    own.write_text("defaults:\n  - sokoban\n  - _self_\nmax_steps: 7\nreference: {}\n")
    done = start(folder, "--config-dir", "mine", "--config-name", "own", "output_dir=here")
    assert done.returncode == 0 and "RUN 7 1" in done.stdout
    assert "Warning: reference" in done.stderr and "mine/own.yaml:5" in done.stderr

    own.write_text("defaults:\n  - sokoban\n  - _self_\nmax_steps: 7\nrewardd: {}\n")
    done = start(folder, "--config-dir", "mine", "--config-name", "own")
    assert done.returncode == 2 and "mine/own.yaml:5" in done.stderr and "did you mean reward?" in done.stderr

    own.write_text("max_steps: [1\n")
    done = start(folder, "--config-dir", "mine", "--config-name", "own")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "[mine/own.yaml:2]\n    is not valid YAML: expected" in done.stderr


def test_the_composed_configuration_can_be_shown(folder: Path) -> None:
    done = start(folder, "--config-name", "sokoban", "--cfg", "job", "max_steps=3")
    assert done.returncode == 0 and "max_steps: 3" in done.stdout and "RUN" not in done.stdout


def test_help_says_how_to_start_and_offers_what_this_program_reads(folder: Path) -> None:
    done = start(folder, "--help")
    assert done.returncode == 0
    assert "--config-name NAME" in done.stdout and "frozen_lake" in done.stdout and "sokoban" in done.stdout
    assert "rlvr_math" not in done.stdout + done.stderr and "eval_math" not in done.stdout + done.stderr
    assert "{}" not in done.stdout


@pytest.mark.parametrize(
    "words",
    exhaustive_but(
        [["--help"], ["--config-name", "sokoban", "--cfg", "job"]], ["--config-name", "sokoban", "--cfg", "job"]
    ),
    ids=" ".join,
)
def test_whoever_reads_the_output_may_leave_early(folder: Path, words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "start.py", *words]
    done = subprocess.run(command, cwd=folder, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_every_job_of_a_sweep_has_its_own_folders(folder: Path) -> None:
    done = start(
        folder, "--config-name", "sokoban", "max_steps=1,2", "--multirun", "output_dir=here", "logging_dir=here/log"
    )
    assert done.returncode == 0, done.stderr
    runs = [line.split() for line in done.stdout.splitlines() if line.startswith("RUN")]
    assert [run[1] for run in runs] == ["1", "2"]
    outputs = [Path(run[3]) for run in runs]
    assert [path.name for path in outputs] == ["0", "1"]
    assert all(path.is_relative_to(folder / "here" / "multirun") for path in outputs)
    assert [Path(run[4]) for run in runs] == [path / "log" for path in outputs]
    assert [Path(run[5]) for run in runs] == [path / "render" for path in outputs]


def test_a_run_goes_on_where_the_terminal_lacks_letters(folder: Path) -> None:
    (folder / "start.py").write_text(SCRIPT.replace('"RUN"', '"RUN →"'), encoding="utf-8")
    words = [sys.executable, "start.py", "--config-name", "sokoban", "output_dir=here"]
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(words, cwd=folder, env=latin, capture_output=True, encoding="latin-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RUN -> ")


def test_a_run_goes_on_where_python_leaves_out_assertions(folder: Path) -> None:
    words = [sys.executable, "-O", "start.py", "--config-name", "sokoban", "output_dir=here"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RUN ")


def test_hydras_own_help_is_shown(folder: Path) -> None:
    done = start(folder, "--hydra-help")
    assert done.returncode == 0, done.stderr
    assert "--experimental-rerun" in done.stdout and "start.py -sc install=bash" in done.stdout


def test_options_are_declared_where_python_reads_their_help_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python 3.14 does when an option is declared, under any Python: an older one leaves help alone till then."""

    def check_help(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        seen.append(action.dest)
        assert action.help is None or "%" not in action.help

    seen: list[str] = []
    monkeypatch.setattr(argparse._ActionsContainer, "_check_help", check_help, raising=False)
    add = argparse._ActionsContainer.add_argument

    def add_argument(self: argparse.ArgumentParser, *names: str, **options: Any) -> argparse.Action:
        action = add(self, *names, **options)
        self._check_help(action)  # type: ignore[attr-defined]
        return action

    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", add_argument)
    runs: list[AgenticConfig] = []
    launch(runs.append, config_dir=EXAMPLES, argv=["--config-name", "sokoban", f"output_dir={folder}"])
    assert len(runs) == 1 and "multirun" in seen
    assert argparse._ActionsContainer._check_help is check_help  # type: ignore[attr-defined]


def test_help_with_a_name_shows_the_configuration(folder: Path) -> None:
    done = start(folder, "--config-name", "sokoban", "--help")
    assert (
        done.returncode == 0 and "--config-name NAME" in done.stdout and "adv_estimator: step_reinforce" in done.stdout
    )


def test_the_guides_spelling_of_the_options_works(folder: Path) -> None:
    """A folder that is not found from here is looked for beside the program's own, as in the guide's examples."""
    done = start(folder, "--config_path", "config", "--config_name", "sokoban", "max_steps=3")
    assert done.returncode == 0 and "RUN 3" in done.stdout, done.stderr
    (folder / "mine").mkdir()
    (folder / "mine" / "own.yaml").write_text("defaults: [_self_]\nmax_steps: 4\n")
    done = start(folder, "--config_path", "mine", "--config_name=own")
    assert done.returncode == 0 and "RUN 4" in done.stdout, done.stderr


@pytest.mark.exhaustive
def test_what_libraries_log_is_not_shown_as_hydras(folder: Path) -> None:
    text = (folder / "start.py").read_text()
    logs = (
        "    import logging; logging.getLogger('httpx').info('a request'); logging.getLogger('x').warning('a thing')\n"
    )
    (folder / "start.py").write_text(text.replace("def main(config):\n", f"def main(config):\n{logs}"))
    done = start(folder, "--config-name", "sokoban", "output_dir=here")
    assert done.stderr == "a thing\n" and "request" not in done.stdout
    done = start(folder, "--config-name", "sokoban", "--multirun", "seed=1,2", "output_dir=here")
    assert "Launching 2 jobs" in done.stdout and "HYDRA" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("start_rlvr_pipeline.py", "luffy_math, mix_math, rlvr_choices, rlvr_math, rlvr_smollm2"),
        ("start_evaluation.py", "eval_math"),
    ],
)
def test_the_other_programs_offer_their_own_configurations(program: str, names: str) -> None:
    done = ran(str(EXAMPLES.parent / program), "--help", folder=Path.cwd())
    assert f"Configurations in config: {names}.\n" in done.stdout, done.stderr


def test_a_sweep_ends_with_a_table_and_one_bad_job_does_not_end_the_others(folder: Path) -> None:
    text = (folder / "start.py").read_text()
    score = "    return {'val/success': config.seed / 10}\n"
    (folder / "start.py").write_text(text.replace("\nif __name__", f"{score}\nif __name__"))
    done = start(folder, "--config-name", "sokoban", "--multirun", "seed=1,x,3", "max_steps=2", "output_dir=here")
    assert done.returncode == 2
    assert "Job 1 refused." in done.stderr and "seed = 'x'" in done.stderr and "Traceback" not in done.stderr
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert table == [
        ["job", "seed", "state", "result"],
        ["0", "1", "finished", "success 10.0%"],
        ["1", "x", "refused", "–"],
        ["2", "3", "finished", "success 30.0%"],
    ]
    assert "Their folders: " in done.stdout


@pytest.mark.parametrize("place", ["beside the program", "--config-dir"])
def test_a_file_of_ones_own_builds_on_the_presets_and_wins_over_one_of_the_same_name(
    tmp_path: Path, place: str
) -> None:
    beside, given = tmp_path / "config", tmp_path / "given"
    for folder in (beside, given):
        folder.mkdir()
    own = beside if place == "beside the program" else given
    (own / "mine.yaml").write_text("defaults: [sokoban, ../config/deepspeed_zero2@_here_, _self_]\nseed: 11\n")
    (own / "frozen_lake.yaml").write_text("defaults: [mine, _self_]\nmax_steps: 7\n")
    found: list[AgenticConfig] = []
    words = [] if own is beside else ["--config-dir", str(given)]
    launch(found.append, config_dir=beside, argv=[*words, "--config-name", "frozen_lake"])
    assert (found[0].seed, found[0].max_steps, found[0].train_env_manager.tags) == (11, 7, ["SimpleSokoban"])
    assert found[0].origins.of(["max_steps"]).endswith("frozen_lake.yaml:2")


def test_folders_that_a_file_names_for_its_parts_are_looked_into_as_well(tmp_path: Path) -> None:
    parts, own = tmp_path / "parts", tmp_path / "own"
    for folder in (parts, own):
        folder.mkdir()
    (parts / "seeds.yaml").write_text("seed: 13\n")
    path = f"hydra: {{searchpath: ['file://{parts}']}}"
    (own / "mine.yaml").write_text(f"defaults: [sokoban, seeds, _self_]\n{path}\n")
    found: list[AgenticConfig] = []
    launch(found.append, config_dir=own, argv=["--config-name", "mine"])
    assert (found[0].seed, found[0].train_env_manager.tags) == (13, ["SimpleSokoban"])
