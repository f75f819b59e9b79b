"""Keys of ROLL's own files that stand beside native ones."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config import load
from roll.config.agentic import AgenticConfig
from roll.config.dialects import ROLL_FILE, Translation, translate
from roll.config.dialects.beside import filled
from roll.config.errors import ConfigError
from roll.config.rlvr import RLVRConfig
from roll.config.sft import SFTConfig


def _rlvr(**tree: Any) -> Translation:
    return translate(tree, RLVRConfig)


def _agentic(**tree: Any) -> Translation:
    return translate(tree, AgenticConfig)


def _states(translated: Translation) -> dict[str, str]:
    return {key.key: key.state for key in translated.keys}


@pytest.mark.parametrize(
    ("worker", "verifier"),
    [
        ("math_rule_reward_worker.MathRuleRewardWorker", "math"),
        ("code_sandbox_reward_worker.CodeSandboxRewardWorker", "code"),
        ("crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker", "multiple_choice"),
        ("ifeval_rule_reward_worker.GeneralRuleRewardWorker", "ifeval"),
    ],
)
def test_a_class_that_grades_is_the_verifier_that_does_the_same(worker: str, verifier: str) -> None:
    found = _rlvr(rewards={"mine": {"worker_cls": f"roll.pipeline.rlvr.rewards.{worker}", "tag_included": ["a"]}})

    assert found.data["rewards"]["mine"] == {"tag_included": ["a"], "verifiers": {verifier: 1.0}}
    assert _states(found) == {"rewards.mine.worker_cls": "translated"}


def test_a_domain_that_only_pictures_decide_is_refused_by_the_name_of_its_class() -> None:
    worker = "roll.pipeline.rlvr.rewards.video_r1_reward_worker.VideoR1RewardWorker"

    (problem,) = _rlvr(rewards={"video": {"worker_cls": worker}}).problems

    assert problem.path == "rewards.video"
    assert "VideoR1RewardWorker" in problem.message


def test_a_class_of_the_user_stays_what_it_is() -> None:
    tree = {"rewards": {"mine": {"worker_cls": "my_package.MyWorker"}}, "actor_train": {"worker_cls": "mine.Worker"}}

    assert translate(tree, RLVRConfig).data == tree


def test_a_judge_is_a_server_of_the_model_that_it_was() -> None:
    judge = {
        "worker_cls": "roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker",
        "judge_model_type": "inference",
        "model_args": {"model_name_or_path": "some/judge"},
        "generating_args": {"temperature": 0.3, "max_new_tokens": 99},
    }

    options = _rlvr(rewards={"llm_judge": judge}).data["rewards"]["llm_judge"]["verifiers"]["llm_judge"]["options"]

    assert options["engine"] == "http"
    assert (options["model"], options["temperature"], options["max_tokens"]) == ("some/judge", 0.3, 99)


@pytest.mark.parametrize(
    ("mean", "std", "native"),
    [
        ("batch", "batch", {"reward_norm": "batch"}),
        ("group", None, {"reward_norm": "group", "reward_shift": True}),
        (None, "batch", {"reward_norm": "batch", "reward_scale": True}),
        (None, None, {}),
    ],
)
def test_scores_are_normalised_as_their_mean_and_deviation_say(mean: Any, std: Any, native: dict[str, Any]) -> None:
    found = _rlvr(norm_mean_type=mean, norm_std_type=std)

    assert found.data == native
    assert found.problems == []


def test_a_mean_of_one_grouping_and_a_deviation_of_another_are_impossible() -> None:
    found = _rlvr(norm_mean_type="group", norm_std_type="batch")

    assert _states(found)["norm_std_type"] == "impossible"


def test_names_that_the_user_chose_lead_to_their_own_keys() -> None:
    found = _agentic(
        custom_envs={
            "A": {"env_type": "sokoban", "max_actions_per_traj": 7, "env_config": {"dim_x": 5, "dim_y": 6}},
            "B": {"env_type": "sokoban", "max_actions_per_traj": 9},
        }
    )

    assert found.data["custom_envs"] == {
        "A": {"env_type": "sokoban", "env_config": {"dim_room": [5, 6]}, "max_steps": 7},
        "B": {"env_type": "sokoban", "max_steps": 9},
    }


def test_templates_are_written_in_the_placeholders_that_there_are() -> None:
    template = "Step {current_step}: {current_observation} {unheard_of} {{answer}}"

    tag = _agentic(custom_envs={"A": {"agent_template": template}}).data["custom_envs"]["A"]

    assert tag["agent_template"] == "Step {turn_idx}: {observation} {unheard_of} {{answer}}"


def test_step_managers_make_a_sample_of_a_turn() -> None:
    manager = "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"

    found = _agentic(custom_envs={"A": {"env_type": "sokoban", "env_manager_cls": manager}})

    assert found.data["train_env_manager"] == {"sample_mode": "step"}
    assert found.data["custom_envs"] == {"A": {"env_type": "sokoban"}}


def test_options_of_trainers_mean_what_they_mean_for_the_strategy() -> None:
    role = {
        "strategy_args": {
            "strategy_name": "fsdp2_train",
            "strategy_config": {"param_dtype": "bf16", "reduce_dtype": "float32", "offload_policy": True},
        }
    }

    found = _rlvr(actor_train=role).data["actor_train"]

    assert found["strategy_args"]["strategy_name"] == "fsdp_train"
    assert found["strategy_args"]["strategy_config"] == {"reduce_dtype": "fp32", "offload_params": True}
    assert found["model_args"] == {"dtype": "bf16"}


@pytest.mark.parametrize(("size", "kept"), [(1, {}), (2, {"sequence_parallel": True})])
def test_sequence_parallelism_needs_tensor_parallelism(size: int, kept: dict[str, Any]) -> None:
    options = {"tensor_model_parallel_size": size, "sequence_parallel": True}
    role = {"strategy_args": {"strategy_name": "megatron_train", "strategy_config": options}}

    found = _rlvr(actor_train=role).data["actor_train"]["strategy_args"]["strategy_config"]

    assert found == {"tensor_model_parallel_size": size, **kept}


def test_the_section_of_another_strategy_with_the_same_name_stays() -> None:
    options = {"bf16": {"enabled": "auto"}}
    role = {"strategy_args": {"strategy_name": "deepspeed_train", "strategy_config": options}}

    found = _rlvr(actor_train=role)

    assert (found.data["actor_train"], found.keys) == (role, [])


def test_rows_of_demonstrations_keep_the_name_of_their_role() -> None:
    role = {"strategy_args": {"strategy_name": "fsdp2_train"}, "data_args": {"preprocessing_num_workers": 4}}
    role["training_args"] = {"save_strategy": "epoch"}

    found = translate({"sft_train": role}, SFTConfig)

    assert found.problems == [] and found.data["save_epochs"] == 1
    assert found.data["sft_train"]["strategy_args"] == {"strategy_name": "fsdp_train"}


def test_a_typing_mistake_beside_the_keys_of_roll_is_an_error_still() -> None:
    with pytest.raises(ConfigError, match="learning_rat") as caught:
        load({"actor_train": {"training_args": {"learning_rat": 1.0}, "offload_nccl": False}})

    assert [problem.path for problem in caught.value.problems] == ["actor_train.training_args.learning_rat"]


def test_native_keys_keep_their_meaning_outside_of_files_for_roll() -> None:
    tree = {"adv_estimator": "grpo", "train_env_manager": {"group_size": 1}}

    assert translate(tree, AgenticConfig).data == tree
    assert translate(tree, AgenticConfig, whose=ROLL_FILE).data["adv_estimator"] == "reinforce"


def test_several_devices_need_processes_in_a_file_for_roll() -> None:
    tree = {"actor_train": {"device_mapping": "list(range(0,16))"}, "num_nodes": 1}

    found = translate(tree, RLVRConfig, whose=ROLL_FILE).data

    assert (found["cluster"], found["num_gpus_per_node"]) == ("ray", 8)


def test_what_was_given_is_not_changed() -> None:
    tree = {"custom_envs": {"A": {"env_type": "rg:chain_sum", "max_tokens": 3}}}

    translate(tree, AgenticConfig)

    assert tree == {"custom_envs": {"A": {"env_type": "rg:chain_sum", "max_tokens": 3}}}


@pytest.mark.parametrize(
    ("path", "names", "found"), [("a.*.b", ["x"], "a.x.b"), ("*.*", ["x", "y"], "x.y"), ("a", [], "a")]
)
def test_names_stand_for_the_stars_of_a_path_in_order(path: str, names: list[str], found: str) -> None:
    assert filled(path, names) == found


def test_a_budget_of_no_tokens_is_none() -> None:
    off = {"max_tokens_per_microbatch_in_train": 0, "max_tokens_per_microbatch_in_infer": 0}

    found = _rlvr(actor_train={"use_dynamic_batching_in_train": False, **off})

    assert found.problems == [] and found.data["actor_train"] == {"use_dynamic_batching_in_train": False}


def test_a_budget_of_scoring_alone_is_that_of_the_role() -> None:
    keys = {"max_tokens_per_microbatch_in_train": 0, "max_tokens_per_microbatch_in_infer": 4096}

    assert _rlvr(actor_train=keys).data["actor_train"] == {"training_args": {"max_tokens_per_microbatch": 4096}}


def test_evaluation_is_turned_off_as_rolls_files_do() -> None:
    assert load("sokoban", eval_steps=-1).eval_steps == 0
    with pytest.raises(ConfigError, match="eval_steps = -2"):
        load("sokoban", eval_steps=-2)
