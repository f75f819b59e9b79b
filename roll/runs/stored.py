"""A run as its folder tells it: configuration, state, metrics, checkpoints, trajectories. While it runs, too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.config.errors import ConfigError, Problem, choose_from
from roll.runs.curves import Curve
from roll.runs.layout import (
    BRANCHES,
    CHECKPOINT_STATE,
    CHECKPOINTS,
    EVALUATION,
    LOGS,
    RECORD,
    TRAJECTORIES,
    WEIGHTS,
    list_checkpoints,
)
from roll.runs.outcome import Outcome, State, read_outcome, state_of
from roll.tracking.local import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    import pyarrow

    from roll.trajectories.model import Trajectory
    from roll.trajectories.store import Phase

_MAIN = ("val/success", "val/reward", "success", "rollout/success", "reward/mean", "val/loss", "train/loss")
"""What stands for a run where there is room for one curve: the first that it has."""


@dataclass(frozen=True)
class StoredRun:
    """The folder of a run; every look at metrics, checkpoints and trajectories reads what is there now.

    Attributes:
        folder: What ``output_dir`` named.
    """

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> StoredRun:
        """Return the run in ``folder``.

        Raises:
            ConfigError: There is none; names those below, if any.
        """
        path = Path(folder).expanduser()
        if (path / RECORD).is_file() and not (path / CHECKPOINT_STATE).is_file():
            return cls(path)
        runs = [str(run.folder) for run in find_runs(path)] if path.is_dir() else []
        fix = f"name one of {', '.join(runs[:5])}." if runs else "name the output_dir of a run; roll runs lists them."
        raise ConfigError([Problem("run", f"no run in {path} (looked for {path / RECORD}).", fix, str(path))])

    def __repr__(self) -> str:
        return f"<run {self.name!r} in {self.folder}: {self.state}, {self.steps} steps>"

    def _repr_html_(self) -> str:
        curve = self.main_curve
        shown = "" if curve is None else f"<br><code>{escape(str(curve))}</code>"
        return f"<b>{escape(self.name)}</b> {self.state}, {self.steps} steps, {escape(str(self.folder))}{shown}"

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """What the run wrote before its first step: command, versions, commit, and the whole ``config``.

        Raises:
            ConfigError: The file is damaged.
        """
        path = self.folder / RECORD
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            found["config"].keys()
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            problem = Problem("run", f"{path} cannot be read: {error}.", "restore it from a copy or a checkpoint.")
            raise ConfigError([problem]) from error
        return dict(found)

    @property
    def config(self) -> Mapping[str, Any]:
        """Every key of the configuration in nested sections, defaults too, secrets hidden."""
        return dict(self.record["config"])

    @property
    def name(self) -> str:
        """``exp_name``."""
        return str(self.config.get("exp_name") or self.folder.name)

    @property
    def state(self) -> State:
        """How the run stands."""
        return state_of(self.folder)

    @property
    def outcome(self) -> Outcome | None:
        """How and when the run ended, ``None`` while it goes on or if it was killed."""
        return read_outcome(self.folder)

    @property
    def max_steps(self) -> int:
        """Steps that were asked for, or stages; 0 for what does not train."""
        if self.stages:
            return len(self.stages)
        return 0 if (self.folder / EVALUATION).is_file() else int(self.config.get("max_steps") or 0)

    @property
    def stages(self) -> list[Path]:
        """The folders of the stages of a run of several, in their order, begun or not; none of any other run."""
        return [self.folder / name for name in self.config.get("stages") or ()]

    @property
    def steps(self) -> int:
        """Training steps, or stages, that metrics or checkpoints know of."""
        logged = max((int(row["step"]) for row in self._rows()), default=0)
        return max([logged, *(step for step, _ in self.checkpoints)])

    @property
    def seconds(self) -> float | None:
        """Seconds that the run has taken, earlier sittings included, as far as it has logged."""
        return self.curve("time/elapsed").last if "time/elapsed" in self.metric_names else None

    def metrics(self) -> list[dict[str, Any]]:
        """Return a row per logged step or evaluation, ``{"step": 8, "val/success": 0.5, …}``.

        Raises:
            ConfigError: The run keeps no ``metrics.jsonl``; the message says which key makes it do so.
        """
        rows = self._rows()
        if not rows and not self._metrics_file.is_file():
            fix = "add jsonl to track_with; runs of roll.train have it."
            raise ConfigError([Problem("track_with", f"the run kept no metrics in {self._metrics_file}.", fix)])
        return rows

    @property
    def metric_names(self) -> list[str]:
        """Names of all metrics, sorted."""
        return sorted({name for row in self._rows() for name in row} - {"step"})

    def curve(self, name: str) -> Curve:
        """Return a metric over the steps; where it was not finite there is no value.

        Raises:
            ConfigError: No such metric was logged; the message names near ones.
        """
        pairs = {int(row["step"]): float(row[name]) for row in self.metrics() if row.get(name) is not None}
        names = self.metric_names
        if not pairs and name not in names:
            raise ConfigError([Problem("curve", f"the run has no metric {name!r}.", choose_from(name, names))])
        return Curve(name, tuple(sorted(pairs)), tuple(pairs[step] for step in sorted(pairs)))

    @property
    def main_curve(self) -> Curve | None:
        """The success in validation, or what comes nearest to it; ``None`` before there is any."""
        names = self.metric_names
        name = next((name for name in _MAIN if name in names), None)
        return None if name is None else self.curve(name)

    @property
    def checkpoints(self) -> list[tuple[int, Path]]:
        """Step and folder of every checkpoint, oldest first."""
        named = (self.config.get("checkpoint_config") or {}).get("output_dir")
        return list_checkpoints(self._place(named, CHECKPOINTS))

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint; of a run of several stages, that of the last one with weights."""
        if self.stages:
            begun = (StoredRun(folder) for folder in reversed(self.stages) if (folder / RECORD).is_file())
            return next((path for run in begun if (path := run.checkpoint) and (path / WEIGHTS).is_dir()), None)
        return self.checkpoints[-1][1] if self.checkpoints else None

    def trajectory_files(self, step: int | None = None, phase: Phase | None = None) -> list[Path]:
        """Return the parquet files of stored trajectories.

        Args:
            step: Of this step only; of evaluations, the steps that were complete.
            phase: ``train`` or ``val`` only.
        """
        wanted = "*" if step is None else f"{step:06d}"
        kinds = {"train": ["step"], "val": ["val_step"], None: ["step", "val_step"]}[phase]
        return [
            path for kind in kinds for path in sorted((self.folder / TRAJECTORIES).glob(f"{kind}={wanted}.parquet"))
        ]

    def trajectories(
        self, step: int | None = None, phase: Phase | None = None, columns: Iterable[str] | None = None
    ) -> pyarrow.Table:
        """Return stored trajectories, a row each; ``.to_pandas()`` makes a data frame of them.

        Args:
            step: Of this step only.
            phase: ``train`` or ``val`` only.
            columns: Names of the columns to read (:data:`roll.trajectories.store.SCHEMA`); ``None`` for all.

        Raises:
            ConfigError: Nothing was stored of that step; the message says of which there is.
        """
        import pyarrow
        import pyarrow.parquet

        wanted = None if columns is None else list(columns)
        files = self._stored(step, phase)
        return pyarrow.concat_tables([pyarrow.parquet.read_table(file, columns=wanted) for file in files])

    def episodes(self, step: int | None = None, phase: Phase | None = None) -> list[Trajectory]:
        """Return the same as records, turn by turn, with tokens and log-probs; see :meth:`trajectories`."""
        from roll.trajectories.store import read_trajectories

        return [trajectory for file in self._stored(step, phase) for trajectory in read_trajectories(file)]

    def _stored(self, step: int | None, phase: Phase | None) -> list[Path]:
        files = self.trajectory_files(step, phase)
        if files:
            return files
        there = [path.stem for path in self.trajectory_files()]
        what = "trajectories" if phase is None else f"{phase} trajectories"
        of = "" if step is None else f" of step {step}"
        fix = f"there are {', '.join(there)}." if there else "set trajectory_dump_steps; without it a run stores none."
        raise ConfigError([Problem("step", f"the run has no {what}{of} in {self.folder / TRAJECTORIES}.", fix)])

    @property
    def _metrics_file(self) -> Path:
        return self._place(self.config.get("logging_dir"), LOGS) / METRICS_FILE

    def _rows(self) -> list[dict[str, Any]]:
        if self._metrics_file.is_file():
            return read_metrics(self._metrics_file)
        evaluation = self.folder / EVALUATION
        return [{"step": 0, **json.loads(evaluation.read_text(encoding="utf-8"))}] if evaluation.is_file() else []

    def _place(self, named: str | None, below: str) -> Path:
        """Return a folder of the run: the one that was named, as seen from where the run was started."""
        return self.folder / below if named is None else Path(self.record.get("folder") or ".") / named


