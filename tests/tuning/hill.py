"""A kind of run that climbs a hill and imports nothing heavy: the nearer its rate is to 0.5, the faster."""

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from roll.config import RunConfig, RunError, register_pipeline
from roll.runs.layout import LOGS, folder_of, list_checkpoints
from roll.runs.lock import hold
from roll.tracking.local import JsonlTracker


class HillConfig(RunConfig):
    """The keys of every run, and those of the hill."""

    rate: float = Field(0.05, gt=0)
    steepness: int = Field(1, ge=1)
    pause: float = 0.0
    """Seconds that a step takes."""
    crashes_above: float = math.inf
    """A rate that is too much."""


def climb(config: HillConfig) -> None:
    """Climb, and leave what a run leaves: metrics, checkpoints, a lock; at SIGTERM the last step is saved."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with hold(config.output_dir):
        saved = list_checkpoints(config.checkpoint_path) if config.resume_from_checkpoint else []
        first, place = (saved[-1][0], json.loads((saved[-1][1] / "place.json").read_text())) if saved else (0, 0.0)
        metrics = JsonlTracker(log_dir=config.output_dir / LOGS, resume_step=first if saved else None)
        (config.output_dir / "began_at").open("a").write(f"{first}\n")
        done = first
        try:
            for step in range(first + 1, config.max_steps + 1):
                time.sleep(config.pause)
                if config.rate > config.crashes_above:
                    raise RunError("the loss is not finite")
                place += (1 - place) * 0.5 * math.exp(-abs(math.log(config.rate / 0.5)) * config.steepness)
                done = step
                metrics.log({"loss": 1 - place}, step)
                if step % config.eval_steps == 0:
                    metrics.log({"loss": 1 - place, "val/success": place}, step)
        finally:
            save(folder_of(config.checkpoint_path, done), place)
            metrics.close()


def save(folder: Path, place: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "place.json").write_text(json.dumps(place))


register_pipeline("hill", config=HillConfig, run=climb)
