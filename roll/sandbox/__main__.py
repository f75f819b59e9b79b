"""``python -m roll.sandbox``: says which walls this machine allows, and tries to get over them."""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable

from roll.sandbox.records import Limits, Outcome, Reason
from roll.sandbox.run import capabilities, run_python_sync

_LIMITS = Limits(seconds=10.0, memory_mb=256, output_bytes=100_000, processes=8)
_SECRET = "ROLL_SANDBOX_SELF_TEST"


def _attempts(port: int, outside: str) -> dict[str, tuple[str, Callable[[Outcome], bool]]]:
    """Return by name: a program that tries to get over a wall, and whether it was stopped."""
    return {
        "runs a program": ("print(6 * 7)", lambda o: o.reason is Reason.OK and o.stdout == "42\n"),
        "endless loop ends": ("while True: pass", lambda o: o.reason is Reason.TIMEOUT),
        "memory is limited": ("x = bytearray(1 << 30)", lambda o: o.reason is Reason.MEMORY),
        "output is limited": ("while True: print('x' * 1000)", lambda o: o.reason is Reason.OUTPUT),
        "environment is empty": (
            f"import os\nprint(os.environ.get({_SECRET!r}))",
            lambda o: o.stdout == "None\n",
        ),
        "network is out of reach": (
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
            lambda o: o.reason is Reason.ERROR,
        ),
        "files outside cannot be read": (f"open({outside!r}).read()", lambda o: o.reason is Reason.ERROR),
        "files outside cannot be written": (
            f"open({outside!r}, 'r+').write('x')",
            lambda o: o.reason is Reason.ERROR,
        ),
        "number of processes is limited": (
            "import os, time\nfor _ in range(12):\n    if os.fork() == 0: time.sleep(9)",
            lambda o: o.reason is Reason.ERROR and "BlockingIOError" in o.stderr,
        ),
    }


def main() -> int:
    """Print the report. Returns 1 if something got over a wall."""
    protection = capabilities()
    print("Walls on this machine")
    for field in dataclasses.fields(protection):
        print(f"  {field.name:<15} {getattr(protection, field.name)}")
    print("Attempts to get over them")
    os.environ[_SECRET] = secrets.token_hex(8)
    failures = 0
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.NamedTemporaryFile() as outside:
        outside.write(b"outside")
        outside.flush()
        for name, (code, stopped) in _attempts(server.getsockname()[1], outside.name).items():
            outcome = run_python_sync(code, limits=_LIMITS, require_network_isolation=False)
            held = stopped(outcome)
            failures += not held
            print(f"  {'ok  ' if held else 'FAIL'} {name}")
    begin = time.perf_counter()
    for _ in range(10):
        run_python_sync("pass", require_network_isolation=False)
    print(f"One run takes {(time.perf_counter() - begin) * 100:.0f} ms.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