def find_runs(folder: Path) -> list[StoredRun]:
    """Return the runs in ``folder`` and below it, newest first."""
    found = []
    for path, folders, files in os.walk(folder):
        # What a run writes holds no runs, but a checkpoint holds the record of its own.
        folders[:] = [name for name in folders if not _is_of_a_run(name)]
        if RECORD in files:
            found.append(StoredRun(Path(path)))
    return sorted(found, key=lambda run: (run.folder / RECORD).stat().st_mtime, reverse=True)


def _is_of_a_run(name: str) -> bool:
    return name.startswith((".", "step=")) or name in (BRANCHES, CHECKPOINTS, LOGS, TRAJECTORIES, "render")


def checkpoint_in(folder: Path, key: str) -> Path:
    """Return the newest checkpoint of a run, where ``folder`` is that of one; any other folder is returned as it is.

    Args:
        folder: A run, a checkpoint, or what else may hold a model.
        key: What the user named it by, for the message.

    Raises:
        ConfigError: The run has no checkpoint.
    """
    if not (folder / RECORD).is_file() or (folder / CHECKPOINT_STATE).is_file():
        return folder
    newest = StoredRun.open(folder).checkpoint
    if newest is None:
        problem = Problem(key, f"the run in {folder} has no checkpoint.", "name one that has, or set save_steps.")
        raise ConfigError([problem])
    return newest
