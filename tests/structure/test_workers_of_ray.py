"""What Ray asks to have set up before a worker is done without Ray for our `python`, and left to it for all else."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests import warm_ray
from tests.programs import FOLDER_VARIABLE, OWNER_VARIABLE
from tests.warm_ray import can_fork


def asked(language: str = "PYTHON", **changes: Any) -> list[str]:
    environment = {"command_prefix": [], "env_vars": {}, "override_worker_entrypoint": None, "java_jars": []}
    environment |= {"py_executable": warm_ray.hook({})["py_executable"], **changes}
    words = ["workers/default_worker.py", "--raylet-name=a b", f"--language={language}"]
    return [*words, f"--serialized-runtime-env-context={json.dumps(environment)}", "--runtime-env-hash=1"]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test before this one may have left a variable that loaders read, as vLLM's engine does.
    monkeypatch.setattr(warm_ray, "can_fork", lambda environment: True)
    monkeypatch.setattr(warm_ray, "connect", lambda kind, environment: open(os.devnull))
    monkeypatch.setattr(warm_ray, "set_up_here", lambda: None)


@pytest.mark.processes
def test_a_worker_is_forked_where_its_variables_are_those_that_the_tests_had() -> None:
    pipe, variables = subprocess.PIPE, {"OPENBLAS_CORETYPE": "Haswell", "PATH": os.environ["PATH"]}
    with subprocess.Popen(["cat"], env=variables, text=True, stdin=pipe, stdout=pipe) as tests:
        assert tests.stdin and tests.stdout
        print("begun", file=tests.stdin, flush=True)
        assert tests.stdout.readline() == "begun\n"  # so it has its variables
        owned = {"OMP_NUM_THREADS": "1", FOLDER_VARIABLE: "x", OWNER_VARIABLE: str(tests.pid)}
        assert can_fork({**owned, "OPENBLAS_CORETYPE": "Haswell"})
        assert not can_fork(owned)
        assert not can_fork({**owned, "OPENBLAS_CORETYPE": "Haswell", "MALLOC_ARENA_MAX": "1"})
        assert not can_fork({**owned, "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "2"})


def test_a_worker_of_our_python_keeps_its_own_words() -> None:
    assert warm_ray.worker_of(asked()) == ["workers/default_worker.py", "--raylet-name=a b", "--runtime-env-hash=1"]


@pytest.mark.parametrize(
    "changes",
    [{"language": "JAVA"}, {"env_vars": {"A": "1"}}, {"command_prefix": ["nice"]}, {"py_executable": "python"}],
)
def test_whatever_else_is_wanted_is_left_to_ray(changes: dict[str, Any]) -> None:
    assert warm_ray.worker_of(asked(**changes)) is None


def test_a_worker_without_an_environment_is_left_to_ray() -> None:
    assert warm_ray.worker_of(["workers/default_worker.py", "--language=PYTHON"]) is None
