"""Files that were written for ROLL: composed by their defaults lists, and converted."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.convert import convert, read

_ENVS = """
max_tokens_per_step: 128
custom_env:
  Box:
    env_type: sokoban
    max_steps: 5
    max_tokens_per_step: ${max_tokens_per_step}
    env_manager_cls: roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager
"""

_RUN = """
defaults:
  - ../config/envs@_here_
hydra:
  run:
    dir: .
max_tokens_per_step: 32
rollout_batch_size: 8
offload_nccl: true
key_of_tomorrow: 3
train_env_manager: {num_env_groups: 2, group_size: 4, tags: [Box], num_groups_partition: [2]}
val_env_manager: {num_env_groups: 2, group_size: 1, tags: [Box], num_groups_partition: [2]}
custom_envs:
  Box: ${custom_env.Box}
"""


def _write(folder: Path, run: str = _RUN) -> Path:
    (folder / "config").mkdir()
    (folder / "example").mkdir()
    (folder / "config" / "envs.yaml").write_text(_ENVS)
    path = folder / "example" / "run.yaml"
    path.write_text(run)
    return path


def test_a_file_is_composed_with_those_of_its_defaults_list(tmp_path: Path) -> None:
    tree = read([_write(tmp_path)]).tree

    assert tree["custom_envs"]["Box"]["max_tokens_per_step"] == 32
    assert "hydra" not in tree


def test_keys_that_nobody_knows_are_left_out_and_recorded(tmp_path: Path) -> None:
    found = convert(read([_write(tmp_path)]), "roll")

    assert found.problems == []
    states = {key.key: key.state for key in found.keys}
    assert states["key_of_tomorrow"] == "impossible"
    assert states["offload_nccl"] == "no_effect"
    assert states["rollout_batch_size"] == "translated"
    assert "key_of_tomorrow" not in found.native


def test_a_typing_mistake_is_a_problem(tmp_path: Path) -> None:
    found = convert(read([_write(tmp_path, _RUN.replace("rollout_batch_size", "rollout_batch_siz"))]), "roll")

    assert [problem.path for problem in found.problems] == ["rollout_batch_siz"]


def test_arguments_that_an_engine_is_not_told_are_left_out_and_a_typing_mistake_is_a_problem(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    options = "actor_infer: {strategy_args: {strategy_name: vllm, strategy_config: {%s}}}\n"
    written = _RUN + options % "cuda_graph_sizes: [1, 2], disable_log_stats: false, enforce_eager: true"
    found = convert(read([_write(tmp_path, written)]), "roll")

    assert found.problems == []
    where = "actor_infer.strategy_args.strategy_config"
    states = {key.key: key.state for key in found.keys}
    assert states[f"{where}.cuda_graph_sizes"] == "impossible"
    assert states[f"{where}.disable_log_stats"] == "no_effect"
    assert found.native["actor_infer"]["strategy_args"]["strategy_config"] == {"enforce_eager": True}

    (tmp_path / "example" / "run.yaml").write_text(_RUN + options % "enforce_eage: true")
    (problem,) = convert(read([tmp_path / "example" / "run.yaml"]), "roll").problems
    assert problem.path == f"{where}.enforce_eage"
