"""Every mistake is one readable error: file, key path, value, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from roll.config import ConfigError, load

Fails = Callable[..., ConfigError]


@pytest.mark.parametrize(
    ("text", "path", "suggestion"),
    [
        ("max_stepz: 5", "max_stepz", "did you mean max_steps?"),
        ("Max_Steps: 5", "Max_Steps", "did you mean max_steps?"),
        ("train_env_manager: {grop_size: 8}", "train_env_manager.grop_size", "train_env_manager.group_size?"),
        (
            "actor_train: {training_args: {lerning_rate: 0.1}}",
            "actor_train.training_args.lerning_rate",
            "actor_train.training_args.learning_rate?",
        ),
        (
            "custom_envs: {Mine: {env_type: sokoban, env_confg: {}}}",
            "custom_envs.Mine.env_confg",
            "custom_envs.Mine.env_config?",
        ),
        ("actor_train: {learning_rate: 0.1}", "actor_train.learning_rate", "actor_train.training_args.learning_rate."),
        ("temperature: 0.1", "temperature", "generating_args.temperature."),
        ("train_env_manager: {num_env_group: 8}", "train_env_manager.num_env_group", "env_groups?"),
    ],
)
def test_an_unknown_key_names_the_key_that_was_meant(fails: Fails, text: str, path: str, suggestion: str) -> None:
    (problem,) = fails(text).problems
    assert problem.path == path
    assert problem.message == "unknown key."
    assert suggestion in problem.fix


@pytest.mark.parametrize(
    ("text", "path", "value", "fix"),
    [
        ("max_steps: many", "max_steps", "many", "whole number"),
        ("max_steps: 1.5", "max_steps", 1.5, "whole number"),
        ("max_steps: -1", "max_steps", -1, "greater than or equal to 0"),
        ("max_steps: '3'", "max_steps", "3", "leave out the quotes: write 3, not '3'."),
        ("max_steps: '1e3'", "max_steps", "1e3", "write a whole number"),
        ("gamma: '9e-1'", "gamma", "9e-1", "write 9e-1, not '9e-1'."),
        ("gamma: high", "gamma", "high", "write a number"),
        ("deterministic: 1", "deterministic", 1, "true or false"),
        ("actor_train: fast", "actor_train", "fast", "section"),
        (
            "actor_infer: {generating_args: {top_p: 1.5}}",
            "actor_infer.generating_args.top_p",
            1.5,
            "less than or equal",
        ),
        ("loss_agg_mode: token_mean", "loss_agg_mode", "token_mean", "did you mean 'token-mean'?"),
        ("reward_normalization: {method: meanstd}", "reward_normalization.method", "meanstd", "'mean_std'"),
        ("dual_clip_loss: 0.5", "dual_clip_loss", 0.5, "greater than 1"),
        ("track_with: tensorbord", "track_with", "tensorbord", "did you mean 'tensorboard'?"),
        ("track_with: [stdout, wanb]", "track_with.1", "wanb", "'wandb'"),
        ("adv_estimator: grppo", "adv_estimator", "grppo", "'grpo'"),
        ("policy_loss: ppoo", "policy_loss", "ppoo", "'ppo'"),
        (
            "actor_infer: {strategy_args: {strategy_name: vlllm}}",
            "actor_infer.strategy_args.strategy_name",
            "vlllm",
            "'vllm'",
        ),
        (
            "actor_train: {strategy_args: {strategy_name: vllm}}",
            "actor_train.strategy_args.strategy_name",
            "vllm",
            "fsdp_train",
        ),
        (
            "actor_infer: {device_mapping: 'list(rnge(0,4))'}",
            "actor_infer.device_mapping",
            "list(rnge(0,4))",
            "range(0,8",
        ),
        ("custom_envs: {A: {env_config: {}}}", "custom_envs.A.env_type", None, "add the key"),
    ],
)
def test_a_wrong_value_names_its_place_and_what_to_write(
    fails: Fails, text: str, path: str, value: object, fix: str
) -> None:
    error = fails(text)
    (problem,) = error.problems
    assert problem.path == path
    assert fix in problem.fix
    assert path in str(error) and problem.fix in str(error)
    if value is not None:
        assert problem.value == value
        assert repr(value) in str(error)


def test_all_problems_are_listed_at_once(fails: Fails) -> None:
    error = fails("max_stepz: 1\nseed: x\nactor_train: {traning_args: {}}")
    assert {problem.path for problem in error.problems} == {"max_stepz", "seed", "actor_train.traning_args"}
    assert "3 problems" in str(error)


def test_both_spellings_of_a_key_are_refused(fails: Fails) -> None:
    error = fails("train_env_manager: {env_groups: 16, num_env_groups: 16}")
    assert "'num_env_groups' is another name of 'env_groups'" in str(error)
    assert "remove one of them" in str(error)


def test_a_broken_interpolation_suggests_the_key_that_exists(fails: Fails) -> None:
    error = fails("max_steps: 5\neval_steps: ${max_stepz}\nsave_steps: ${nothing_like_it}")
    assert [problem.path for problem in error.problems] == ["eval_steps", "save_steps"]
    assert "${max_steps}" in error.problems[0].fix
    assert error.problems[1].value == "${nothing_like_it}"


def test_a_missing_library_names_the_defaults_entry(fails: Fails) -> None:
    tag, zero = fails(
        "custom_envs: {A: '${custom_env.A}'}\n"
        "actor_train: {strategy_args: {strategy_name: deepspeed_train, strategy_config: '${deepspeed_zero2}'}}"
    ).problems
    assert {"- ../config/envs@_here_", "- ../config/deepspeed_zero2@_here_"} <= set(
        tag.fix.split("'") + zero.fix.split("'")
    )


def test_a_value_that_must_be_given_is_reported(fails: Fails) -> None:
    (problem,) = fails("pretrain: ???").problems
    assert problem.path == "pretrain" and "required" in problem.message


def test_the_yaml_file_and_line_are_named(tmp_path: Path) -> None:
    (tmp_path / "library.yaml").write_text("custom_env:\n  A:\n    env_typ: sokoban\n")
    primary = tmp_path / "mine.yaml"
    primary.write_text(f"defaults:\n  - ../{tmp_path.name}/library@_here_\n\nseed: 1\nmax_stepz: 5\n")
    composed = OmegaConf.merge(OmegaConf.load(tmp_path / "library.yaml"), OmegaConf.load(primary))
    with pytest.raises(ConfigError) as caught:
        load(composed, source=str(primary), overrides=["++seed=x"])  # type: ignore[arg-type]
    sources = {problem.path: problem.source for problem in caught.value.problems}
    assert sources["max_stepz"] == f"{primary}:5"
    assert sources["custom_env.A.env_typ"] == f"{tmp_path / 'library.yaml'}:3"
    assert sources["seed"] == "from Python: seed=x"


def test_an_override_is_named_as_the_origin(fails: Fails) -> None:
    (problem,) = fails("max_stepz: 5", source="sokoban", overrides=["++max_stepz=5"]).problems
    assert problem.source == "from Python: max_stepz=5"


def test_a_label_stands_in_for_a_file(fails: Fails) -> None:
    assert "[a test]" in str(fails("max_stepz: 5", source="a test"))


def test_a_plain_mapping_loads_like_a_composed_one() -> None:
    assert load({"max_steps": 3}).max_steps == 3
    with pytest.raises(ConfigError, match="max_steps"):
        load({"max_step": 3})
