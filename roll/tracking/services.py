"""Thin adapters to experiment-tracking services; each imports its package when a run asks for it."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from roll.config.written import flat
from roll.tracking.note_names import NoteNames

_MLFLOW_PARAMETERS = 100  # of one request
_MLFLOW_TAG = 5000  # characters
_MLFLOW_LENGTH = 500  # of a value; the oldest stores cut no later
_WANDB_WAIT = 0.001  # seconds; 0 stands for a minute


def optional_package(package: str, name: str, requirement: str | None = None) -> ModuleType:
    """Import a package that a tracker needs.

    Args:
        package: The package.
        name: The tracker.
        requirement: What is to be installed; the package if ``None``.

    Raises:
        ImportError: It cannot be imported; the message says what to install.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"track_with: {name} needs the package {package!r}, which cannot be imported ({error}). Install it with "
            f"`pip install {requirement or package}`, or track with tensorboard or jsonl, which need nothing more."
        ) from error


class WandbTracker:
    """Weights & Biases. ``tracker_kwargs`` go to ``wandb.init`` (``project``, ``name``, ``notes``, …).

    ``api_key`` is passed to ``wandb.login``. A run that resumes continues its own curve where ``id`` is given.
    """

    def __init__(
        self, *, log_dir: Path, resume_step: int | None = None, api_key: str | None = None, **init: Any
    ) -> None:
        wandb = optional_package("wandb", "wandb")
        if api_key:
            wandb.login(key=api_key)
        if resume_step is not None:
            init.setdefault("resume", "allow")
        self._run = wandb.init(**({"project": "roll", "dir": str(log_dir)} | init))
        # A step of its own: wandb's built-in step only moves forward, so a resumed run would lose its first steps.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log one record."""
        self._run.log({**metrics, "step": step})

    def log_config(self, config: Mapping[str, Any], text: str) -> None:
        """Make it the configuration of the run; a run that resumes may have changed it."""
        self._run.config.update(dict(config), allow_val_change=True)

    def log_note(self, text: str, step: int) -> None:
        """Raise an alert, which W&B shows and can send."""
        # Of two with the same title within a minute W&B drops the second, unless it is told to wait for less.
        self._run.alert(title=f"step {step}", text=text, level="WARN", wait_duration=_WANDB_WAIT)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowTracker:
    """MLflow. Takes ``tracking_uri``, ``experiment``, ``run_name`` and ``run_id`` (to continue a run).

    Without ``tracking_uri`` (and without ``MLFLOW_TRACKING_URI``) MLflow's own default applies.
    """

    def __init__(
        self,
        *,
        log_dir: Path,
        resume_step: int | None = None,
        tracking_uri: str | None = None,
        experiment: str = "roll",
        run_name: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self._mlflow = optional_package("mlflow", "mlflow")
        if tracking_uri is not None:
            self._mlflow.set_tracking_uri(tracking_uri)
        self._mlflow.set_experiment(experiment)
        self._mlflow.start_run(run_id=run_id, run_name=run_name)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the finite metrics; several MLflow stores refuse the others."""
        finite = {_mlflow_name(name): float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._mlflow.log_metrics(finite, step=step)

    def log_config(self, config: Mapping[str, Any], text: str) -> None:
        """Store the file, and each key as a parameter; MLflow lets nobody change those of a run that is continued."""
        self._mlflow.log_text(text, "config.yaml")
        active = self._mlflow.active_run()
        known = set() if active is None else self._mlflow.get_run(active.info.run_id).data.params.keys()
        values = {_mlflow_name(key): str(value)[:_MLFLOW_LENGTH] for key, value in flat(config).items()}
        new = [(key, value) for key, value in values.items() if key not in known]
        for first in range(0, len(new), _MLFLOW_PARAMETERS):
            self._mlflow.log_params(dict(new[first : first + _MLFLOW_PARAMETERS]))

    def log_note(self, text: str, step: int) -> None:
        """Store it as a file of its step, and as the newest ``note`` among the run's tags."""
        self._mlflow.log_text(
            text, f"notes/step={step:06d}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}.txt"
        )
        self._mlflow.set_tag("note", f"step {step}: {text}"[:_MLFLOW_TAG])

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


class SwanlabTracker:
    """SwanLab. ``tracker_kwargs`` go to ``swanlab.init`` (``project``, ``experiment_name``, ``mode``, …).

    ``api_key`` is passed to ``swanlab.login``.
    """

    def __init__(
        self, *, log_dir: Path, resume_step: int | None = None, api_key: str | None = None, **init: Any
    ) -> None:
        self._swanlab = optional_package("swanlab", "swanlab")
        if api_key:
            self._swanlab.login(api_key=api_key)
        self._note_names = NoteNames()
        self._swanlab.init(**({"project": "roll", "logdir": str(Path(log_dir) / "swanlab")} | init))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log one record."""
        self._swanlab.log({name: float(value) for name, value in metrics.items()}, step=step)

    def log_config(self, config: Mapping[str, Any], text: str) -> None:
        """Make it the configuration of the run."""
        self._swanlab.config.update(dict(config))

    def log_note(self, text: str, step: int) -> None:
        """Log it as text; of several with the same name and step SwanLab keeps the first."""
        self._swanlab.log({self._note_names.next(step): self._swanlab.Text(text)}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._swanlab.finish()


def _mlflow_name(name: str) -> str:
    """Return a metric name MLflow accepts: letters, digits, ``_-. /`` and ``:`` only."""
    return "".join(char if char.isalnum() or char in "_-. /:" else "_" for char in name)
