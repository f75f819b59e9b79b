"""A trial as a process: ``roll train``, begun or gone on with, watched, and told to stop."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from roll.config import RunConfig
from roll.runs.layout import LOGS
from roll.runs.lock import is_held
from roll.runs.outcome import read_outcome
from roll.tracking.local import METRICS_FILE, read_metrics

CONSOLE: Final = "console.log"
"""What a trial printed, in its folder."""

_PATIENCE: Final = 600.0
"""Seconds in which a run that was told to stop saves its last step."""
_PR_SET_PDEATHSIG: Final = 1
_TRACKER: Final = "jsonl"
_OWN: Final = ("output_dir", "progress", "track_with")
_FOLDER_KEYS: Final = ("logging_dir", "render_save_dir", "checkpoint_config.output_dir")


class TrialProcess:
    """A run in a process and a session of its own: Ctrl-C reaches the study alone, which then tells the run.

    If the study is killed, the kernel tells the run to stop, and it saves its last step.

    Args:
        command: What starts it.
        folder: Its ``output_dir``.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _wait_for(folder)
        study = os.getpid()
        with (folder / CONSOLE).open("ab") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: _end_with(study),
            )

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; ``None`` while it runs."""
        return self._process.poll()

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics that it has logged, a row per step or evaluation."""
        path = self.folder / LOGS / METRICS_FILE
        return read_metrics(path) if path.is_file() else []

    def stop(self) -> None:
        """Let it save its last step, and wait for its end."""
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_PATIENCE)
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        """End it now, with every process that it started."""
        if self.code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def why(self) -> str:
        """Return what it said at its end, in a line."""
        code, outcome = self.code, read_outcome(self.folder)
        if code is not None and code < 0:
            hint = "; perhaps the memory was full" if code == -signal.SIGKILL else ""
            return f"it was ended by {signal.Signals(-code).name}{hint}"
        if outcome is not None and outcome.message:
            return " ".join(outcome.message.split())[:400]
        path = self.folder / CONSOLE
        lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
        said = [line for line in lines if line]
        return " ".join(said[-6:] if code == 2 else said[-1:])[:400] or f"exit code {code}"


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[TrialProcess]:
    """Keep a trial running; on the way out it is stopped, and has saved its last step."""
    process = TrialProcess(command, folder)
    try:
        yield process
    finally:
        process.stop()


def command_of(name: str, words: Sequence[str], config: RunConfig, folder: Path) -> list[str]:
    """Return what begins a trial, or goes on with it where its folder has a checkpoint.

    Args:
        name: The configuration.
        words: Overrides.
        config: The configuration with them.
        folder: The ``output_dir`` of the trial.
    """
    trackers = [config.track_with] if isinstance(config.track_with, str) else list(config.track_with)
    named = {
        "logging_dir": config.logging_dir,
        "render_save_dir": config.render_save_dir,
        "checkpoint_config.output_dir": config.checkpoint_config.output_dir,
    }
    own = [
        # Each trial writes below its own folder.
        *(f"{key}=null" for key in _FOLDER_KEYS if named[key] is not None),
        f"track_with=[{','.join(dict.fromkeys([*trackers, _TRACKER]))}]",
        "progress=lines",
        "resume_from_checkpoint=true",
        f"output_dir={folder}",
    ]
    given = [each for each in words if each.partition("=")[0].lstrip("+") not in _OWN]
    return [sys.executable, "-m", "roll", "train", name, *given, *own]


def _end_with(study: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != study:
        os._exit(1)


def _wait_for(folder: Path) -> None:
    """Wait for the run of a study that was killed: it is saving its last step."""
    deadline = time.monotonic() + _PATIENCE
    while is_held(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
