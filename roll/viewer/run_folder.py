"""The folder of a run, as the review reads it: stored episodes, metrics, configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from roll.common.file_stamp import FileStamp
from roll.config import ConfigError, Problem
from roll.experience.folder import is_store
from roll.runs.layout import NOTES
from roll.trajectories.store import read_origin

_SEGMENTS = "*.parquet"
_RECORD, _CONFIG = "run.json", "config.yaml"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run.

    Attributes:
        path: Its folder, or the one file of episodes that is looked at.
        pattern: Names of the files that are looked at in a folder.
    """

    path: Path
    pattern: str = "*step=*.parquet"

    @classmethod
    def find(cls, path: Path) -> RunFolder:
        """Return the run at ``path``: its folder, a folder inside it, or a file of episodes.

        Raises:
            ConfigError: There is none.
        """
        if not path.exists():
            fix = "name the output_dir of a run, such as output/sokoban, or a file of its trajectories."
            raise ConfigError([Problem("RUN", f"{path} does not exist.", fix, str(path))])
        if path.name == "trajectories" and path.is_dir() and (path.parent / _RECORD).is_file():
            path = path.parent
        if is_store(path):
            return cls(path.absolute(), _SEGMENTS)
        run = cls(path.absolute())
        if not run.files() and not (run.path / _RECORD).is_file():
            message = f"{path} holds no stored episodes (step=….parquet, val_step=….parquet)."
            fix = "name the output_dir of a run that stores them (trajectory_dump_steps is not 0)."
            raise ConfigError([Problem("RUN", message, fix, str(path))])
        return run

    @property
    def home(self) -> Path:
        """The folder that the review may write notes to."""
        if self.path.is_file():
            above = self.path.parent
            return above.parent if above.name == "trajectories" else above
        return self.path

    @property
    def notes_file(self) -> Path:
        """Where what people say of its episodes is kept."""
        return self.home / NOTES

    @property
    def name(self) -> str:
        """What the run is called."""
        return str(self.record().get("name") or self._name_in_files() or self.home.name)

    def _name_in_files(self) -> str:
        """Return the name that its episodes have, where they were taken out of the run's folder."""
        for file in self.files():
            try:
                return read_origin(file).run
            except (OSError, ValueError, pa.ArrowException):
                continue
        return ""

    def files(self) -> dict[Path, FileStamp]:
        """Return the files of episodes and what they look like now."""
        if self.path.is_file():
            found = [self.path]
        else:
            folder = self.path / "trajectories"
            # A run has them in one place; anything else may be a folder that somebody collected.
            found = list(folder.glob(self.pattern) if folder.is_dir() else self.path.rglob(self.pattern))
        stamps = {}
        for file in sorted(found):
            try:
                stamp = FileStamp.of(file)
            except FileNotFoundError:  # replaced or moved aside since it was listed
                continue
            if not file.name.startswith("."):
                stamps[file] = stamp
        return stamps

    def stages(self) -> list[str]:
        """Return the stages of a run of several that have begun, in their order; none of any other run."""
        names = (self.record().get("config") or {}).get("stages") or ()
        return [str(name) for name in names if (self.home / name / _RECORD).is_file()]

    def stage_of(self, file: Path) -> str:
        """Return the stage that wrote a file of episodes; empty in a run that has none."""
        inside = file.relative_to(self.home).parts if file.is_relative_to(self.home) else ()
        # Of a run without stages they are in trajectories/: its record need not be read for every file.
        return inside[0] if len(inside) > 2 and inside[0] in self.stages() else ""

    def metrics_file(self) -> Path:
        """Return where its metrics are, if it has any."""
        return self.home / "logs" / "metrics.jsonl"

    def record(self) -> Mapping[str, Any]:
        """Return what ran: command, versions, configuration; empty where nothing says so."""
        try:
            found = json.loads((self.home / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def config_text(self) -> str:
        """Return its configuration as YAML, with where every key comes from."""
        try:
            return (self.home / _CONFIG).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def config(self) -> dict[str, Any]:
        """Return its configuration, section by section."""
        return self.record().get("config") or {}

    def beside(self) -> list[str]:
        """Return the names of other runs in the folder that holds this one."""
        try:
            folders = [folder for folder in self.home.parent.iterdir() if (folder / _RECORD).is_file()]
        except OSError:
            return []
        return sorted(folder.name for folder in folders if folder != self.home)
