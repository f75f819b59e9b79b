"""The processes in which environments are looked at, as the one that asks sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from roll.certificates.server import PREPARE
from roll.certificates.target import Target

HASH_SEEDS = ("0", "1")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a probe.

    Attributes:
        value: What it returned; ``None`` if it did not return.
        lost: Why it did not: the process hung or ended, and in which call.
        raised: The class of what it raised, if it did.
    """

    value: Any = None
    lost: str = ""
    raised: str = ""


class Children:
    """Two processes with hash seeds of their own, which fork one more for each probe.

    Args:
        path: Folders that are searched for modules before all others.
    """

    def __init__(self, path: Sequence[Path] = ()) -> None:
        self._path = [str(folder) for folder in path]
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self._prepared: Target | None = None

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End both processes."""
        for server in self._servers.values():
            server.kill()
            server.communicate()
        self._servers.clear()

    def prepare(self, target: Target, imported: Sequence[str]) -> None:
        """Import what a target needs once for all its probes; only after a probe has shown that it can be imported.

        Args:
            target: The target.
            imported: The modules that the probe imported to make it.
        """
        if self._prepared == target:
            return
        for hash_seed in HASH_SEEDS:
            answer = self._ask(hash_seed, PREPARE, target, {"imported": list(imported)}, 0.0)
            if answer["value"] != 1:
                # Whatever has threads must not be forked: let each child import for itself.
                self._servers.pop(hash_seed).kill()
        self._prepared = target

    def run(
        self, probe: str, target: Target, arguments: dict[str, Any], *, call_seconds: float, hash_seed: str
    ) -> Outcome:
        """Run a probe in a process of its own.

        Args:
            probe: Its name.
            target: What is tried.
            arguments: Its arguments, as JSON.
            call_seconds: After so long without progress the process is ended.
            hash_seed: One of ``HASH_SEEDS``.
        """
        answer = self._ask(hash_seed, probe, target, arguments, call_seconds)
        if "value" in answer:
            return Outcome(answer["value"])
        if "raised" in answer:
            return Outcome(lost=answer["message"], raised=answer["raised"])
        if "hung" in answer:
            return Outcome(lost=f"nothing came back within {answer['hung']:g} s from {answer['doing']}")
        return Outcome(lost=f"the process ended ({answer['died']}) in {answer['doing']}")

    def _ask(
        self, hash_seed: str, probe: str, target: Target, arguments: dict[str, Any], call_seconds: float
    ) -> dict[str, Any]:
        server = self._servers.get(hash_seed)
        if server is None:
            server = self._servers[hash_seed] = self._start(hash_seed)
        assert server.stdin is not None and server.stdout is not None
        named = {"name": target.name, "modules": list(target.modules)}
        request = {"probe": probe, "target": named, "arguments": arguments, "call_seconds": call_seconds}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that runs the probes ended with exit code {server.wait()} at {probe!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self, hash_seed: str) -> subprocess.Popen[str]:
        # One thread: NumPy's pool of threads would not survive a fork.
        path = os.pathsep.join([*self._path, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [
            sys.executable,
            "-c",
            "import sys; sys.path.insert(0, ''); from roll.certificates.server import serve; serve()",
        ]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
