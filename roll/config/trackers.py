"""Names of trackers; what they are is in :mod:`roll.tracking`, which is imported when one is used."""

from __future__ import annotations

from typing import Any, Final

from roll.common.registry import Registry

TRACKERS: Final[Registry[Any]] = Registry(
    "tracker",
    built_in={
        "tensorboard": "roll.tracking.local:TensorboardTracker",
        "stdout": "roll.tracking.local:StdoutTracker",
        "jsonl": "roll.tracking.local:JsonlTracker",
        "wandb": "roll.tracking.services:WandbTracker",
        "mlflow": "roll.tracking.services:MlflowTracker",
        "swanlab": "roll.tracking.services:SwanlabTracker",
        "prometheus": "roll.tracking.prometheus:PrometheusTracker",
    },
    advice="To add your own, decorate it with @register_tracker({name!r}) and name its module in tracker_modules.",
)
"""What ``track_with`` accepts: factories of :class:`~roll.tracking.Tracker`."""
