"""What can go wrong between a trainer and its engines."""

from __future__ import annotations


class WeightSyncError(RuntimeError):
    """New weights did not reach every engine. The connection is then closed: make a new sender and new receivers."""


class WeightSyncTimeoutError(WeightSyncError):
    """Somebody did not answer in time; the message says who."""


class WeightsGoneError(WeightSyncError):
    """Another program does not have a version any more, or has ended: look again for what there is."""
