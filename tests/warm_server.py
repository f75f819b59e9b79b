"""A Python that has imported what every program of ours imports, and forks for each program it is asked to run.

To import takes six seconds of processor time and a small run one. What is forked is a process of its own: its own
command line, folder, environment, standard streams or terminal, signals and exit status; :mod:`tests.programs` asks.
Only imports happen before the fork, and templates are compiled: no thread runs, nothing is seeded, no tensor is made.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = (
    "concurrent.futures.process",
    "numpy.random",
    "hydra.core.global_hydra",
    "hydra._internal.hydra",
    "roll.config.launching",
    "roll.pipelines.agentic",
    "roll.pipelines.evaluation",
    "roll.pipelines.rlvr",
    "roll.models.toy",
    "roll.rewards.math_answer",
    "roll.strategies.generation.hf_infer.build",
    "roll.strategies.training.pytorch.build",
    "roll.strategies.training.pytorch.checkpoint",
    "roll.tracking.dashboard",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.tokenization_utils_tokenizers",
)

# What some of our environments have not. Accelerate imports DeepSpeed where it is installed to save a model.
MORE = (
    "datasets",
    "pandas",
    "torch.utils.tensorboard",
    "deepspeed",
    "transformers.models.bloom.modeling_bloom",
)
# Not Ray itself, which reads its variables when it is imported, but what it imports.
RAY = ("aiohttp", "jsonschema", "pydantic.v1", "requests", "uvloop")
# Of runs, over Ray or as ranks of a test.
WORKER = (
    "roll.pipelines.learning.objective",
    "roll.strategies.training.pytorch.sharding",
    "roll.workers.classes",
    "roll.workers.engine",
    "roll.workers.environment",
    "roll.workers.reward",
    "roll.workers.train",
    "megatron.core.models.gpt",
    "megatron.core.optimizer",
    "peft",
    "roll.rehearsal.megatron_workers",
    "roll.strategies.training.deepspeed.train",
    "roll.strategies.training.megatron.train",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
)
# Of programs that only read and write experience: no PyTorch.
STORE = ("pytest", "roll.experience.folder", "roll.experience.memory", "roll.experience.sql")
# Not hypothesis: pytest would look into it before anybody imports it.
TESTS = (
    "matplotlib.pyplot",
    "roll.cli.app",
    "roll.pipelines.dpo",
    "roll.pipelines.staged",
    "roll.viewer.server",
    "roll.workers.classes",
    "transformers.generation.utils",
)
# What one of them imports, all of them collect.
OF_TESTS = (
    *("anthropic", "openai", "mcp", "peft", "nltk", "textworld", "requests", "psycopg", "pygame", "pettingzoo"),
    *("nbclient", "playwright.sync_api", "prometheus_client", "opentelemetry.exporter.otlp.proto.http"),
    *("tensorboard.backend.event_processing.event_accumulator", "textarena"),
    *("optuna", "reasoning_gym", "sqlalchemy.dialects.postgresql.psycopg", "tinker"),
    *("megatron.core.models.gpt", "megatron.core.optimizer"),
)
IMPORTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "program": (PROGRAM, (*MORE, *RAY)),
    "tests": (PROGRAM, (*MORE, *TESTS, *OF_TESTS)),
    "worker": (PROGRAM, (*MORE, *RAY, *WORKER)),
    "store": (("numpy.random", *STORE), ("psycopg", "sqlalchemy.dialects.postgresql.psycopg")),
    "bare": (("numpy.random",), ()),  # what every fork needs, for the tests of these processes
    # In environments of their own: tests.warm_others.
    "agents": (("pydantic_ai.models.openai", "pydantic_ai.providers.openai", "smolagents"), ()),
    "nemo_gym": (("nemo_gym.base_resources_server", "nemo_gym.server_utils", "uvicorn"), ()),
    "openenv": (("openenv.cli.__main__", "openenv.core.generic_client", "uvicorn"), ()),
    "verifiers": (("verifiers.v1", "verifiers.v1.cli.eval.main", "verifiers.v1.utils.loaders"), ()),
}
"""What each kind of warm process imports, and what of it only where it is installed."""
# The allocator of pyarrow: it takes its locks before a fork and gives them back in both processes.
SAFE_THREADS = {"jemalloc_bg_thd"}


@dataclass(frozen=True)
class Request:
    """A program to run: its words behind ``python``, folder, environment, and streams or one terminal."""

    words: list[str]
    cwd: str
    environment: dict[str, str]
    streams: list[int]
    terminal: bool


def serve(listener: socket.socket, owner: int) -> Request:
    """Fork for every request; returns in the child only. Ends with the process ``owner``."""
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of the terminal of the tests is for the programs
    running: dict[int, socket.socket] = {}
    end_of_owner = os.pidfd_open(owner)
    while True:
        for ready in select.select([listener, wake, end_of_owner, *running.values()], [], [])[0]:
            if ready is wake:
                wake.recv(4096)
                _tell_of_ends(running)
            elif ready is listener:
                connection, _ = listener.accept()
                request = _receive(connection)
                if request is None:
                    connection.close()
                    continue
                if child := os.fork():
                    running[child] = connection
                    connection.send(f"{child}\n".encode())
                    for stream in request.streams:
                        os.close(stream)
                    continue
                signal.set_wakeup_fd(-1)
                for one in (listener, wake, woken, connection, *running.values()):
                    one.close()
                os.close(end_of_owner)
                return request
            elif ready == end_of_owner:
                for child in running:
                    _end(child)
                sys.exit(0)
            else:
                _end_what_nobody_waits_for(running, ready)


def _receive(connection: socket.socket) -> Request | None:
    """Read what is asked for, if anything is: some only see whether the server is there."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 4)
    if not length:
        return None
    with connection.makefile("rb") as message:
        return Request(**json.loads(message.read(int.from_bytes(length))), streams=streams)


