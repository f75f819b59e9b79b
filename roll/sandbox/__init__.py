"""Isolated execution of untrusted Python programs: ``run_python``, and ``Job`` for many runs in one sandbox."""

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
    "Job",
    "Limits",
    "Outcome",
    "Protection",
    "Reason",
    "Run",
    "SandboxError",
    "SandboxUnavailableError",
    "capabilities",
    "run_job",
    "run_job_sync",
    "run_python",
    "run_python_sync",
]
