"""Metrics and what a person sees of a run: trackers, live progress, the closing summary."""

from roll.tracking.dashboard import LiveDashboard, make_progress
from roll.tracking.local import read_metrics
from roll.tracking.progress import LineProgress, NullProgress, Progress, Sample
from roll.tracking.summary import RunSummary
from roll.tracking.tracker import CompositeTracker, Tracker, make_trackers, register_tracker

__all__ = [
    "CompositeTracker",
    "LineProgress",
    "LiveDashboard",
    "NullProgress",
    "Progress",
    "RunSummary",
    "Sample",
    "Tracker",
    "make_progress",
    "make_trackers",
    "read_metrics",
    "register_tracker",
]
