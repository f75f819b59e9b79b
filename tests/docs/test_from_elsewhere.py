"""The pages from_trl.md, from_verl.md and from_roll.md: both sides of each job run, as far as this machine has them."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml
from docs_support import ROOT, blocks

import roll
from tests import programs

VERL = Path(sys.prefix) / "peers" / "verl" / "trainer" / "config" / "_generated_ppo_trainer.yaml"
"""All keys of verl, as it writes them down itself."""

pytestmark = pytest.mark.processes


def write_page(name: str, folder: Path) -> dict[str, str]:
    """Write the files of a page into a folder, by the name in the first line of each; return their texts."""
    files = {}
    for block in (*blocks("python"), *blocks("yaml")):
        if block.page == f"docs/{name}.md":
            file = re.match(r"# (\S+)\n", block.text)
            assert file, f"{block}: say the name of the file in the first line"
            files[file[1]] = block.text + "\n"
            (folder / file[1]).write_text(files[file[1]], encoding="utf-8")
    return files


def start(folder: Path, *words: str) -> str:
    """Run Python in a fork of the warm process, and return what it said."""
    done = programs.run([sys.executable, *words], folder, _environment(), timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def edited(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def function_of(text: str, name: str) -> Callable[..., Any]:
    """Return a function of a program without running the program."""
    names: dict[str, Any] = {"re": re}
    [found] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    exec(compile(ast.Module([found], []), name, "exec"), names)  # our own documentation
    return names[name]


def episodes(folder: Path) -> pandas.DataFrame:
    """Return the episodes of the first step of a run: response, right answer and score of each."""
    rows = roll.open_run(folder).trajectories(step=1, phase="train").to_pandas()
    rows["response"] = [turns[0]["response"] for turns in rows["turns"]]
    rows["right"] = rows["final_observation"].str.removeprefix("right answer: ")
    return rows


@pytest.mark.exhaustive
def test_the_untrained_policy_is_as_good_in_trl_as_here(tmp_path: Path) -> None:
    """All 64 problems, 8 answers to each: 512 draws of the same probabilities on both sides."""
    pytest.importorskip("trl")
    files = write_page("from_trl", tmp_path)
    start(tmp_path, "problems.py")
    theirs = edited(files["with_trl.py"], ("max_steps=20", "max_steps=1"), ("batch_size=128", "batch_size=512"))
    theirs += "import json\njson.dump(trainer.state.log_history, open('trl.json', 'w'))\n"
    (tmp_path / "with_trl.py").write_text(theirs, encoding="utf-8")
    start(tmp_path, "with_trl.py")
    start(tmp_path, "-m", "roll", "train", "sums.yaml", "max_steps=1", "rollout_batch_size=64")

    peer = json.loads((tmp_path / "trl.json").read_text(encoding="utf-8"))[0]
    ours = episodes(tmp_path / "output" / "sums")
    assert len(ours) == 512 and ours["messages"].map(lambda said: said[0]["content"]).nunique() == 64
    # One standard error of the difference is 0.03 and 0.4 tokens: 4 of them.
    assert ours["score"].mean() == pytest.approx(peer["rewards/correct/mean"], abs=0.12)
    assert ours["completion_tokens"].mean() == pytest.approx(peer["completions/mean_length"], abs=1.6)
    # Our verifier and the page's function of TRL's kind grade the same answers alike.
    completions = [[{"role": "assistant", "content": response}] for response in ours["response"]]
    correct = function_of(files["with_trl.py"], "correct")(completions, ground_truth=list(ours["right"]))
    assert correct == list(ours["score"]) and 0 < sum(correct) < 512


@pytest.mark.exhaustive
def test_a_file_of_verls_keys_trains_here(tmp_path: Path) -> None:
    files = write_page("from_verl", tmp_path)
    start(tmp_path, "problems.py")
    said = start(tmp_path, "-m", "roll", "config", "check", "with_verl.yaml")
    assert re.search(r"actor_rollout_ref\.rollout\.n +→ num_return_sequences_in_group: 8", said)
    start(tmp_path, "-m", "roll", "train", "with_verl.yaml", "max_steps=1")
    ours = episodes(tmp_path / "output")
    compute_score = function_of(files["reward.py"], "compute_score")
    assert len(ours) == 128
    assert [compute_score("sums", *pair) for pair in zip(ours["response"], ours["right"], strict=True)] == list(
        ours["score"]
    )


def test_verl_has_every_key_of_its_file(tmp_path: Path) -> None:
    if not VERL.is_file():
        pytest.skip("tests/algorithms/peers.txt is not installed")
    there = set(_paths(yaml.safe_load(VERL.read_text(encoding="utf-8"))))
    assert set(_paths(yaml.safe_load(write_page("from_verl", tmp_path)["with_verl.yaml"]))) <= there


def _paths(section: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in section.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")


@pytest.mark.exhaustive
def test_a_file_in_the_words_of_roll_trains_here(tmp_path: Path) -> None:
    write_page("from_roll", tmp_path)
    start(tmp_path, "-m", "roll", "config", "check", "with_roll.yaml")
    start(tmp_path, "-m", "roll", "train", "with_roll.yaml", "max_steps=1")
    run = roll.open_run(tmp_path / "output" / "sokoban_from_roll")
    assert run.state == "finished" and run.trajectories(step=1, phase="train").num_rows == 128


@pytest.mark.parametrize("page", ["from_trl", "from_verl", "from_roll"])
def test_keys_in_the_column_of_ours_are_keys(page: str) -> None:
    """Whole names of keys only: ``…_low`` and values are the reader's."""
    reference = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)`", reference, re.MULTILINE)) | {"use_kl_loss", "rewards"}
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    cells = [row.split("|")[3] for row in re.findall(r"^\|.*\|.*\|.*\|$", text, re.MULTILINE)][2:]
    named = [name for cell in cells for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+|[a-z]+(?:_[a-z]+)+)`", cell)]
    assert cells and named
    parts = ("fsdp_train", "hf_infer", "fsdp")
    assert not [name for name in named if name.rpartition(".")[2] not in known and name not in parts]
