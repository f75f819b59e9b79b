"""The pages a reader sees, and the programs, commands and fragments on them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from roll.config import RLConfig, load
from roll.pipelines.run.record import RunRecord

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "RESULTS.md",
    *(ROOT / "docs").glob("*.md"),
]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: the page (a path below the root), the line it begins in, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks(language: str) -> tuple[Block, ...]:
    """Return every block of a language, page by page."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match["language"] == language:
                line = text.count("\n", 0, match.start()) + 1
                lines = match["text"].splitlines()
                body = "\n".join(item.removeprefix(match["indent"]) for item in lines)
                found.append(Block(str(page.relative_to(ROOT)), line, language, body))
    return tuple(found)


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a shell block as words, without comments."""
    lines = re.sub(r"\\\n", " ", block.text).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


KINDS = {"sokoban": "AgenticConfig", "rlvr_math": "RLVRConfig", "eval_math": "EvaluationConfig"}


@cache
def shipped(name: str) -> RLConfig:
    """Return a shipped configuration."""
    from hydra import compose, initialize_config_dir

    import roll.config

    with initialize_config_dir(str(ROOT / "roll" / "presets" / "config"), version_base="1.3"):
        return load(compose(name), kind=getattr(roll.config, KINDS[name]))


def write_record(folder: Path) -> None:
    """Write what a run of the shipped ``sokoban`` in ``folder`` leaves behind to be started again."""
    _record().write(folder / "output" / "sokoban")


@cache
def _record() -> RunRecord:
    return RunRecord.of(shipped("sokoban"))
