"""Run untrusted Python programs in a process that is shut in."""

from __future__ import annotations

import asyncio
import functools
import marshal
import os
import secrets
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from roll.sandbox.records import Job, Limits, Outcome, Protection, Reason, Run, SandboxError, SandboxUnavailableError

_START = "import sys; sys.path.insert(0, {folder!r}); from inside.supervisor import main; main()"
_GRACE_SECONDS = 20.0
_REMOVAL_SECONDS = 2.0
FIRST_USER = 1_879_048_192
"""Programs of a root process run as a user from here on: far from real ones, and from those of containers."""


def run_python_sync(
    code: str,
    *,
    stdin: str = "",
    limits: Limits | None = None,
    files: Mapping[str, str] | None = None,
    site_packages: bool = False,
    require_network_isolation: bool = True,
) -> Outcome:
    """Run one program and wait for it.

    Args:
        code: The program.
        stdin: What it reads from standard input.
        limits: What it may use.
        files: Files in its working folder, by relative path.
        site_packages: Whether it can import the packages of this interpreter; else the standard library alone.
        require_network_isolation: Refuse to run it where the network cannot be taken away.

    Raises:
        SandboxUnavailableError: The machine cannot shut it in as asked for; nothing was run.
        SandboxError: The sandbox failed.
    """
    job = _single(code, stdin, files, site_packages, require_network_isolation)
    return run_job_sync(job, limits or Limits())[0]


async def run_python(
    code: str,
    *,
    stdin: str = "",
    limits: Limits | None = None,
    files: Mapping[str, str] | None = None,
    site_packages: bool = False,
    require_network_isolation: bool = True,
) -> Outcome:
    """Run one program; as ``run_python_sync``, which see. As many run at a time as there are processors."""
    job = _single(code, stdin, files, site_packages, require_network_isolation)
    return (await run_job(job, limits or Limits()))[0]


def _single(code: str, stdin: str, files: Mapping[str, str] | None, site_packages: bool, isolation: bool) -> Job:
    return Job((Run(code, stdin),), files or {}, site_packages=site_packages, require_network_isolation=isolation)


async def run_job(job: Job, limits: Limits, workers: int | None = None) -> list[Outcome]:
    """Do the runs of a job in a thread; as ``run_job_sync``. Cancelling kills the programs.

    Args:
        job: The runs.
        limits: What each run may use.
        workers: Jobs at a time in this process, ``None``: as many as there are processors. Jobs of another number
            have threads of their own.
    """
    _check_system()
    cancelled = threading.Event()
    started: list[subprocess.Popen[bytes]] = []
    loop = asyncio.get_running_loop()
    pool = _threads(workers or len(os.sched_getaffinity(0)))
    future = loop.run_in_executor(pool, lambda: run_job_sync(job, limits, started, cancelled))
    try:
        return await future
    except asyncio.CancelledError:
        cancelled.set()
        for process in started:
            process.kill()
        raise


@functools.cache
def _threads(workers: int) -> ThreadPoolExecutor:
    # Threads that stay: a sandbox dies with the thread that started it.
    return ThreadPoolExecutor(workers, thread_name_prefix="sandbox")


def run_job_sync(
    job: Job,
    limits: Limits,
    started: list[subprocess.Popen[bytes]] | None = None,
    cancelled: threading.Event | None = None,
) -> list[Outcome]:
    """Do the runs of a job, one after the other, in one sandbox.

    Returns:
        An outcome for each run that was started, in order.

    Raises:
        SandboxUnavailableError: The machine cannot shut them in as asked for; nothing was run.
        SandboxError: The sandbox failed.
    """
    _check_system()
    work = tempfile.mkdtemp(prefix="roll-sandbox-")
    try:
        process = _start(work)
        if started is not None:
            started.append(process)
        if cancelled is not None and cancelled.is_set():
            process.kill()
        answer = _converse(process, _request(job, limits, work), job, limits)
    finally:
        _remove(work)
    return _parse(answer, job)


def _check_system() -> None:
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailableError(f"the sandbox needs Linux; this is {sys.platform}")


def _remove(work: str) -> None:
    try:
        os.rmdir(work)  # All there is to do where the sandbox had a root folder of its own.
    except OSError:
        # Folders nested so deep that ``shutil.rmtree`` gives up are easily made, and so many that it takes long: the
        # answer does not wait for that.
        remover = subprocess.Popen(["rm", "-rf", work], stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            remover.wait(_REMOVAL_SECONDS)
        except subprocess.TimeoutExpired:
            threading.Thread(target=remover.wait, name="sandbox-removal", daemon=True).start()


def _start(work: str) -> subprocess.Popen[bytes]:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # A set is printed in the same order every time: a verdict can be repeated.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = _START.format(folder=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-s", "-S", "-P", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=work,
        env=environment,
        start_new_session=True,
    )


def _request(job: Job, limits: Limits, work: str) -> bytes:
    python = [sys.base_prefix, sys.base_exec_prefix]
    if job.site_packages:
        python += [path for path in site.getsitepackages() if os.path.isdir(path)]
    # Both spellings: modules are found by the one, and the other is where a symbolic link leads.
    python += [os.path.realpath(path) for path in python]
    return marshal.dumps(
        {
            "parent": os.getpid(),
            "work": work,
            "python": list(dict.fromkeys(python)),
            "user": FIRST_USER + secrets.randbelow(1 << 24),
            "limits": asdict(limits),
            "runs": [(run.code, run.stdin) for run in job.runs],
            "files": dict(job.files),
            "prelude": job.prelude,
            "stop_after_failures": job.stop_after_failures,
            "total_seconds": job.total_seconds,
            "require_network_isolation": job.require_network_isolation,
        }
    )


def _converse(process: subprocess.Popen[bytes], request: bytes, job: Job, limits: Limits) -> bytes:
    seconds = min(job.total_seconds, len(job.runs) * (limits.seconds + 3.0)) + _GRACE_SECONDS
    try:
        answer, errors = process.communicate(request, timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise SandboxError(f"the sandbox did not end {_GRACE_SECONDS:.0f} s after the last time limit") from None
    finally:
        process.kill()
    if process.returncode != 0:
        tail = errors.decode(errors="replace").strip()[-2000:]
        raise SandboxError(f"the sandbox ended with code {process.returncode}: {tail or 'it was killed'}")
    return answer


def _parse(answer: bytes, job: Job) -> list[Outcome]:
    line, _, rest = answer.partition(b"\n")
    if not line:
        raise SandboxError("the sandbox ended without a word")
    protection = Protection.parse(line.decode())
    if job.require_network_isolation and protection.network == "none":
        raise SandboxUnavailableError(
            "this machine allows neither network namespaces nor seccomp filters, so the program could reach the "
            "network; allow one of them, or set require_network_isolation to false"
        )
    outcomes = []
    while rest:
        line, _, rest = rest.partition(b"\n")
        reason, code, seconds, *sizes = line.decode().split()
        texts = []
        for size in map(int, sizes):
            texts.append(rest[:size])
            rest = rest[size:]
        stdout, stderr, report = texts
        outcomes.append(
            Outcome(
                reason=Reason(reason),
                exit_code=int(code),
                seconds=float(seconds),
                stdout=stdout.decode(errors="replace"),
                stderr=stderr.decode(errors="replace"),
                report=report,
                protection=protection,
            )
        )
    return outcomes


@functools.cache
def capabilities() -> Protection:
    """Return which walls this machine allows, by putting them up once.

    Raises:
        SandboxError: Not even the weakest sandbox works here.
    """
    return run_python_sync("", require_network_isolation=False).protection
