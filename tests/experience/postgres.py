"""A real PostgreSQL server for tests, of Debian's package, in a folder of its own, reached through a socket there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_SHUTS_DOWN_AT_ONCE = "immediate"

needs_postgres = pytest.mark.skipif(
    not _PROGRAMS and "CI" not in os.environ, reason="there is no PostgreSQL (apt-get install postgresql)"
)


class Server:
    """A server that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        self._run("initdb", "-D", "data", "-U", "roll", "--auth=trust", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off"
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def kill(self) -> None:
        """End it as a crash does: what is under way is lost, and it recovers when it starts."""
        self._run("pg_ctl", "-D", "data", "-m", _SHUTS_DOWN_AT_ONCE, "stop")

    def new_database(self) -> str:
        """Return the address of an empty database."""
        self._number += 1
        name = f"store{self._number}"
        self._run("createdb", "-h", str(self._folder), "-U", "roll", name)
        return f"postgresql://roll@/{name}?host={self._folder}"

    def _run(self, program: str, *words: str) -> None:
        # It refuses to run as root.
        as_whom = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        said = self._folder.parent / f"{self._folder.name}.txt"
        with said.open("ab") as file:
            done = subprocess.run(
                [*as_whom, str(_PROGRAMS[0] / program), *words], cwd=self._folder, stdout=file, stderr=file, timeout=120
            )
        assert done.returncode == 0, said.read_text()


@contextmanager
def postgres() -> Iterator[Server]:
    """Yield a server. Its folder is where that of its socket may not be too long, and other users may enter."""
    with tempfile.TemporaryDirectory(prefix="roll-pg-") as parent:
        os.chmod(parent, 0o755)
        folder = Path(parent) / "server"
        folder.mkdir()
        server = Server(folder)
        try:
            yield server
        finally:
            server.kill()
