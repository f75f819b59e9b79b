from __future__ import annotations

import pytest

from roll.config import AgenticConfig, ConfigError, load
from roll.env_managers.threads import EnvThreads
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs import get_tag, register_tag, unregister
from roll.pipelines.agentic_parts import _threads
from roll.pipelines.not_yet import keys_without_effect
from roll.pipelines.preflight.agentic import check_agentic as check
from roll.pipelines.preflight.agentic import manager_class


class PoliteManager(TrajectoryEnvManager):
    """A manager of the user's own."""


@pytest.fixture
def tag():
    name = "PreflightSokoban"
    register_tag(name, env_type="sokoban", env_manager_cls=f"{__name__}.PoliteManager")
    yield name
    unregister(name)


def test_a_default_configuration_has_no_key_without_effect() -> None:
    assert list(keys_without_effect(AgenticConfig())) == []


def test_a_key_without_effect_is_named_with_the_reason_when_it_was_changed() -> None:
    config = load(
        {
            "rpc_timeout": 5.0,
            "reward_shift": False,
            "actor_infer": {"generating_args": {"num_beams": 4, "temperature": 0.9}},
            "val_env_manager": {"worker_cls": "mine.Worker"},
        }
    )
    said = check(config)
    assert [sentence.split(" has no effect: ")[0] for sentence in said] == [
        "rpc_timeout",
        "actor_infer.generating_args.num_beams",
        "val_env_manager.worker_cls",
    ]
    assert "one process" in said[2]


def test_a_tag_may_name_its_own_env_manager(tag: str) -> None:
    assert manager_class(get_tag(tag)) is PoliteManager
    assert manager_class(get_tag("SimpleSokoban")) is TrajectoryEnvManager


@pytest.mark.parametrize("path", ["no.such.module.Manager", "roll.envs.TextEnv", "Manager"])
def test_a_wrong_env_manager_is_a_configuration_error(path: str) -> None:
    config = load(
        {
            "custom_envs": {"Odd": {"env_type": "sokoban", "env_manager_cls": path}},
            "train_env_manager": {"tags": ["Odd"]},
        }
    )
    with pytest.raises(ConfigError, match=r"custom_envs\.Odd\.env_manager_cls"):
        check(config)
    unregister("Odd")


def test_an_environment_that_is_not_thread_safe_gets_a_thread_of_its_own() -> None:
    shared = EnvThreads()
    pools = [shared]
    config = load(
        {
            "custom_envs": {
                "Locked": {"env_type": "sokoban", "use_thread_lock": True},
                "Few": {"env_type": "sokoban", "max_env_step_concurrent": 3},
                "Free": {"env_type": "sokoban"},
            }
        }
    )
    assert _threads(config, "Free", pools) is shared
    assert _threads(config, "SimpleSokoban", pools) is shared
    assert _threads(config, "Locked", pools)._max_threads == 1
    assert _threads(config, "Few", pools)._max_threads == 3
    assert len(pools) == 3
    for pool in pools:
        pool.close()
