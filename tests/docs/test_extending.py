"""Each section of the page about extending is a run: its files as they stand, from the command to what they leave."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from docs_support import ROOT

from tests import programs

PAGE = ROOT / "docs" / "extending.md"

SMALL: dict[str, list[str]] = {
    "fit": [],
    "agentic": ["train_env_manager.env_groups=2", "train_env_manager.group_size=2", "rollout_batch_size=4"],
    "rlvr": ["rollout_batch_size=2", "num_return_sequences_in_group=2"],
}


OFTEN = ("An environment", "A verifier", "A kind of run")
"""What `make test` runs of the page; each is a program that starts."""


@dataclass
class Section:
    """An extension point: its files by name, and what a run with them leaves behind."""

    name: str
    files: dict[str, str] = field(default_factory=dict)
    shows: str = ""

    @property
    def program(self) -> str:
        """The program that starts it; a kind of run of one's own can be started with any."""
        return "rlvr" if "defaults: [rlvr_math" in self.files["mine.yaml"] else "agentic"

    @property
    def small(self) -> list[str]:
        """What makes a run short."""
        return SMALL["fit" if "pipeline: fit" in self.files["mine.yaml"] else self.program]


def sections() -> list[Section]:
    """Return what the page shows, section by section."""
    found = []
    for text in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        section = Section(text.partition("\n")[0])
        for name, body in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            section.files[name] = body
        shows = re.search(r"^It shows as `([^`]+)`", text, re.MULTILINE)
        section.shows = shows[1] if shows else ""
        found.append(section)
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    "section",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in OFTEN else pytest.mark.exhaustive)
        for each in sections()
    ],
)
def test_what_the_section_shows_runs_and_leaves_what_it_says(section: Section, tmp_path: Path) -> None:
    assert section.shows
    for name, text in section.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = [sys.executable, str(ROOT / "examples" / f"start_{section.program}_pipeline.py")]
    words += ["--config-dir", ".", "--config-name", "mine", "max_steps=1", "eval_steps=0", "output_dir=out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = programs.run(words + section.small, tmp_path, environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    if "." in section.shows:
        assert (out / section.shows).read_text(encoding="utf-8").strip()
    else:
        line = (out / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        assert section.shows in json.loads(line), ", ".join(json.loads(line))


def test_the_table_names_every_section() -> None:
    text = PAGE.read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[[^\]]+\]\(#([\w-]+)\)", text, re.MULTILINE)
    assert linked == [section.name.lower().replace(" ", "-") for section in sections()]
