"""A Python that has imported what every program of ours imports, and forks for each program it is asked to run.

To import takes six seconds of processor time and a small run one. What is forked is a process of its own: its own
command line, folder, environment, standard streams or terminal, signals and exit status; :mod:`tests.programs` asks.
Only imports happen before the fork: no thread runs, nothing is seeded, no tensor is made.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMPORTS = (
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
MORE_IMPORTS = (
    "datasets",
    "pandas",
    "torch.utils.tensorboard",
    "deepspeed",
    "transformers.models.bloom.modeling_bloom",
)
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


def serve(control: socket.socket) -> Request:
    """Fork for every request; returns in the child only. Ends with the one who asks."""
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of the terminal of the tests is for the programs
    running: dict[int, socket.socket] = {}
    while True:
        for ready in select.select([control, wake], [], [])[0]:
            if ready is wake:
                wake.recv(4096)
                _tell_of_ends(running)
                continue
            message, streams, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not message:
                sys.exit(0)
            answer = socket.socket(fileno=streams.pop())
            if child := os.fork():
                running[child] = answer
                answer.send(f"{child}\n".encode())
                for stream in streams:
                    os.close(stream)
                continue
            signal.set_wakeup_fd(-1)
            for one in (control, wake, woken, answer, *running.values()):
                one.close()
            return Request(**json.loads(message), streams=streams)


def _tell_of_ends(running: dict[int, socket.socket]) -> None:
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with running.pop(child) as answer:
            answer.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(request: Request, path: list[str]) -> tuple[types.CodeType, dict[str, Any]]:
    """Make this process that of the program; returns what its ``__main__`` is to run, and in which names."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.terminal:
        os.login_tty(request.streams[0])
    else:
        for number, stream in enumerate(request.streams):
            os.dup2(stream, number)
            os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.modules["numpy.random"].seed()  # as a new process: from the system's entropy
    is_module = request.words[0] == "-m"
    first = request.cwd if is_module else str(Path(request.words[0]).absolute().parent)
    more = [entry for entry in request.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [first, *more, *path]
    importlib.invalidate_caches()
    sys.orig_argv[:] = [sys.executable, *request.words]
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.modules["warm_server"] = main, sys.modules["__main__"]
    sys.argv[:] = request.words[1:] if is_module else request.words
    code = _module(main, sys.argv[0]) if is_module else _script(main, sys.argv[0])
    return code, vars(main)


def _script(main: types.ModuleType, file: str) -> types.CodeType:
    vars(main).update(__file__=file, __builtins__=__builtins__, __spec__=None)
    return compile(Path(file).read_bytes(), file, "exec")


def _module(main: types.ModuleType, name: str) -> types.CodeType:
    """As ``python -m`` does: a package runs its ``__main__``."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    assert spec is not None and spec.origin is not None, f"no module {name}"
    vars(main).update(__file__=spec.origin, __builtins__=__builtins__, __spec__=spec, __package__=spec.parent)
    sys.argv[0] = spec.origin
    return compile(Path(spec.origin).read_bytes(), spec.origin, "exec")


def listen(control: socket.socket) -> tuple[types.CodeType, dict[str, Any]]:
    """Import, and wait for programs; returns in the process of each."""
    path = [entry for entry in sys.path if entry not in ("", str(Path(__file__).resolve().parent))]
    sys.path[:] = path
    for name in IMPORTS:
        importlib.import_module(name)
    for name in MORE_IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()][1:]
    if set(threads) - SAFE_THREADS:
        sys.exit(f"threads run after the imports, and a fork may leave their locks held for ever: {threads}")
    gc.collect()
    gc.freeze()  # what was imported is no garbage: a fork that looks at it copies its pages
    control.send(b"ready\n")
    return become(serve(control), path)


if __name__ == "__main__":
    # At the top of the stack, so that an error, an exit or Ctrl-C ends the program as it ends any other.
    code, names = listen(socket.socket(fileno=int(sys.argv[1])))
    exec(code, names)