def _end_what_nobody_waits_for(running: dict[int, socket.socket], connection: socket.socket) -> None:
    """End the program of a connection that was closed at the other end, as one that its shell was killed of."""
    for child in [child for child, one in running.items() if one is connection]:
        running.pop(child).close()
        _end(child)


def _end(child: int) -> None:
    """End a program and what it started in its process group, as the workers of multiprocessing are."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has none of its own yet
        os.kill(child, signal.SIGKILL)


def _tell_of_ends(running: dict[int, socket.socket]) -> None:
    while running:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        child = ended.si_pid
        if ended.si_status == signal.SIGKILL and ended.si_code == os.CLD_KILLED:
            _end(child)  # what it started outlives it otherwise
        status = os.waitpid(child, 0)[1]
        if child in running:
            with running.pop(child) as answer, contextlib.suppress(OSError):
                answer.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(request: Request, path: list[str]) -> tuple[types.CodeType, dict[str, Any]]:
    """Make this process that of the program; returns what its ``__main__`` is to run, and in which names."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.terminal:
        os.login_tty(request.streams[0])
    else:
        os.setpgid(0, 0)  # Ray ends the process group of each of its workers
        for number, stream in enumerate(request.streams):
            os.dup2(stream, number)
            os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # as a new process: from the system's entropy
    tempfile.tempdir = None  # where the environment says
    how = request.words[0] if request.words[0] in ("-m", "-c") else ""
    first = request.cwd if how else str(Path(request.words[0]).absolute().parent)
    more = [entry for entry in request.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [first, *more, *path]
    importlib.invalidate_caches()
    sys.orig_argv[:] = [sys.executable, *request.words]
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.modules["warm_server"] = main, sys.modules["__main__"]
    sys.argv[:] = request.words[1:] if how else request.words
    return {"-m": _module, "-c": _command, "": _script}[how](main, sys.argv[0]), vars(main)


class Ending:
    """The end of a forked program: what was imported before the fork is not taken apart, which takes half a second.

    Nor is it in the warm process itself, whose modules were frozen: some would say that they leaked.

    All else is as at any end: threads are waited for, what was registered with :mod:`atexit` is called, what the
    program still holds is let go, and what it wrote is flushed. Made before anything else is imported, so that its
    turn is after all others'.

    Attributes:
        names: Of the program; the warm process itself has none.
        status: Its exit status, once it is known; a signal has none.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.status: int | None = None
        atexit.register(self._end)

    def _end(self) -> None:
        self.names.clear()
        gc.collect()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it, or it is closed: Python says so
            return
        if self.status is not None:
            os._exit(self.status)


def _script(main: types.ModuleType, file: str) -> types.CodeType:
    vars(main).update(__file__=file, __builtins__=__builtins__, __spec__=None)
    return compile(Path(file).read_bytes(), file, "exec")


def _command(main: types.ModuleType, command: str) -> types.CodeType:
    vars(main).update(__builtins__=__builtins__, __spec__=None)
    sys.argv[0] = "-c"
    return compile(command, "<string>", "exec")


def _module(main: types.ModuleType, name: str) -> types.CodeType:
    """As ``python -m`` does: a package runs its ``__main__``."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    assert spec is not None and spec.origin is not None, f"no module {name}"
    vars(main).update(__file__=spec.origin, __builtins__=__builtins__, __spec__=spec, __package__=spec.parent)
    sys.argv[0] = spec.origin
    return compile(Path(spec.origin).read_bytes(), spec.origin, "exec")


def listen(kind: str, address: str, owner: int, ready: int) -> tuple[types.CodeType, dict[str, Any]]:
    """Import, and wait for programs; returns in the process of each."""
    path = [entry for entry in sys.path if entry not in ("", str(Path(__file__).resolve().parent))]
    sys.path[:] = path
    needed, more = IMPORTS[kind]
    gc.disable()  # a quarter of the time: it would look again and again at what stays
    for name in needed:
        importlib.import_module(name)
    for name in more:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "roll.viewer.rendering" in sys.modules:  # to compile its templates takes 0.4 seconds
        templates = sys.modules["roll.viewer.rendering"].templates()
        for name in templates.list_templates():
            templates.get_template(name)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()][1:]
    if set(threads) - SAFE_THREADS:
        sys.exit(f"threads run after the imports, and a fork may leave their locks held for ever: {threads}")
    gc.freeze()  # what was imported is no garbage: a fork that looks at it copies its pages
    gc.enable()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    os.write(ready, b"ready")
    os.close(ready)
    return become(serve(listener, owner), path)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # no child of who started it: a driver of Ray kills its children at its end
    # At the top of the stack, so that an error, an exit or Ctrl-C ends the program as it ends any other.
    ending = Ending()
    if sys.argv[5:]:
        sys.executable = sys.argv[5]
    try:
        code, ending.names = listen(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        exec(code, ending.names)
        ending.status = 0
    except SystemExit as end:
        ending.status = (end.code or 0) & 0xFF if end.code is None or isinstance(end.code, int) else 1
        raise
    except Exception:
        ending.status = 1
        raise
