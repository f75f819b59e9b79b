"""Isolated execution of what is not trusted.

Python programs: ``run_python``, and ``Job`` for many runs in one sandbox. Commands: ``Enclosure``, and
``Container`` where Docker or Podman is there.
"""

from roll.sandbox.commands import CommandLimits, Enclosure, needed_by
from roll.sandbox.container_programs import CONTAINER_PROGRAMS, ContainerProgram, find_container_program
from roll.sandbox.containers import Container, ContainerLimits
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
    "CONTAINER_PROGRAMS",
    "CommandLimits",
    "Container",
    "ContainerLimits",
    "ContainerProgram",
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
    "find_container_program",
    "needed_by",
    "run_job",
    "run_job_sync",
    "run_python",
    "run_python_sync",
]
