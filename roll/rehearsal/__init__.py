"""A job of a cluster, rehearsed on a laptop before it costs anything."""

from roll.rehearsal.rehearsing import Rehearsal, rehearse
from roll.rehearsal.report import render_rehearsal

__all__ = ["Rehearsal", "rehearse", "render_rehearsal"]
