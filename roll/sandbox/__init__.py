"""Isolated execution of what is not trusted.

Python programs: ``run_python``, and ``Job`` for many runs in one sandbox. Commands: ``Enclosure``.
"""

from roll.sandbox.commands import CommandLimits, Enclosure, needed_by
from roll.sandbox.records import (
    Job,
    Limits,
    Outcome,
    Protection,
    Reason,
    Run,
    SandboxError,
    SandboxUnavailableError,
)
from roll.sandbox.run import capabilities, run_job, run_job_sync, run_python, run_python_sync

__all__ = [
    "CommandLimits",
    "Enclosure",
    "Job",
    "Limits",
    "Outcome",
    "Protection",
    "Reason",
    "Run",
    "SandboxError",
    "SandboxUnavailableError",
    "capabilities",
    "needed_by",
    "run_job",
    "run_job_sync",
    "run_python",
    "run_python_sync",
]
