"""What ran: the configuration with the origin of every key, the command, versions and commit, beside the results."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import roll
from roll.config import RunConfig
from roll.config.strategies import STRATEGIES
from roll.config.written import differences, to_mapping, to_yaml, without_secrets
from roll.runs.layout import CONFIG, RECORD

_PACKAGES: Final = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "gymnasium",
    "datasets",
    "math-verify",
) + ("hydra-core", "pydantic", "peft", "accelerate", "ray")
"""Whose versions are written down, beside those of strategies."""

_GIT_SECONDS: Final = 10


@dataclass(frozen=True)
class RunRecord:
    """What is known of a run before its first step. Makes ``config.yaml``, to load again, and ``run.json``, to compare.

    Attributes:
        config: The configuration.
        begun: When the run, or this sitting of it, began: ISO 8601.
        continued_from: The checkpoint that it continues from, if any.
    """

    config: RunConfig
    begun: str
    continued_from: Path | None = None

    @classmethod
    def of(cls, config: RunConfig, continued_from: Path | None = None) -> RunRecord:
        """Return the record of a run that begins now."""
        return cls(config, datetime.now(UTC).isoformat(timespec="seconds"), continued_from)

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Every key of the configuration, secrets hidden."""
        return to_mapping(self.config)

    @cached_property
    def about(self) -> dict[str, Any]:
        """Everything but the configuration, as JSON."""
        origins, here = self.config.origins, _commit(Path.cwd())
        # A script is shown with what runs it.
        command = None if origins.command is None else [*(() if origins.program else ("python",)), *origins.command]
        return {
            "name": self.config.exp_name,
            "begun": self.begun,
            "continued_from": None if self.continued_from is None else str(self.continued_from),
            "command": None if command is None else shlex.join(without_secrets(command, self.config)),
            "folder": str(Path.cwd()),
            "program": self.config.program,
            "versions": {"roll": roll.__version__, "python": platform.python_version(), **_versions()},
            "platform": platform.platform(),
            "git": here,
            "roll_git": _own_commit(here),
        }

    @cached_property
    def text(self) -> str:
        """The content of ``config.yaml``."""
        about = self.about
        command = about["command"] or "started from Python"
        lines = [
            f"{about['name']}, begun {about['begun']}"
            + (f", continued from {path}" if (path := self.continued_from) else ""),
            f"$ {command}",
            f"in {about['folder']}",
            *(f"{name} {_shown(about[key])}" for name, key in (("commit", "git"), ("roll", "roll_git")) if about[key]),
            ", ".join(f"{name} {number}" for name, number in about["versions"].items()),
            f"Again: {self._again()}",
            "Keys that are commented out were not set; the comment shows the default that applied.",
        ]
        return "".join(f"# {' '.join(line.split())}\n" for line in lines) + "\n" + to_yaml(self.config)

    def _again(self) -> str:
        started = self.config.origins.program
        if started:
            return f"{shlex.join(started[:-1])} <this file>"
        return f"python {self.config.program} --config-dir <the folder of this file> --config-name config"

    def write(self, folder: Path) -> None:
        """Write both files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(self.text, encoding="utf-8")
        content = json.dumps({**self.about, "config": self.keys}, indent=2, ensure_ascii=False, default=str)
        (folder / RECORD).write_text(content + "\n", encoding="utf-8")

    def differences(self, checkpoint: Path) -> list[str]:
        """Return how the configuration that a checkpoint was made with differs from this one, a line per key."""
        try:
            before = json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))["config"]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # made before checkpoints had a record
        after = json.loads(json.dumps(self.keys, default=str))
        return differences(before, after)


def _versions() -> dict[str, str]:
    found = {}
    of_strategies = {name for each in STRATEGIES for name in STRATEGIES.get(each).distributions}
    for name in (*_PACKAGES, *sorted(of_strategies)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the repository that ``folder`` is in, and whether tracked files differ from it."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    commit = _git(folder, "rev-parse", "HEAD")
    if top is None or commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"repository": top, "commit": commit, "changed": bool(changed)}


def _own_commit(here: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the commit of this package where it runs from a checkout that is not ``here``, the working directory's."""
    source = Path(roll.__file__).resolve().parent
    if _git(source, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    found = _commit(source)
    return None if found == here else found


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        words = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _shown(git: Mapping[str, Any]) -> str:
    return f"{git['commit']}{' with changes' if git['changed'] else ''} ({git['repository']})"
