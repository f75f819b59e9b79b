"""Which key made the difference between two runs: the first tensor that differs, and the keys behind it."""

from roll.differences.comparing import Cause, Comparison, compare_runs
from roll.differences.report import render_comparison

__all__ = ["Cause", "Comparison", "compare_runs", "render_comparison"]
