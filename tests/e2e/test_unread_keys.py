"""No key is silent: every key of a configuration is read by a run, or a run says that it does nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from roll.config import RLConfig
from roll.envs import ENV_TYPES, TAGS
from roll.pipelines.agentic import run_agentic
from roll.pipelines.checks.keys_without_effect import unread_keys
from roll.pipelines.rlvr import run_rlvr
from roll.rehearsal.key_watch import BEFORE, INTERPOLATED, ONE_VALUE, KeyWatch
from tests.e2e.rlvr_support import small_config as small_prompts
from tests.e2e.support import ROOT, small_config
from tests.rings import exhaustive_but

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
    "over_rollout.wait_after_min": "roll/pipelines/sampling/stream.py",
    **dict.fromkeys(
        ("gamma", "lambd", "step_reward_gamma", "step_reward_weight", "norm_adv_by_std_in_grpo"),
        "roll/pipelines/learning/algorithm_options.py",
    ),
    "dynamic_sampling.*": "roll/pipelines/sampling/stream.py",
    "max_additional_running_prompts": "roll/pipelines/sampling/prompts.py",
    "pg_clip": "roll/config/algorithm.py",
    "validation.data_args.*": "roll/config/prompt_keys.py",
    "validation.generating_args.*": "roll/config/prompt_keys.py",
    "*.data_args.subset": "roll/data/places.py",
    "*.data_args.split": "roll/data/places.py",
    **dict.fromkeys(
        ("tools", "tool_use", "tool_use.*", "max_retries", "retry_wait"), "roll/pipelines/sampling/prompt_play.py"
    ),
    "rewards.*.model_args": "roll/workers/reward_engines.py",
    "rewards.*.model_args.model_name_or_path": "roll/workers/reward_engines.py",
    "rewards.*.model_args.dtype": "roll/workers/reward_engines.py",
    "rewards.*.model_args.rope_scaling": "roll/workers/loading.py",
    "rewards.*.model_args.rope_theta": "roll/workers/loading.py",
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

HANDED_ON = {
    *("reward_shift", "reward_scale", "use_reward_norm", "overlong_buffer", "sampler_correction"),
    *("rpc_timeout", "enable_ray_timeline", "*.system_envs", "reward"),
    *("actor_infer.model_args.dtype", "actor_train.data_args.history"),
}
"""Keys that are copied into a record whatever the run, and that nothing reads from it in a run like these."""

HELPERS: dict[str, Any] = {"use_kl_loss": "true", "kl_loss_coef": 0.1, "init_kl_coef": 0.1, "max_steps": 1}
"""A run of one step with a reference and, where an estimator needs it, a critic."""


def agentic_run(folder: Path) -> tuple[RLConfig, Callable[[], Any]]:
    config = small_config(folder, reference="{}", critic="{}", adv_estimator="gae", **HELPERS)
    return config, lambda: run_agentic(config)


def rlvr_run(folder: Path) -> tuple[RLConfig, Callable[[], Any]]:
    config = small_prompts(folder, reference={}, critic={}, adv_estimator="gae", **HELPERS)
    return config, lambda: run_rlvr(config)


@pytest.fixture(scope="module", params=exhaustive_but([agentic_run, rlvr_run], agentic_run))
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KeyWatch, dict[str, str]]]:
    """A run that is watched."""
    config, run = request.param(tmp_path_factory.mktemp("watched") / "out")
    watched = KeyWatch(config)

    # With the tags as this small run has them, other tests would fail.
    with watched.watching(), ENV_TYPES.restored(), TAGS.restored():
        run()
    yield watched, unread_keys(config)


@pytest.mark.exhaustive
def test_every_key_is_read_or_said_to_do_nothing(reader: tuple[KeyWatch, dict[str, str]]) -> None:
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


def test_no_key_is_said_to_do_nothing_that_decides_something(reader: tuple[KeyWatch, dict[str, str]]) -> None:
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
