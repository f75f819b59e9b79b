"""Aliases, derived values, the batch plan, and what this version cannot run yet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from roll.config import AgenticConfig, ConfigError, load, require_available, require_runnable

Loads = Callable[[str], AgenticConfig]


def test_aliases_mean_the_same(loads: Loads) -> None:
    first = loads("train_env_manager: {env_groups: 6, tags: [A, B], n_groups: [2, 4], group_size: 4}")
    second = loads("train_env_manager: {num_env_groups: 6, tags: [A, B], num_groups_partition: [2, 4], group_size: 4}")
    assert first == second
    assert first.train_env_manager.groups_per_tag() == [("A", 2), ("B", 4)]


@pytest.mark.parametrize(("written", "meant"), [("traj_group_id", "state"), ("tags", "inductive"), ("batch", "batch")])
def test_grouping_aliases(loads: Loads, written: str, meant: str) -> None:
    assert loads(f"reward_normalization: {{grouping: {written}}}").reward_normalization.grouping == meant


def test_an_unset_partition_divides_equally(loads: Loads) -> None:
    config = loads("val_env_manager: {env_groups: 12, tags: [A, B, C]}")
    assert config.val_env_manager.groups_per_tag() == [("A", 4), ("B", 4), ("C", 4)]


@pytest.mark.parametrize(
    ("text", "batch", "groups"),
    [
        ("rollout_batch_size: 512", 512, 64),
        ("train_env_manager: {env_groups: 32}", 256, 32),
        ("train_env_manager: {tags: [A, B], n_groups: [3, 2]}", 40, 5),
        ("rollout_batch_size: null\ntrain_env_manager: {group_size: 4, env_groups: 3}", 12, 3),
        ("rollout_batch_size: 64\ntrain_env_manager: {env_groups: null}", 64, 8),
        ("rollout_batch_size: 64\ntrain_env_manager: {env_groups: 4, group_size: 8}", 64, 4),
        ("{}", 128, 16),
    ],
)
def test_batch_size_and_groups_follow_from_each_other(loads: Loads, text: str, batch: int, groups: int) -> None:
    config = loads(text)
    assert (config.rollout_batch_size, config.train_env_manager.env_groups) == (batch, groups)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("{}", 2048),
        ("prompt_length: 2048\nresponse_length: 4096", 6144),
        ("response_length: 512", 1536),
        ("sequence_length: 600", 600),
        ("prompt_length: 100\nresponse_length: 100\nsequence_length: 600", 600),
    ],
)
def test_sequence_length_follows_from_prompt_and_response(loads: Loads, text: str, length: int) -> None:
    assert loads(text).sequence_length == length


def test_a_single_name_is_a_list_of_one(loads: Loads) -> None:
    config = loads("track_with: jsonl\ntrain_env_manager: {tags: FrozenLake}")
    assert config.track_with == ["jsonl"]
    assert config.train_env_manager.tags == ["FrozenLake"]


def test_a_run_is_named_after_its_file(tmp_path: Path) -> None:
    file = tmp_path / "my_run.yaml"
    file.write_text("seed: 1\n")
    assert load({"seed": 1}, source=str(file)).exp_name == "my_run"
    assert load({"exp_name": "other"}, source=str(file)).exp_name == "other"
    assert load({"trainer": {"experiment_name": "verls"}}, source=str(file)).exp_name == "verls"
    assert load({"seed": 1}).exp_name == "roll"


def test_environment_variables_may_be_numbers(loads: Loads) -> None:
    assert loads("system_envs: {USE_MODELSCOPE: 1, B: 'x'}").system_envs == {"USE_MODELSCOPE": "1", "B": "x"}


def test_folders_follow_output_dir(loads: Loads) -> None:
    config = loads("output_dir: /tmp/run\nrender_save_dir: /tmp/pages")
    assert config.logs_path == Path("/tmp/run/logs")
    assert config.checkpoint_path == Path("/tmp/run/checkpoints")
    assert config.render_path == Path("/tmp/pages")


def test_models_of_roles_follow_pretrain(loads: Loads) -> None:
    config = loads(
        "pretrain: P\nreward_pretrain: R\nadv_estimator: gae\ncritic: {}\n"
        "actor_infer: {model_args: {model_name_or_path: I}}"
    )
    assert [config.model_path(role) for role in ("actor_train", "actor_infer", "critic")] == ["P", "I", "R"]


@pytest.mark.parametrize(("written", "c"), [("true", 3.0), ("false", None), ("5", 5.0), ("2.5", 2.5)])
def test_dual_clip_is_a_switch_or_a_number(loads: Loads, written: str, c: float | None) -> None:
    assert loads(f"dual_clip_loss: {written}").dual_clip == c


def test_clip_ranges_follow_pg_clip(loads: Loads) -> None:
    config = loads("pg_clip: 0.1\npg_clip_high: 0.3")
    assert (config.clip_low, config.clip_high) == (0.1, 0.3)


def test_evaluation_changes_only_the_sampling_keys_that_it_sets(loads: Loads) -> None:
    config = loads(
        "actor_infer: {generating_args: {max_new_tokens: 9, top_k: 5}}\nval_generating_args: {temperature: 0}"
    )
    assert (config.val_generating.max_new_tokens, config.val_generating.top_k) == (9, 5)
    assert config.val_generating.temperature == 0
    assert config.actor_infer.generating_args.temperature == 1


def test_a_loaded_configuration_cannot_be_changed(loads: Loads) -> None:
    config = loads("{}")
    with pytest.raises(ValidationError, match="frozen"):
        config.max_steps = 7  # type: ignore[misc]


def test_nodes_are_counted_from_the_devices(loads: Loads) -> None:
    assert loads("num_gpus_per_node: 8\nactor_train: {device_mapping: 0-15}").nodes == 2
    assert loads("{}").nodes == 1


def test_tags_of_the_library_and_of_the_run_become_registry_mappings(loads: Loads) -> None:
    config = loads(
        "custom_env: {A: {env_type: sokoban, use_thread_lock: true, max_steps: 5}, B: {env_type: frozen_lake}}\n"
        "custom_envs: {A: {env_type: sokoban, env_config: {grid_lookup: {0: W}}}}"
    )
    assert config.tag_mappings() == {
        "A": {"env_type": "sokoban", "env_config": {"grid_lookup": {0: "W"}}},
        "B": {"env_type": "frozen_lake", "env_config": {}},
    }


def test_batch_plan_numbers(loads: Loads) -> None:
    batch_plan = loads(
        "max_steps: 10\nsequence_length: 600\nppo_epochs: 2\nmini_batches: 4\nrollout_batch_size: 512\n"
        "train_env_manager: {env_groups: 32, group_size: 8, tags: [A, B]}\n"
        "val_env_manager: {env_groups: 100}\n"
        "custom_envs: {A: {env_type: sokoban, max_tokens_per_step: 20}, "
        "B: {env_type: sokoban, max_tokens_per_step: 50}}\n"
        "actor_train: {training_args: {per_device_train_batch_size: 16}}"
    ).plan()
    assert batch_plan.train.groups == [("A", 16), ("B", 16)]
    assert batch_plan.train.episodes_per_environment == 2
    assert batch_plan.update.trajectories_per_optimizer_step == 128
    assert batch_plan.update.optimizer_steps == 8
    assert batch_plan.update.micro_batches == 8
    assert batch_plan.total_optimizer_steps == 80
    assert batch_plan.max_tokens_per_step == 512 * 600
    assert batch_plan.max_new_tokens == 50
    assert batch_plan.val.trajectories == 100
    text = batch_plan.describe()
    for part in ("512 trajectories", "A 16, B 16", "2 × 4 optimiser steps of 128", "8 micro-batches", "80 optimiser"):
        assert part in text


def test_the_guides_formula_gives_the_optimiser_steps(loads: Loads) -> None:
    config = loads(
        """
        num_gpus_per_node: 8
        rollout_batch_size: 512
        actor_train:
          device_mapping: list(range(0,16))
          training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 16}
          strategy_args:
            strategy_name: megatron_train
            strategy_config:
              tensor_model_parallel_size: 2
              pipeline_model_parallel_size: 2
              expert_model_parallel_size: 2
        """
    )
    update = config.plan().update
    assert update.data_parallel == 4
    assert update.mini_batches == 512 // (2 * 16 * 4)
    assert update.micro_batches == 16


def test_a_token_budget_is_shown_instead_of_a_count(loads: Loads) -> None:
    assert (
        "at most 4096 tokens"
        in loads("actor_train: {training_args: {max_tokens_per_microbatch: 4096}}").plan().describe()
    )


def test_the_laptop_strategies_are_available() -> None:
    require_available("fsdp_train", role="actor_train")
    require_available("hf_infer", role="actor_infer")
    require_available("hf_infer", role="reference")


@pytest.mark.heavy
def test_ranks_that_hold_one_model_need_processes(loads: Loads) -> None:
    require_runnable(loads("cluster: ray\nactor_train: {world_size: 2}\nactor_infer: {world_size: 2}"))
    with pytest.raises(ConfigError, match=r"actor_train\.world_size(.|\n)*cluster=ray"):
        require_runnable(loads("cluster: local\nactor_train: {world_size: 2}"))
    require_runnable(loads("actor_infer: {world_size: 2}"))


def test_unknown_and_unfit_strategies_are_refused_when_used() -> None:
    with pytest.raises(ConfigError, match="did you mean 'vllm'"):
        require_available("vlm", role="actor_infer")
    with pytest.raises(ConfigError, match="cannot serve actor_train"):
        require_available("hf_infer", role="actor_train")


def test_everything_that_cannot_run_is_listed_at_once(loads: Loads) -> None:
    require_runnable(loads("{}"))
    config = loads(
        "cluster: local\ntrack_with: wandb\nactor_infer: {strategy_args: {strategy_name: sglang}}\n"
        "actor_train: {world_size: 2}"
    )
    with pytest.raises(ConfigError) as caught:
        require_runnable(config)
    assert [problem.path for problem in caught.value.problems] == [
        "actor_train.world_size",
        "actor_infer.strategy_args.strategy_name",
        "track_with",
    ]


def test_a_tracker_whose_package_is_missing_is_reported(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.config.runnable.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        require_runnable(loads("track_with: wandb"))


def test_ray_that_is_not_installed_is_reported(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.config.runnable.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"cluster(.|\n)*roll-rl\[ray\]"):
        require_runnable(loads("cluster: ray\ntrack_with: [jsonl]"))


@pytest.mark.processes
def test_importing_the_configuration_loads_no_engine() -> None:
    code = "import sys, roll.config; print([m for m in ('torch', 'ray', 'transformers', 'hydra') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_configuration_survives_a_round_trip(loads: Loads) -> None:
    config = loads("track_with: [jsonl]\nactor_train: {device_mapping: 0-3}\nnum_gpus_per_node: 8\nmini_batches: 4")
    assert load(config.model_dump()) == config
