"""No key is silent: every key of a configuration is read by a run, or a run says that it does nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from roll.config import RLConfig
from roll.config.base import ConfigModel
from roll.envs import ENV_TYPES, TAGS
from roll.pipelines.agentic import run_agentic
from roll.pipelines.checks.keys_without_effect import unread_keys
from roll.pipelines.rlvr import run_rlvr
from tests.e2e.rlvr_support import small_config as small_prompts
from tests.e2e.support import ROOT, small_config

ONLOOKERS = (
    "roll.config.base",
    "roll.config.runnable",
    "roll.config.written",
    "roll.config.*checks",
    "roll.pipelines.checks.*",
)
"""Modules that look at keys without acting on them: they check them, or write all of them down."""

ELSEWHERE = {
    "*.model_args.lora_alpha": "roll/workers/factory.py",
    "*.model_args.lora_target": "roll/workers/factory.py",
    "*.infer_batch_size": "roll/workers/factory.py",
    "overlong_buffer.*": "roll/pipelines/learning/score_shaping.py",
    "difficulty_low_threshold": "roll/pipelines/learning/loss_scope.py",
    "difficulty_high_threshold": "roll/pipelines/learning/loss_scope.py",
    "kl_horizon": "roll/pipelines/learning/credit.py",
    "tune": "roll/tuning/plan.py",
    "straggler_timeout": "roll/pipelines/sampling/stream.py",
    **dict.fromkeys(
        ("gamma", "lambd", "step_reward_gamma", "step_reward_weight", "norm_adv_by_std_in_grpo"),
        "roll/pipelines/learning/algorithm_options.py",
    ),
    "dynamic_sampling.*": "roll/pipelines/sampling/stream.py",
    "max_additional_running_prompts": "roll/pipelines/sampling/prompts.py",
    "pg_clip": "roll/config/algorithm.py",
    "validation.data_args.*": "roll/config/prompt_keys.py",
    "rewards.*.model_args": "roll/workers/reward_engines.py",
    "rewards.*.model_args.model_name_or_path": "roll/workers/reward_engines.py",
    "rewards.*.model_args.dtype": "roll/workers/reward_engines.py",
    "rewards.*.world_size": "roll/config/worker.py",
    "rewards.*.num_gpus_per_worker": "roll/config/worker.py",
    "rewards.*.filter_args": "roll/pipelines/sampling/filters.py",
    "rewards.*.verifier_function": "roll/config/grading_keys.py",
    "rewards.*.verifier_weight": "roll/config/grading_keys.py",
    "custom_reward_function": "roll/rewards/build.py",
    "max_concurrent_rewards": "roll/rewards/build.py",
    "sampler_correction.*": "roll/config/rl_keys.py",
    "*_env_manager.max_traj_per_env": "roll/config/agentic_checks.py",
}
"""Keys that such a run has no use for, and the module that reads them in others."""

INTERPOLATED = {
    "max_actions_per_traj",
    "max_tokens_per_step",
    "action_pattern",
    "think_action_pattern",
    "all_response_pattern",
    "*_format_penalty",
    "env_manager_cls",
    "agent_system_template",
    "agent_template",
    "custom_env.*",
    "deepspeed_zero*",
    "variables",
}
"""Values for other keys, and tags, which reach the registry of environments as a whole."""

BEFORE = {
    "algorithm_type",
    "pipeline",
    "prompt_length",
    "*_modules",
    "actor_train.data_args",
    "actor_train.data_args.template",
}
"""Keys that are read before the run: they fill others, or say what is imported and how conversations are written."""

HANDED_ON = {
    *("reward_shift", "reward_scale", "use_reward_norm", "overlong_buffer", "sampler_correction"),
    *("rpc_timeout", "enable_ray_timeline", "*.system_envs", "reward"),
    *("actor_infer.model_args.dtype", "actor_train.data_args.history"),
}
"""Keys that are copied into a record whatever the run, and that nothing reads from it in a run like these."""

ONE_VALUE = {"checkpoint_config.type", "*.generating_args.num_beams"}


class Reader:
    """Remembers which keys of a configuration were read, by their path."""

    def __init__(self, config: ConfigModel) -> None:
        self.paths: dict[int, str] = {}
        self.keys = set(self._walk(config, ""))
        self.read: set[str] = set()

    def _walk(self, section: BaseModel, prefix: str) -> Iterator[str]:
        self.paths[id(section)] = prefix
        for key in type(section).model_fields:
            yield prefix + key
            value = section.__dict__[key]
            inside = {f"{prefix}{key}.": value} if isinstance(value, BaseModel) else {}
            if isinstance(value, dict):
                inside = {f"{prefix}{key}.{name}.": item for name, item in value.items()}
            for place, item in inside.items():
                if isinstance(item, BaseModel):
                    yield from self._walk(item, place)

    def note(self, section: ConfigModel, key: str) -> None:
        module = sys._getframe(2).f_globals.get("__name__", "")
        looks_on = any(fnmatch(module, pattern) for pattern in ONLOOKERS)
        if module.startswith("roll.") and not looks_on and key in type(section).model_fields:
            self.read.add(self.paths.get(id(section), "?") + key)


HELPERS: dict[str, Any] = {"use_kl_loss": "true", "kl_loss_coef": 0.1, "init_kl_coef": 0.1, "max_steps": 1}
"""A run of one step with a reference and, where an estimator needs it, a critic."""


def agentic_run(folder: Path) -> tuple[RLConfig, Callable[[], Any]]:
    config = small_config(folder, reference="{}", critic="{}", adv_estimator="gae", **HELPERS)
    return config, lambda: run_agentic(config)


def rlvr_run(folder: Path) -> tuple[RLConfig, Callable[[], Any]]:
    config = small_prompts(folder, reference={}, critic={}, adv_estimator="gae", **HELPERS)
    return config, lambda: run_rlvr(config)


@pytest.fixture(scope="module", params=[agentic_run, rlvr_run])
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Reader, dict[str, str]]]:
    """A run that is watched."""
    config, run = request.param(tmp_path_factory.mktemp("watched") / "out")
    watched = Reader(config)

    def read(section: ConfigModel, key: str) -> Any:
        watched.note(section, key)
        return object.__getattribute__(section, key)

    # With the tags as this small run has them, other tests would fail.
    with pytest.MonkeyPatch.context() as patch, ENV_TYPES.restored(), TAGS.restored():
        patch.setattr(ConfigModel, "__getattribute__", read, raising=False)
        run()
    yield watched, unread_keys(config)


@pytest.mark.exhaustive
def test_every_key_is_read_or_said_to_do_nothing(reader: tuple[Reader, dict[str, str]]) -> None:
    watched, listed = reader
    assert len(watched.read) > 100
    excused = {*ELSEWHERE, *INTERPOLATED, *BEFORE, *ONE_VALUE}
    silent = {
        key
        for key in watched.keys - watched.read
        if not any(key == path or key.startswith(f"{path}.") for path in listed)
        and not any(fnmatch(key, pattern) for pattern in excused)
    }
    shown = "\n".join(sorted(silent))
    assert not silent, (
        f"let a module read them, or say in roll/pipelines/checks/keys_without_effect.py that nothing does:\n{shown}"
    )


def test_no_key_is_said_to_do_nothing_that_decides_something(reader: tuple[Reader, dict[str, str]]) -> None:
    watched, listed = reader
    read = {path for path in listed if path in watched.read}
    stale = {path for path in read if not any(fnmatch(path, pattern) for pattern in HANDED_ON)}
    assert not stale, f"these are read after all: {sorted(stale)}"


@pytest.mark.parametrize(("pattern", "module"), ELSEWHERE.items())
def test_a_key_that_is_read_elsewhere_is_read_there(pattern: str, module: str) -> None:
    name = pattern.removesuffix(".*").rpartition(".")[2]
    nodes = list(ast.walk(ast.parse(Path(ROOT / module).read_text(encoding="utf-8"))))
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    # Some modules name keys, and get them by name.
    assert name in read | {node.value for node in nodes if isinstance(node, ast.Constant)}
