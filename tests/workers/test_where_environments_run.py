from __future__ import annotations

import pytest

from roll.common.threads import MOST_THREADS, CallThreads
from roll.config import AgenticConfig, load
from roll.env_managers.event_loop import EnvEventLoop
from roll.envs import AsyncTextEnv, TextEnv, register_env
from roll.workers.environment import threads_of


def config(kind: str, **tag: object) -> AgenticConfig:
    tags = {"here": {"env_type": f"{kind}_somewhere", **tag}}
    return load({"custom_envs": tags, "train_env_manager": {"tags": ["here"]}})


KINDS = {
    "blocks": type("Blocks", (TextEnv,), {}),
    "quick": type("Quick", (TextEnv,), {"is_quick": True}),
    "waits": type("Waits", (AsyncTextEnv,), {}),
}


@pytest.fixture(autouse=True)
def registered() -> None:
    for name, kind in KINDS.items():
        register_env(f"{name}_somewhere")(kind)


def test_each_kind_of_environment_runs_where_it_costs_least() -> None:
    shared = CallThreads()
    assert shared._max_threads == MOST_THREADS
    assert threads_of(config("blocks"), "here", [shared]) is shared
    assert threads_of(config("quick"), "here", [shared]) is None
    assert isinstance(threads_of(config("waits"), "here", [shared]), EnvEventLoop)


def test_a_limit_of_the_tag_is_kept_wherever_it_runs() -> None:
    limited = threads_of(config("blocks", max_env_step_concurrent=7), "here", [CallThreads()])
    assert isinstance(limited, CallThreads) and limited._max_threads == 7
    awaited = threads_of(config("waits", max_env_step_concurrent=7), "here", [CallThreads()])
    assert isinstance(awaited, EnvEventLoop) and awaited._places._value == 7  # type: ignore[attr-defined]
