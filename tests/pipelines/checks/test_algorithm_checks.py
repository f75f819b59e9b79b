"""What is wrong with the chosen algorithms is found before a model loads, and what has no effect is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roll.algorithms.registry import ADVANTAGES, LOSSES, register_advantage, register_loss
from roll.config import AgenticConfig, RLConfig, RLVRConfig
from roll.config.algorithm import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
from roll.pipelines.checks.algorithms import algorithm_problems
from roll.pipelines.checks.keys_without_effect import keys_without_effect, unread_keys

KINDS = [AgenticConfig, RLVRConfig]


def paths(config: RLConfig) -> list[str]:
    return [problem.path for problem in algorithm_problems(config)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("estimator", ADVANTAGE_ESTIMATORS)
def test_every_estimator_passes_with_what_it_needs(kind: type[RLConfig], estimator: str) -> None:
    critic = {"critic": {}} if estimator == "gae" else {}
    assert paths(kind(adv_estimator=estimator, **critic)) == []


@pytest.mark.parametrize("loss", POLICY_LOSSES)
def test_every_loss_passes_whose_inputs_are_there(loss: str) -> None:
    learns_from_experts = "expert" in LOSSES.get(loss).needs
    assert paths(RLVRConfig(policy_loss=loss)) == (["policy_loss"] if learns_from_experts else [])
    join = "groups" if loss == "luffy" else "batch"
    expert = {"data_args": {"file_name": "answers.jsonl"}, "join": join}
    assert paths(RLVRConfig(policy_loss=loss, expert=expert)) == ([] if learns_from_experts else ["expert"])


@pytest.mark.parametrize(
    ("keys", "path", "said"),
    [
        ({"adv_estimator": "grop"}, "adv_estimator", "Did you mean 'grpo'"),
        ({"adv_estimator": "gae"}, "adv_estimator", "add a critic"),
        ({"adv_estimator": "remax", "reward_norm": "batch"}, "adv_estimator", "leave reward_norm"),
        ({"advantage_options": {"dof": 0}}, "advantage_options.dof", "did you mean 'ddof'"),
        ({"advantage_options": {"scale": "none"}}, "advantage_options.scale", "set norm_adv_by_std_in_grpo"),
        ({"policy_loss_options": {"clip_low": 0.1}}, "policy_loss_options.clip_low", "set pg_clip_low"),
        ({"policy_loss_options": {"tau": 0.1}}, "policy_loss_options.tau", "has no further options"),
        (
            {"policy_loss": "kimi15", "policy_loss_options": {"tau": -1.0}},
            "policy_loss_options",
            "tau must not be negative",
        ),
        (
            {"policy_loss": "topr", "policy_loss_options": {"level": "tokn"}},
            "policy_loss_options",
            "level must be 'token'",
        ),
        (
            {"overlong_buffer": {"enable": True, "len": 65}, "response_length": 64, "sequence_length": 128},
            "overlong_buffer.len",
            "at most 64",
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_names_the_key_and_the_fix(kind: type[RLConfig], keys: dict[str, Any], path: str, said: str) -> None:
    (problem,) = algorithm_problems(kind(**keys))
    assert problem.path == path
    assert said in f"{problem.message} {problem.fix}"


@pytest.fixture
def mine():
    """An estimator with its own defaults and a required option, and a loss that forgets the token dimension."""

    @register_advantage("mine_for_test", needs=("scores",))
    def estimator(inputs: Any, *, strength: float, gamma: float = 0.5) -> Any:
        return strength * gamma * inputs.scores

    @register_loss("flat_for_test")
    def loss(log_probs: Any, old_log_probs: Any, advantages: Any, mask: Any) -> Any:
        return log_probs.sum(1), {}

    yield
    ADVANTAGES.remove("mine_for_test")
    LOSSES.remove("flat_for_test")


@pytest.mark.usefixtures("mine")
def test_functions_of_the_user_are_tried_before_the_run() -> None:
    (missing, shape) = algorithm_problems(RLVRConfig(adv_estimator="mine_for_test", policy_loss="flat_for_test"))
    assert missing.path == "advantage_options" and "needs the option strength" in missing.message
    assert shape.path == "policy_loss" and "returned shape (4,), expected (4, 3)" in shape.message
    (only,) = algorithm_problems(
        RLVRConfig(adv_estimator="mine_for_test", policy_loss="flat_for_test", advantage_options={"strength": 2.0})
    )
    assert only.path == "policy_loss"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"gamma": 0.9}, "gamma=0.9 has no effect: adv_estimator=grpo does not read it"),
        ({"lambd": 0.9}, "lambd=0.9 has no effect: adv_estimator=grpo"),
        (
            {"policy_loss": "vanilla", "pg_clip_high": 0.3},
            "pg_clip_high=0.3 has no effect: policy_loss=vanilla does not read it",
        ),
        ({"policy_loss": "cispo", "dual_clip_loss": True}, "dual_clip_loss=True has no effect: policy_loss=cispo"),
        ({"adv_estimator": "rloo", "norm_adv_by_std_in_grpo": False}, "norm_adv_by_std_in_grpo=False has no effect"),
        ({"adv_estimator": "gigpo", "reward_norm": "batch"}, "reward_norm=batch has no effect: adv_estimator=gigpo"),
        ({"reward_shift": True}, "reward_shift=True has no effect: reward_norm is null"),
        ({"use_reward_norm": True}, "use_reward_norm=True has no effect: it only acts with use_reward_scaling"),
        ({"reward_norm": "batch", "use_reward_scaling": True}, "use_reward_scaling=True has no effect: reward_norm"),
        ({"difficulty_low_threshold": 0.2}, "difficulty_low_threshold=0.2 has no effect: difficulty_mask is false"),
        ({"overlong_buffer": {"len": 9}}, "overlong_buffer has no effect: overlong_buffer.enable is false"),
        ({"sampler_correction": {"cap": 9.0}}, "sampler_correction has no effect: sampler_correction.mode is null"),
        (
            {"sampler_correction": {"mode": "tis"}, "old_log_probs": "sampler"},
            "sampler_correction has no effect: old_log_probs=sampler",
        ),
        ({"target_kl": 0.1}, "target_kl=0.1 has no effect: init_kl_coef is 0"),
        ({"kl_penalty": "k3"}, "kl_penalty=low_var_kl has no effect: no term uses the divergence"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_nothing_reads_is_named_with_the_reason(
    kind: type[RLConfig], keys: dict[str, Any], said: str
) -> None:
    (sentence,) = keys_without_effect(kind(**keys))
    assert sentence.startswith(said)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"adv_estimator": "step_reinforce", "step_reward_gamma": 0.5},
        {"reward_norm": "batch", "reward_shift": True},
        {"use_reward_scaling": True, "use_reward_norm": True},
        {"sampler_correction": {"mode": "tis"}},
        {"policy_loss": "gspo", "pg_clip": 0.1},
    ],
)
def test_keys_that_act_are_not_named(keys: dict[str, Any]) -> None:
    assert list(keys_without_effect(AgenticConfig(**keys))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_without_effect_exists_and_none_belongs_to_the_algorithm(kind: type[RLConfig]) -> None:
    filled = kind(**dict.fromkeys(("reference", "critic", "reward"), {}), val_generating_args={})
    if kind is RLVRConfig:
        filled = kind(reference={}, critic={}, val_generating_args={}, validation={"generating_args": {}})
    listed = unread_keys(filled)
    assert len(listed) > 30
    for path in listed:
        *parents, key = path.split(".")
        if kind is RLVRConfig and parents[:1] in (["train_env_manager"], ["val_env_manager"]):
            continue
        node: Any = filled
        for parent in parents:
            node = getattr(node, parent)
        assert key in type(node).model_fields, path
    assert list(keys_without_effect(kind())) == []


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"actor_infer": {"model_args": {"dtype": "bf16", "attn_implementation": "eager"}}}, ["dtype", "attn_impl"]),
        ({"actor_infer": {"model_args": {"model_name_or_path": "other"}}}, ["model_name_or_path"]),
        (
            {
                "actor_infer": {
                    "model_args": {"dtype": "bf16", "attn_implementation": "eager"},
                    "strategy_args": {"strategy_name": "vllm"},
                }
            },
            ["attn_implementation"],
        ),
        ({"actor_infer": {"infer_batch_size": 4}}, ["infer_batch_size"]),
        ({"actor_train": {"infer_batch_size": 4}}, []),
        (
            {"actor_train": {"infer_batch_size": 4, "training_args": {"max_tokens_per_microbatch": 99}}},
            ["infer_batch_size"],
        ),
        (
            {"reference": {"infer_batch_size": 4}, "actor_train": {"training_args": {"max_tokens_per_microbatch": 9}}},
            ["infer_batch_size"],
        ),
        ({"actor_train": {"model_args": {"model_type": "qwen2"}}}, ["model_type"]),
        ({"reference": {"data_args": {"template": "native"}}}, []),
        ({"reference": {"data_args": {"template": "other"}, "training_args": {"learning_rate": 1.0}}}, ["", ""]),
        ({"actor_infer": {"name": "engines", "log_prob_chunk_size": 9}}, ["name", "log_prob_chunk_size"]),
        ({"reference": {"model_args": {"disable_gradient_checkpointing": True}}}, ["disable_gradient_checkpointing"]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_a_role_does_not_read_is_named(kind: type[RLConfig], keys: dict[str, Any], named: list[str]) -> None:
    sentences = list(keys_without_effect(kind(**keys)))
    assert len(sentences) == len(named)
    assert all(key in sentence for key, sentence in zip(named, sentences, strict=True))


def test_a_domain_of_rewards_is_no_role_that_trains_or_samples() -> None:
    rewards = {"math_rule": {"training_args": {"learning_rate": 1.0}, "world_size": 2, "model_args": {"lora_rank": 4}}}
    said = [sentence.partition(":")[0] for sentence in keys_without_effect(RLVRConfig(rewards=rewards))]
    assert said == [
        "rewards.math_rule.training_args has no effect",
        "rewards.math_rule.model_args.lora_rank=4 has no effect",
    ]


def test_when_responses_are_graded_is_no_matter_of_environments() -> None:
    (sentence,) = keys_without_effect(AgenticConfig(generate_opt_level=0))
    assert sentence.startswith("generate_opt_level=0 has no effect")
    assert list(keys_without_effect(RLVRConfig(generate_opt_level=0))) == []


def test_keys_without_effect_depend_on_the_pipeline() -> None:
    given: dict[str, Any] = {
        "is_use_additional_prompts": True,
        "rpc_timeout": 5.0,
        "actor_train": {"use_dynamic_batching_in_train": True, "model_args": {"lora_rank": 8}},
        "actor_infer": {"model_args": {"lora_rank": 8}},
    }
    shared = [
        "rpc_timeout=5.0",
        "actor_train.use_dynamic_batching_in_train=True",
        "actor_infer.model_args.lora_rank=8",
    ]
    for kind, expected in ((RLVRConfig, shared), (AgenticConfig, [*shared, "is_use_additional_prompts=True"])):
        named = [sentence.partition(" has no effect: ")[0] for sentence in keys_without_effect(kind(**given))]
        assert sorted(named) == sorted(expected)


def test_weights_do_not_travel_between_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    store = {"type": "ray", "name": "shared", "sync": {"method": "nccl"}}
    found = list(algorithm_problems(AgenticConfig(mode="train", experience=store)))
    assert [(each.path, each.message, each.fix) for each in found] == [
        ("experience.sync.method", "nccl sends from GPU to GPU, and actor_train has none.", "use gloo, or memory.")
    ]
    store["sync"] = {"method": "gloo"}
    assert not list(algorithm_problems(AgenticConfig(mode="train", experience=store)))
