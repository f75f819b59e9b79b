"""Sections of other guides beside native keys: whole examples, conflicts, mistakes, presets, and the page."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from roll.config import AgenticConfig, ConfigError, ConfigWarning, load
from roll.config.dialects import GUIDES, insert_dialects, render_dialects
from roll.config.presets import PRESETS, apply_preset
from roll.config.rlvr import RLVRConfig

FRAGMENTS = Path(__file__).parent / "dialect_fragments"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "dialects.md"

GRADED = "rewards: {math_rule: {}}"
PROMPTS = "actor_train: {data_args: {file_name: a.jsonl}}"

Loads = Callable[[str], AgenticConfig]
Fails = Callable[..., ConfigError]


def fragment(name: str, *more: str) -> tuple[RLVRConfig, list[str]]:
    """Load an example as an RLVR run; return the configuration and its warnings."""
    parts = [OmegaConf.load(FRAGMENTS / f"{name}.yaml"), *(OmegaConf.create(text) for text in more)]
    merged: Any = OmegaConf.merge(*parts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = load(merged, kind=RLVRConfig)
    return loaded, [str(item.message) for item in caught]


def agentic(text: str) -> tuple[AgenticConfig, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = load(OmegaConf.create(text))
    return loaded, [str(item.message) for item in caught]


def only_problem(error: ConfigError) -> tuple[str, str, str]:
    (problem,) = error.problems
    return problem.path, problem.message, problem.fix


# Whole examples


def test_the_example_of_verl_loads() -> None:
    config, messages = fragment("verl", GRADED)
    assert (config.adv_estimator, config.lambd, config.mini_batches, config.rollout_batch_size) == ("gae", 1.0, 4, 1024)
    assert config.critic is not None and config.reference is None
    assert (config.entropy_loss_coef, config.use_kl_loss, config.init_kl_coef, config.target_kl) == (
        0.001,
        False,
        0,
        None,
    )
    assert config.actor_infer.strategy_args.strategy_name == "vllm"
    assert config.actor_infer.generating_args.max_new_tokens == config.response_length == 512
    assert config.custom_reward_function is None
    assert (config.save_steps, config.track_with) == (0, ["stdout", "wandb"])
    kl = next(text for text in messages if "algorithm.kl_ctrl.kl_coef" in text)
    assert "algorithm.use_kl_in_reward is not true" in kl


def test_the_example_of_chatlearn_loads() -> None:
    config, messages = fragment("chatlearn", GRADED)
    assert (config.pg_clip_high, config.pg_clip_low, config.policy_loss) == (0.2, 0.2, "ppo")
    assert (config.rollout_batch_size, config.num_return_sequences_in_group, config.mini_batches) == (16, 32, 1)
    # Its reference is described, and no term uses it: that is said.
    assert config.use_kl_loss is False and config.reference is not None
    assert any(text.startswith("models.ref_policy") or text.startswith("reference") for text in messages), messages
    assert (config.sequence_length, config.max_steps) == (3072, 200)
    assert config.val_generating.top_k == 20


def test_the_parameters_of_mindspeed_load() -> None:
    config, _ = fragment("mindspeed")
    assert (config.adv_estimator, config.kl_penalty, config.kl_loss_coef) == ("grpo", "low_var_kl", 0.001)
    assert config.use_kl_loss and config.reference is not None and config.init_kl_coef == 0
    assert (config.rollout_batch_size, config.mini_batches, config.num_return_sequences_in_group) == (32, 2, 8)
    assert {name: term.weight for name, term in config.rewards["all"].terms("all").items()} == {
        "acc": 1.0,
        "strict_format": 1.0,
    }
    assert config.track_with == ["tensorboard"]


def test_the_example_of_trinity_loads() -> None:
    config, _ = fragment("trinity", GRADED)
    # The preset is grpo; the guide's example sets another estimator, which it must not change.
    assert (config.algorithm_type, config.adv_estimator, config.policy_loss) == ("grpo", "gae", "ppo")
    assert config.critic is not None and config.reference is not None
    assert (config.use_kl_loss, config.kl_penalty, config.kl_loss_coef) == (True, "mse", 0.001)
    assert (config.rollout_batch_size, config.num_return_sequences_in_group, config.mini_batches) == (32, 8, 1)
    assert config.actor_train.training_args.max_tokens_per_microbatch == 16384


def test_the_sections_of_verl_in_the_guide_of_trinity_load() -> None:
    config, _ = fragment("trinity_verl", GRADED, PROMPTS, "adv_estimator: gae")
    assert config.value_clip == 0.5
    assert config.critic is not None and config.critic.training_args.learning_rate == 1e-5
    assert config.critic.training_args.max_tokens_per_microbatch == 32768
    assert config.checkpoint_config.keep == 5


@pytest.mark.parametrize("name", ["verl", "chatlearn", "mindspeed", "trinity", "trinity_verl"])
def test_an_example_loads_for_environments_too(name: str) -> None:
    config, messages = agentic((FRAGMENTS / f"{name}.yaml").read_text())
    graded = [text for text in messages if "environments grade their own episodes" in text]
    assert bool(graded) == (name in ("mindspeed", "trinity"))
    assert config.train_env_manager.group_size == {"verl": 1, "chatlearn": 32}.get(name, 8)


# Native keys and other spellings side by side


def test_native_keys_are_left_as_they_are(loads: Loads) -> None:
    text = "gamma: 0.9\ncritic: {training_args: {learning_rate: 1.0e-5}}\nadv_estimator: gae\ncluster: local"
    config = loads(text)
    assert (config.gamma, config.adv_estimator, config.cluster) == (0.9, "gae", "local")
    assert config.critic is not None and config.critic.training_args.learning_rate == 1e-5


def test_a_section_may_hold_native_and_foreign_keys_where_both_have_it() -> None:
    config, _ = agentic(
        "adv_estimator: gae\ncritic: {infer_batch_size: 3, cliprange_value: 0.4, optim: {lr: 3.0e-5}, "
        "training_args: {weight_decay: 0.1}}"
    )
    assert config.critic is not None and config.value_clip == 0.4
    assert config.critic.infer_batch_size == 3
    assert config.critic.training_args.learning_rate == 3e-5
    assert config.critic.training_args.weight_decay == 0.1


def test_a_native_switch_counts_for_the_keys_of_a_guide() -> None:
    config, messages = agentic(
        "use_kl_loss: true\nreference: {}\nactor: {kl_loss_coef: 0.1, kl_loss_type: k2}\n"
        "actor_rollout_ref: {ref: {log_prob_micro_batch_size_per_gpu: 3}}"
    )
    assert (config.kl_loss_coef, config.kl_penalty) == (0.1, "mse")
    assert config.reference is not None and config.reference.infer_batch_size == 3
    assert messages == []


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("actor: {clip_ratio: 0.1}", "pg_clip", 0.1),
        ("pos_clip_ratio: 0.3", "pg_clip_high", 0.3),
        ("policy_trainer: {neg_clip_ratio: 0.3}", "pg_clip_low", 0.3),
        ("entropy_coef: 0.01", "entropy_loss_coef", 0.01),
        ("use_group_sequence_policy: true", "policy_loss", "gspo"),
    ],
)
def test_short_forms(loads: Loads, text: str, path: str, expected: Any) -> None:
    assert getattr(loads(text), path) == expected


def test_a_switch_that_is_off_turns_nothing_on(loads: Loads) -> None:
    config, messages = agentic("use_group_sequence_policy: false\nkl_coef: 0.0\nrl_config: {init_kl_coef: 0}")
    assert (config.policy_loss, config.use_kl_loss, config.reference) == ("ppo", False, None)
    assert messages == []


def test_a_weight_that_adapts_is_announced_to_move_to_the_reward() -> None:
    config, messages = agentic("rl_config: {kl_ctrl_type: adaptive, init_kl_coef: 0.1, kl_target: 0.2}")
    assert (config.init_kl_coef, config.target_kl, config.use_kl_loss) == (0.1, 0.2, False)
    (text,) = messages
    assert text.startswith("rl_config.kl_ctrl_type: only the divergence in the reward has an adaptive weight")


def test_both_spellings_may_say_the_same() -> None:
    config, messages = agentic("gamma: 0.9\nalgorithm: {gamma: 0.9}\nrl_config: {gamma: 0.9}")
    assert config.gamma == 0.9 and messages == []


def test_a_native_key_that_says_otherwise_is_a_conflict(fails: Fails) -> None:
    path, message, fix = only_problem(fails("gamma: 0.9\nalgorithm: {gamma: 0.8}"))
    assert path == "algorithm.gamma"
    assert "algorithm.gamma = 0.8 and gamma = 0.9 both say what gamma is" in message
    assert fix == "remove algorithm.gamma or gamma."


def test_two_guides_that_say_different_things_are_a_conflict(fails: Fails) -> None:
    path, message, _ = only_problem(fails("actor: {clip_ratio: 0.1}\nrl_config: {clip_ratio: 0.3}"))
    assert path == "rl_config.clip_ratio"
    assert "rl_config.clip_ratio = 0.3 and actor.clip_ratio = 0.1" in message


def test_the_options_of_a_policy_loss_count_where_it_is_chosen() -> None:
    actor = (
        "actor_rollout_ref: {{actor: {{policy_loss: {{loss_mode: {}, kl_cov_ratio: 0.001, clip_cov_ratio: 0.01}}}}}}"
    )
    config, messages = agentic(actor.format("kl_cov"))
    assert config.policy_loss == "kl_cov" and config.policy_loss_options == {"kl_cov_ratio": 0.001}
    assert any("clip_cov_ratio" in text for text in messages)
    config, _ = agentic(actor.format("vanilla"))
    assert config.policy_loss == "ppo" and config.policy_loss_options == {}


@pytest.mark.parametrize("estimator", ["gpg", "grpo_passk"])
def test_estimators_of_verl_have_the_same_names(estimator: str) -> None:
    config, _ = agentic(f"algorithm: {{adv_estimator: {estimator}}}")
    assert config.adv_estimator == estimator


def test_two_estimates_of_the_divergence_are_a_conflict_only_where_both_are_used(fails: Fails) -> None:
    both = (
        "algorithm: {{use_kl_in_reward: {}, kl_penalty: k1, kl_ctrl: {{kl_coef: 0.1}}}}\n"
        "actor: {{use_kl_loss: true, kl_loss_coef: 0.1, kl_loss_type: low_var_kl}}"
    )
    path, message, _ = only_problem(fails(both.format("true")))
    assert path == "actor.kl_loss_type" and "algorithm.kl_penalty = 'k1'" in message
    config, messages = agentic(both.format("false"))
    assert config.kl_penalty == "low_var_kl" and config.init_kl_coef == 0
    assert any("algorithm.kl_penalty" in text for text in messages)


# Mistakes


@pytest.mark.parametrize(
    ("text", "path", "guide", "fix"),
    [
        ("algorithm: {gama: 0.9}", "algorithm.gama", "verl", "algorithm.gamma"),
        ("algorithm: {advantage_fm: ppo}", "algorithm.advantage_fm", "Trinity-RFT", "algorithm.advantage_fn"),
        ("actor: {clip_rato: 0.1}", "actor.clip_rato", "verl", "actor.clip_ratio"),
        ("actor_rollout_ref: {actor: {optim: {l: 1}}}", "actor_rollout_ref.actor.optim.l", "verl", "optim.lr"),
        ("rl_config: {clip_rati: 0.1}", "rl_config.clip_rati", "MindSpeed-RL", "rl_config.clip_ratio"),
        ("models: {policy_trainer: {kl_cof: 0.1}}", "models.policy_trainer.kl_cof", "ChatLearn", "kl_coef"),
        ("algorithm: {clip_ratio: 0.1}", "algorithm.clip_ratio", "verl", "actor_rollout_ref.actor.clip_ratio"),
        ("algorithm: {lambd: 0.9}", "algorithm.lambd", "verl", "at the left margin"),
    ],
)
def test_an_unknown_key_names_the_nearest_and_the_guide(
    fails: Fails, text: str, path: str, guide: str, fix: str
) -> None:
    found, message, advice = only_problem(fails(text))
    assert found == path
    assert guide in message and fix in advice


def test_a_section_that_is_no_section_is_refused(fails: Fails) -> None:
    path, message, fix = only_problem(fails("algorithm: grpo"))
    assert path == "algorithm" and "section" in message and "gamma" in fix


def test_an_algorithm_section_of_two_guides_is_ambiguous(fails: Fails) -> None:
    path, message, fix = only_problem(fails("algorithm: {algorithm_type: ppo, lam: 0.9}"))
    assert path == "algorithm"
    assert "algorithm_type (Trinity-RFT)" in message and "lam (verl)" in message
    assert "one of them" in fix


def test_the_other_sections_decide_where_the_keys_do_not() -> None:
    # Both guides have trainer:, and an empty one belongs to the guide that the rest is written in.
    config, _ = agentic("trainer: {}\nbuffer: {total_steps: 3}\nalgorithm: {repeat_times: 4}")
    assert (config.max_steps, config.train_env_manager.group_size) == (3, 4)


def test_a_wrong_value_is_reported_under_the_name_that_the_user_wrote(fails: Fails, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 1\nalgorithm:\n  gamma: 0.9\n  lam: 1.5\n")
    error = fails(file.read_text(), source=str(file))
    (problem,) = error.problems
    assert (problem.path, problem.value, problem.source) == ("algorithm.lam", 1.5, f"{file}:4")
    assert "less than or equal to 1" in problem.message and "lambd" in problem.message


def test_a_contradiction_is_reported_under_the_name_that_the_user_wrote(fails: Fails) -> None:
    path, message, _ = only_problem(fails("rl_config: {n_samples_per_prompt: 1}"))
    assert path == "rl_config.n_samples_per_prompt"
    assert "train_env_manager.group_size" in message


def test_a_warning_is_given_under_the_name_that_the_user_wrote(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("trainer:\n  critic_warmup: 9\n  total_training_steps: 5\nadv_estimator: gae\ncritic: {}\n")
    with pytest.warns(ConfigWarning) as caught:
        load(OmegaConf.load(file), source=str(file))  # type: ignore[arg-type]
    (text,) = [str(item.message) for item in caught]
    assert text.startswith("trainer.critic_warmup: (here critic_warmup)") and f"{file}:2" in text


def test_an_override_is_named_as_the_origin(fails: Fails) -> None:
    error = fails("algorithm: {lam: 1.5}", overrides=["++algorithm.lam=1.5"])
    assert error.problems[0].source == "from Python: algorithm.lam=1.5"


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("actor: {ppo_mini_batch_size: 5}\ndata: {train_batch_size: 64}", "actor.ppo_mini_batch_size", "parts of 5"),
        ("rl_config: {mini_batch_size: 0}", "rl_config.mini_batch_size", "whole number above 0"),
        ("runtime_args: {sample_per_episode: 64, train_global_batch_size: 60}", None, "parts of 60"),
        ("algorithm: {kl_ctrl: {type: adaptive}}", "algorithm.kl_ctrl.type", "needs a target"),
        ("algorithm: {kl_ctrl: {type: other}}", "algorithm.kl_ctrl.type", "no such controller"),
        ("actor: {ppo_epochs: 2}\ncritic: {ppo_epochs: 3}", "critic.ppo_epochs", "share ppo_epochs"),
        ("rl_config: {kl_ctrl_type: adaptive, init_kl_coef: 0.1}", "rl_config.kl_ctrl_type", "needs a target"),
        ("algorithm: {algorithm_type: pop}", "algorithm.algorithm_type", "no algorithm has this name"),
    ],
)
def test_what_cannot_be_meant_is_refused(fails: Fails, text: str, path: str | None, message: str) -> None:
    problem = fails(text).problems[0]
    assert path is None or problem.path == path
    assert message in problem.message


def test_sizes_that_fit_are_offered(fails: Fails) -> None:
    fix = only_problem(fails("actor: {ppo_mini_batch_size: 5}\ndata: {train_batch_size: 64}"))[2]
    assert fix == "use 4 or 8."


# Batches are counted in prompts, except where environments are played


def test_prompts_become_trajectories_where_environments_are_played() -> None:
    text = "data: {train_batch_size: 16}\nactor_rollout_ref: {rollout: {n: 4}, actor: {ppo_mini_batch_size: 8}}"
    config, _ = agentic(text)
    assert (config.rollout_batch_size, config.mini_batches) == (64, 2)
    assert (config.train_env_manager.group_size, config.train_env_manager.env_groups) == (4, 16)


def test_the_native_batch_is_what_a_mini_batch_divides() -> None:
    config, _ = agentic("rollout_batch_size: 64\ntrain_env_manager: {group_size: 4}\nactor: {ppo_mini_batch_size: 8}")
    assert config.mini_batches == 2


def test_one_reward_function_grades_every_row() -> None:
    text = "data: {train_files: a.parquet}\ncustom_reward_function: {path: f.py}\nactor_rollout_ref: {rollout: {n: 4}}"
    config = load(OmegaConf.create(text), kind=RLVRConfig)  # type: ignore[arg-type]
    assert list(config.rewards) == ["all"]
    # Rows carry their source, which is no domain of this run.
    assert config.actor_train.data_args.tag == "tag"


def test_verifiers_go_to_the_only_domain_and_not_to_one_of_several(fails: Fails) -> None:
    rule = "rl_config: {verifier_function: [acc], n_samples_per_prompt: 4}"
    config = load(OmegaConf.create(f"{PROMPTS}\n{rule}\nrewards: {{mine: {{}}}}"), kind=RLVRConfig)  # type: ignore[arg-type]
    assert config.rewards["mine"].verifier_function == ["acc"]
    error = fails(f"{PROMPTS}\n{rule}\nrewards: {{mine: {{}}, yours: {{}}}}", kind=RLVRConfig)
    assert error.problems[0].path == "rl_config.verifier_function"


# Presets


@pytest.mark.parametrize("spelling", ["algorithm_type: {}", "algorithm: {{algorithm_type: {}}}"])
@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_fills_what_is_unset(spelling: str, name: str) -> None:
    config, _ = agentic(spelling.format(name))
    assert config.algorithm_type == name
    assert {key: getattr(config, key) for key in PRESETS[name]} == dict(PRESETS[name])
    assert (config.critic is not None) == (name == "ppo")


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize(
    "setting", ["adv_estimator: rloo", "algorithm: {adv_estimator: rloo}", "rl_config: {adv_estimator: rloo}"]
)
def test_a_preset_never_changes_what_is_set(name: str, setting: str) -> None:
    config, _ = agentic(f"algorithm_type: {name}\n{setting}\nloss_agg_mode: seq-mean-token-sum\npolicy_loss: cispo")
    assert (config.adv_estimator, config.loss_agg_mode, config.policy_loss) == ("rloo", "seq-mean-token-sum", "cispo")
    assert config.critic is None


def test_what_follows_from_a_preset_is_reported_at_the_preset(fails: Fails) -> None:
    path, message, _ = only_problem(fails("algorithm_type: grpo\ntrain_env_manager: {group_size: 1, env_groups: 8}"))
    assert path == "train_env_manager.group_size" and "'grpo'" in message
    path, _, fix = only_problem(fails("algorithm_type: grop"))
    assert path == "algorithm_type" and "did you mean 'grpo'" in fix


def test_two_names_of_an_algorithm_are_a_conflict(fails: Fails) -> None:
    assert (
        only_problem(fails("algorithm_type: ppo\nalgorithm: {algorithm_type: grpo}"))[0] == "algorithm.algorithm_type"
    )


def test_null_counts_as_unset() -> None:
    resolved = apply_preset("opmd", {"policy_loss": "ppo", "adv_estimator": None, "seed": 1})
    assert (resolved["policy_loss"], resolved["adv_estimator"], resolved["seed"]) == ("ppo", "opmd", 1)
    with pytest.raises(ValueError, match="did you mean 'grpo'"):
        apply_preset("grop", {})


def test_a_resolved_configuration_translates_to_itself() -> None:
    config, _ = agentic("algorithm: {algorithm_type: ppo, kl_loss_fn: k3}\nactor: {clip_ratio: 0.1}")
    assert load(config.model_dump()) == config


# The page


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert insert_dialects(page) == page, "run python scripts/generate_dialects.py"


def test_every_key_is_on_the_page() -> None:
    page = render_dialects()
    for guide in GUIDES:
        for row in guide.rows:
            assert f"`{row.key}`" in page


@pytest.mark.parametrize(
    ("file", "override", "value"),
    [
        ("trainer: {total_training_steps: 4}", "++max_steps=9", 9),
        ("max_steps: 9", "trainer.total_training_steps=4", 4),
        ("trainer: {total_training_steps: 4}\nmax_steps: 4", "trainer.total_training_steps=5", 5),
        ("trainer: {total_training_steps: 4}", "trainer={total_training_steps: 6}", 6),
    ],
)
def test_an_override_wins_over_the_file_in_whatever_spelling(file: str, override: str, value: int) -> None:
    # As Hydra hands it over: overrides are in the mapping already.
    assert load(OmegaConf.create(file), overrides=[override]).max_steps == value


def test_two_overrides_that_contradict_each_other_are_a_problem(fails: Fails) -> None:
    error = fails("{}", overrides=["trainer.total_training_steps=4", "max_steps=5"])
    assert "both say what max_steps is" in error.problems[0].message


def test_the_folder_of_a_run_is_that_of_its_project_and_name() -> None:
    def folder(text: str) -> str:
        return str(agentic(text)[0].output_dir)

    trinity = "checkpoint_root_dir: c\ncontinue_from_checkpoint: true\n"
    assert folder(trinity + "project: one\nname: run") == "c/one/run"
    assert folder(trinity + "project: two\nname: run") == "c/two/run"
    assert folder("project: two\nname: run\nmodel: {max_model_len: 512}") == "output/two/run"
    assert folder("project: two\nname: run\noutput_dir: mine") == "mine"
    assert folder("trainer: {project_name: one, experiment_name: run, resume_mode: auto}") == "output/one/run"
