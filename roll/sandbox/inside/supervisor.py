"""The process that starts programs, watches them and reports: small, single-threaded, and trusted."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # ``signal`` takes five milliseconds to import.
import gc
import marshal
import os
import select
import sys
import time

from . import kernel, program, walls

TYPE_CHECKING = False  # ``typing`` takes another six.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_CHUNK = 1 << 16


class Watch:
    """One running program: what it wrote so far and whether it has ended."""

    def __init__(self, child: int, pipes: list[int], limit: int) -> None:
        self.child = child
        self.status: int | None = None
        self.reason = ""
        self.limit = limit
        self.texts = {number: bytearray() for number in pipes}
        self.open = set(pipes)

    def read(self, number: int) -> bool:
        """Take what is there from a pipe. Returns whether there was something."""
        room = self.limit + 1 - len(self.texts[number])
        try:
            data = os.read(number, min(_CHUNK, room))
        except BlockingIOError:
            return False
        if not data:
            self.open.discard(number)
            return False
        self.texts[number] += data
        if len(self.texts[number]) > self.limit:
            self.reason = "output"
            self.open.discard(number)
        return True

    def reap(self) -> None:
        """Collect processes that ended: the program, and orphans, which would otherwise count as processes."""
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            if child == self.child:
                self.status = status


class Supervisor:
    """Does the runs of a job one after the other."""

    def __init__(self, around: walls.Walls, job: Mapping[str, Any], namespace: dict[str, Any]) -> None:
        self.walls = around
        self.job = job
        self.namespace = namespace
        self.wake, wake_write = os.pipe()
        for number in (self.wake, wake_write):
            os.set_blocking(number, False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        # As process 1 only signals with a handler reach us, and Python has one for this.
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self, report: int) -> tuple[str, dict[str, Any]] | None:
        """Do all runs. Returns ``None``; in the process that becomes a program, what that shall run."""
        end = time.monotonic() + self.job["total_seconds"]
        failures = 0
        for position, (code, stdin) in enumerate(self.job["runs"]):
            if position and time.monotonic() > end:
                break
            walls.fresh_work_folder(self.walls, position, spare=len(stdin) * 4)
            watch = self._start(code, stdin)
            if watch is None:
                return code, self.namespace
            begin = time.monotonic()
            self._follow(watch, min(begin + self.job["limits"]["seconds"], end))
            failures += _report(report, watch, time.monotonic() - begin) != "ok"
            if 0 < self.job["stop_after_failures"] <= failures:
                break
        return None

    def _start(self, code: str, stdin: str) -> Watch | None:
        """Start a program; ``None`` in the process that is to become it."""
        entry = self._stdin(stdin.encode("utf-8", "surrogatepass"))
        pipes = [os.pipe() for _ in range(3)]
        child = os.fork()
        if child == 0:
            writers = pipes[0][1], pipes[1][1], pipes[2][1]
            program.become_program(code, self.job["files"], (entry, *writers), self.walls, self.job["limits"])
            return None
        os.close(entry)
        for reader, writer in pipes:
            os.close(writer)
            os.set_blocking(reader, False)
        return Watch(child, [reader for reader, _ in pipes], self.job["limits"]["output_bytes"])

    def _stdin(self, text: bytes) -> int:
        """Return a descriptor to read ``text`` from: a file without a name, for a pipe would need a writer."""
        path = os.path.join(self.walls.work, ".stdin")
        writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _write_all(writer, text)
        os.close(writer)
        reader = os.open(path, os.O_RDONLY)
        os.unlink(path)
        return reader

    def _follow(self, watch: Watch, deadline: float) -> None:
        """Read until the program ends, the time is up or it says too much; then kill whatever is left of it."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        for number in watch.open:
            poll.register(number, select.POLLIN)
        while watch.status is None and not watch.reason:
            left = deadline - time.monotonic()
            if left <= 0:
                watch.reason = "timeout"
                break
            for number, _ in poll.poll(left * 1000 + 1):
                if number == self.wake:
                    os.read(number, _CHUNK)
                    watch.reap()
                elif not watch.read(number) and number not in watch.open:
                    poll.unregister(number)
        self._kill(watch)
        for number in watch.texts:
            while number in watch.open and watch.read(number):
                pass
            os.close(number)

    def _kill(self, watch: Watch) -> None:
        """Kill the program and all its descendants, and wait for their end."""
        if self.walls.namespaces:
            _signal_all(-1)
            while True:
                try:
                    child, status = os.waitpid(-1, 0)
                except ChildProcessError:
                    return
                if child == watch.child:
                    watch.status = status
        if watch.status is None:
            _signal_all(-watch.child)
        give_up = time.monotonic() + 2.0
        while (children := _children()) and time.monotonic() < give_up:
            for child in children:
                _signal_all(child)
            watch.reap()
            time.sleep(0.001)


def _signal_all(target: int) -> None:
    try:
        os.kill(target, _signal.SIGKILL)
    except ProcessLookupError:
        pass


def _children() -> list[int]:
    """Return our children, adopted ones included."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rsplit(b")", 1)[1].split()[1]) == os.getpid():
                        found.append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def _write_all(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]


def _tells_of_memory(text: bytes) -> bool:
    """Whether a program's standard error ends with MemoryError, or Python 3.13 had no memory left to print that."""
    last = text.rstrip().rsplit(b"\n", 1)[-1]
    return last.startswith(b"MemoryError") or b"\nobject type name: MemoryError\n" in text


def _report(report: int, watch: Watch, seconds: float) -> str:
    """Write what became of a run: a line of numbers, then the texts. Returns the reason."""
    code = 0 if watch.status is None else os.waitstatus_to_exitcode(watch.status)
    texts = [bytes(text[: watch.limit]) for text in watch.texts.values()]
    if watch.reason:
        reason = watch.reason
    elif code == -_signal.SIGXCPU:
        reason = "timeout"
    elif code < 0:
        reason = "signal"
    elif code and _tells_of_memory(texts[1]):
        reason = "memory"
    else:
        reason = "error" if code else "ok"
    sizes = " ".join(str(len(text)) for text in texts)
    _write_all(report, f"{reason} {code} {seconds:.6f} {sizes}\n".encode() + b"".join(texts))
    return reason


def main() -> None:
    """Read a job from standard input, do it, report on standard output."""
    kernel.die_with_parent()
    job = marshal.loads(sys.stdin.buffer.read())
    if os.getppid() != job["parent"]:
        return
    _restart_paths(job["python"])
    namespace: dict[str, Any] = {}
    exec(job["prelude"], namespace)
    namespace.pop("__builtins__")
    around = walls.enter(job["work"], job["python"], job["user"], job["limits"]["file_mb"] << 20)
    report = os.dup(1)
    line = around.describe()
    _write_all(report, line.encode() + b"\n")
    if job["require_network_isolation"] and line.startswith("network=none"):
        return
    gc.freeze()  # Else the first collection in every program would copy all of our memory.
    todo = Supervisor(around, job, namespace).serve(report)
    if todo is not None:
        # A program can look into the frames above it: what other runs read is none of its business.
        del job
        program.run_program(*todo)
    os._exit(0)


def _restart_paths(python: list[str]) -> None:
    """Import from the standard library and given packages, no longer from this folder."""
    del sys.path[0]
    sys.path += [path for path in python if path.rstrip("/").endswith("-packages")]
