"""Podman without the rights of root: the network of a container is entered by whoever owns it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers import IMAGE, import_image, write_settings

pytestmark = [
    pytest.mark.processes,
    pytest.mark.exhaustive,
    pytest.mark.skipif(os.getuid() != 0, reason="becomes another user"),
    pytest.mark.skipif(shutil.which("podman") is None or shutil.which("setpriv") is None, reason="no podman"),
]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
USER = 54321
PROGRAM = """
import os, sys, tempfile, threading
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from roll.sandbox import Container, find_container_program

program = find_container_program("podman")
folder = Path(tempfile.mkdtemp(dir=os.environ["HOME"]))
box = Container(program=program, image=sys.argv[2], folder=folder, port=4567)
words = ["sh", "-c", "wget -q -O answer http://127.0.0.1:4567/; id -u; ! wget -q -O - http://127.0.0.1:4568/"]

def answer(listener):
    connection, _ = listener.accept()
    connection.recv(1000)
    connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nfrom outside")
    connection.close()

with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
    with box.running(words, {}, said, complained) as (process, listener):
        threading.Thread(target=answer, args=[listener], daemon=True).start()
        code = process.wait()
    made = folder / "answer"
    print(program.user, code, made.read_text(), made.stat().st_uid)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="roll-podman-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_it_is_reached_and_leaves_files_of_ours(home: Path) -> None:
    (home / "program.py").write_text(PROGRAM)
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(home), **write_settings(home)}
    for folder, _, names in os.walk(home):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, USER, USER)
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    able = [*as_user, PYTHON, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import roll.sandbox"]
    if subprocess.run(able, capture_output=True, env=variables, cwd="/").returncode:
        pytest.skip(f"another user has no {PYTHON} that can import this library")
    import_image(home / "root", as_user, variables)
    words = [*as_user, PYTHON, str(home / "program.py"), str(ROOT), IMAGE]
    ran = subprocess.run(words, capture_output=True, text=True, env=variables, cwd="/", timeout=200)
    assert ran.stdout.split("\n")[-2:-1] == [f"0:0 0 from outside {USER}"], ran.stderr
