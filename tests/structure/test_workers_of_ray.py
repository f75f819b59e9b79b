"""What Ray asks to have set up before a worker is done without Ray for our `python`, and left to it for all else."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests import warm_ray


def asked(language: str = "PYTHON", **changes: Any) -> list[str]:
    environment = {"command_prefix": [], "env_vars": {}, "override_worker_entrypoint": None, "java_jars": []}
    environment |= {"py_executable": warm_ray.hook({})["py_executable"], **changes}
    words = ["workers/default_worker.py", "--raylet-name=a b", f"--language={language}"]
    return [*words, f"--serialized-runtime-env-context={json.dumps(environment)}", "--runtime-env-hash=1"]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in [name for name in os.environ if name.startswith(warm_ray._READ_BY_LOADERS)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(warm_ray, "connect", lambda kind, environment: open(os.devnull))
    monkeypatch.setattr(warm_ray, "set_up_here", lambda: None)


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
