"""Keys that are valid alone and contradict each other are found before any model loads."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.config import AgenticConfig, ConfigError, ConfigWarning, load
from roll.config.batch_checks import divisors_around, multiples_around
from roll.config.sample import SampleConfig

Fails = Callable[..., ConfigError]
Loads = Callable[[str], AgenticConfig]

CASES = {
    "Megatron's format of another trainer": (
        "checkpoint_config: {megatron_model: last}",
        "checkpoint_config.megatron_model",
        "last",
        ["use megatron_train"],
    ),
    "Megatron's format of adapters": (
        "checkpoint_config: {megatron_model: always}\n"
        "actor_train: {model_args: {lora_rank: 4}, strategy_args: {strategy_name: megatron_train}}",
        "checkpoint_config.megatron_model",
        "always",
        ["without lora_rank"],
    ),
    "group of one, group estimator": (
        "train_env_manager: {group_size: 1}\nadv_estimator: grpo",
        "train_env_manager.group_size",
        1,
        ["2 or more", "adv_estimator: reinforce"],
    ),
    "group of one, group normalisation": (
        "train_env_manager: {group_size: 1}\nadv_estimator: reinforce\n"
        "reward_normalization: {grouping: traj_group_id, method: mean_std}",
        "train_env_manager.group_size",
        1,
        ["2 or more", "reward_normalization.grouping: batch"],
    ),
    "batch and groups": (
        "rollout_batch_size: 100\ntrain_env_manager: {env_groups: 8, group_size: 4}",
        "rollout_batch_size",
        100,
        ["96 or 128", "train_env_manager.env_groups: 25"],
    ),
    "batch and group size alone": (
        "rollout_batch_size: 60\ntrain_env_manager: {group_size: 8}",
        "rollout_batch_size",
        60,
        ["56 or 64"],
    ),
    "curriculum of one tag": (
        "train_env_manager: {tags: [SimpleSokoban], curriculum: {}}",
        "train_env_manager.tags",
        ["SimpleSokoban"],
        ["two or more", "train_env_manager.curriculum.difficulty"],
    ),
    "difficulty of another tag": (
        "train_env_manager: {tags: [SimpleSokoban], curriculum: {difficulty: {FrozenLake: [3]}}}",
        "train_env_manager.curriculum.difficulty",
        "FrozenLake",
        ["SimpleSokoban"],
    ),
    "difficulties that fall": (
        "train_env_manager: {tags: [SimpleSokoban], curriculum: {difficulty: {SimpleSokoban: [4, 1]}}}",
        "train_env_manager.curriculum.difficulty.SimpleSokoban",
        [4.0, 1.0],
        ["give [1.0, 4.0]"],
    ),
    "curriculum and shares": (
        "train_env_manager: {tags: [SimpleSokoban, LargerSokoban], n_groups: [4, 12], curriculum: {}}",
        "train_env_manager.n_groups",
        [4, 12],
        ["train_env_manager.n_groups", "or the curriculum"],
    ),
    "curriculum of evaluation": (
        "val_env_manager: {tags: [SimpleSokoban, LargerSokoban], curriculum: {}}",
        "val_env_manager.curriculum",
        "in_order",
        ["that are to be measured"],
    ),
    "evaluation batch": (
        "val_batch_size: 100\nval_env_manager: {env_groups: 64}",
        "val_batch_size",
        100,
        ["64 or 128", "val_env_manager.env_groups: 100"],
    ),
    "mini-batches": ("rollout_batch_size: 128\nmini_batches: 3", "mini_batches", 3, ["mini_batches: 2 or 4"]),
    "accumulation": (
        "rollout_batch_size: 128\n"
        "actor_train: {training_args: {per_device_train_batch_size: 4, gradient_accumulation_steps: 5}}",
        "actor_train.training_args.gradient_accumulation_steps",
        5,
        ["gradient_accumulation_steps: 4 or 8", "mini_batches"],
    ),
    "per-device batch": (
        "rollout_batch_size: 128\nactor_train: {training_args: {per_device_train_batch_size: 3, "
        "gradient_accumulation_steps: 5}}",
        "actor_train.training_args.gradient_accumulation_steps",
        5,
        ["rollout_batch_size: 120 or 135", "mini_batches"],
    ),
    "mini-batches against accumulation": (
        "rollout_batch_size: 128\nmini_batches: 4\n"
        "actor_train: {training_args: {per_device_train_batch_size: 4, gradient_accumulation_steps: 16}}",
        "mini_batches",
        4,
        ["null or 8", "mini_batches: null or 2"],
    ),
    "partition sum": (
        "train_env_manager: {env_groups: 16, tags: [A, B], n_groups: [8, 4]}\nrollout_batch_size: 128",
        "train_env_manager.n_groups",
        [8, 4],
        ["train_env_manager.env_groups: 12", "[8, 8]"],
    ),
    "partition length": (
        "val_env_manager: {env_groups: 9, tags: [A, B], num_groups_partition: [9]}",
        "val_env_manager.n_groups",
        [9],
        ["[5, 4]"],
    ),
    "equal shares": (
        "train_env_manager: {env_groups: 16, tags: [A, B, C]}",
        "train_env_manager.env_groups",
        16,
        ["15 or 18", "[6, 5, 5]"],
    ),
    "episodes per environment": (
        "rollout_batch_size: 256\ntrain_env_manager: {env_groups: 16, group_size: 8, max_traj_per_env: 1}",
        "train_env_manager.max_traj_per_env",
        1,
        ["to 2 or -1", "env_groups: 32"],
    ),
    "response longer than a sample": (
        "sequence_length: 64\nactor_infer: {generating_args: {max_new_tokens: 128}}",
        "actor_infer.generating_args.max_new_tokens",
        128,
        ["at most 64", "more than 128"],
    ),
    "tag longer than a sample": (
        "sequence_length: 256\ncustom_envs: {A: {env_type: sokoban, max_tokens_per_step: 512}}",
        "custom_envs.A.max_tokens_per_step",
        512,
        ["at most 256"],
    ),
    "prompt and response longer than a sample": (
        "sequence_length: 512\nprompt_length: 256\nresponse_length: 512",
        "sequence_length",
        512,
        ["768"],
    ),
    "prompt and messages": (
        "actor_train: {data_args: {prompt: instruction, messages: chat}}",
        "actor_train.data_args.messages",
        "chat",
        ["actor_train.data_args.prompt"],
    ),
    "divergence loss without reference": (
        "use_kl_loss: true\nkl_loss_coef: 0.1",
        "use_kl_loss",
        True,
        ["reference:", "use_kl_loss: false"],
    ),
    "a ratio that corrects nothing": (
        "use_kl_loss: true\nkl_loss_coef: 0.1\nkl_penalty: k3+\nuse_bias_correction_kl: true\nreference: {}",
        "use_bias_correction_kl",
        True,
        ["kl_penalty: low_var_kl", "use_bias_correction_kl: false"],
    ),
    "divergence reward without reference": (
        "init_kl_coef: 0.1",
        "init_kl_coef",
        0.1,
        ["reference:", "init_kl_coef: 0"],
    ),
    "value estimator without critic": ("adv_estimator: gae", "adv_estimator", "gae", ["critic:", "grpo"]),
    "device that does not exist": (
        "num_nodes: 1\nnum_gpus_per_node: 8\nactor_infer: {device_mapping: 0-15}",
        "actor_infer.device_mapping",
        list(range(16)),
        ["below 8"],
    ),
    "devices per worker": (
        "num_gpus_per_node: 8\nactor_infer: {device_mapping: 0-7, num_gpus_per_worker: 3}",
        "actor_infer.num_gpus_per_worker",
        3,
        ["2 or 4"],
    ),
    "world size": (
        "num_gpus_per_node: 8\nactor_infer: {device_mapping: 0-7, num_gpus_per_worker: 2, world_size: 8}",
        "actor_infer.world_size",
        8,
        ["set it to 4"],
    ),
    "parallel sizes": (
        "num_gpus_per_node: 8\nactor_train: {device_mapping: 0-7, strategy_args: {strategy_name: megatron_train, "
        "strategy_config: {tensor_model_parallel_size: 3}}}",
        "actor_train.strategy_args.strategy_config",
        {"tensor_model_parallel_size": 3},
        ["2 or 4"],
    ),
}


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_a_contradiction_names_place_value_and_fix(fails: Fails, case: str) -> None:
    text, path, value, fixes = CASES[case]
    error = fails(text, source="mine.yaml")
    (problem,) = error.problems
    assert (problem.path, problem.value) == (path, value)
    assert all(fix in problem.fix for fix in fixes), problem.fix
    assert all(part in str(error) for part in ("mine.yaml", path, repr(value), problem.fix))


def test_a_run_that_only_samples_has_no_curriculum() -> None:
    tags = {"tags": ["SimpleSokoban", "LargerSokoban"], "curriculum": {}}
    with pytest.raises(ConfigError, match="nothing is learned, so that no tag is mastered"):
        load({"train_env_manager": tags, "trajectory_dump_steps": 1}, kind=SampleConfig)


def test_the_suggested_batch_sizes_load(loads: Loads) -> None:
    for size in (96, 128):
        assert loads(f"rollout_batch_size: {size}\ntrain_env_manager: {{env_groups: 8, group_size: 4}}")
    for steps in (2, 4):
        assert loads(f"rollout_batch_size: 128\nmini_batches: {steps}")


@given(st.integers(1, 500), st.integers(1, 600))
def test_suggestions_fit_and_are_the_nearest(number: int, wanted: int) -> None:
    divisors = divisors_around(number, wanted)
    assert divisors and all(number % size == 0 for size in divisors)
    assert not [size for size in range(divisors[0] + 1, min(wanted, number) + 1) if number % size == 0]
    multiples = multiples_around(number, wanted)
    assert all(size % number == 0 and abs(size - wanted) <= number for size in multiples) and multiples


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("reference: {}", "no term uses it"),
        ("critic: {}", "does not use one"),
        ("use_kl_loss: true\nreference: {}", "no weight"),
        ("kl_loss_coef: 0.1", "no effect"),
        ("add_token_level_kl: true", "no effect"),
        (
            "rollout_batch_size: 64\nactor_train: {training_args: {gradient_accumulation_steps: 512}}",
            "asks for 512 trajectories",
        ),
    ],
)
def test_what_has_no_effect_is_a_warning(loads: Loads, text: str, part: str) -> None:
    with pytest.warns(ConfigWarning, match=part):
        loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "reference: {}\nuse_kl_loss: true\nkl_loss_coef: 0.1",
        "reference: {}\ninit_kl_coef: 0.1",
        "critic: {}\nadv_estimator: gae",
        "train_env_manager: {group_size: 1}\nadv_estimator: reinforce",
        "train_env_manager: {group_size: 1}\nadv_estimator: reinforce\n"
        "reward_normalization: {grouping: batch, method: mean_std}",
        "actor_train: {data_args: {messages: chat}}",
        "adv_estimator: my_own\npolicy_loss: mine_too\nalgorithm_modules: my_package.algorithms",
        "num_gpus_per_node: 8\nactor_infer: {device_mapping: 0-15}",
    ],
)
def test_what_fits_together_neither_fails_nor_warns(loads: Loads, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loads(text)


def test_the_order_of_the_problems_does_not_hide_any(fails: Fails) -> None:
    error = fails("sequence_length: 64\nmini_batches: 3\nadv_estimator: gae\ntrack_with: x")
    assert {problem.path for problem in error.problems} == {
        "actor_infer.generating_args.max_new_tokens",
        "mini_batches",
        "adv_estimator",
        "track_with",
    }


def test_the_defaults_alone_load_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(load({}), AgenticConfig)
