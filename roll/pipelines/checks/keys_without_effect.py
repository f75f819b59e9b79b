"""Keys that are valid, and that nothing reads in a run like this: one rule each, and one place that judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from roll.algorithms.registry import registry
from roll.config import RLConfig
from roll.config.worker import DataArgs, TrainWorkerConfig
from roll.pipelines.checks.algorithms import NORMALISATION
from roll.pipelines.learning.algorithm_options import LOSS_KEYS, estimator_keys, loss_keys

Condition = Callable[[RLConfig, str], bool]
"""Of a run and a role (empty where the rule is about no role): whether a rule holds there."""


def _always(config: RLConfig, role: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """A key that nothing reads under a condition.

    Attributes:
        path: Its path, or that of a whole section. A leading ``*`` stands for every role that the run has, and that of
            ``rewards.*`` for every domain. A kind of run that has no such key needs no condition.
        reason: Why nothing reads it; ``{config.KEY}`` is the value of another key.
        holds: Whether it is so.
    """

    path: str
    reason: str
    holds: Condition = _always

    def paths(self, config: RLConfig) -> Iterator[str]:
        """Yield the paths that it silences in this run."""
        before, star, after = self.path.partition("*")
        if not star:
            role, dot, _ = self.path.partition(".")
            if self.holds(config, role if dot else ""):
                yield self.path
            return
        for name in dict(config.roles()) if not before else getattr(config, "rewards", {}):
            if self.holds(config, name):
                yield before + name + after


def _rules(keys: Mapping[str, str], holds: Condition = _always) -> tuple[Rule, ...]:
    return tuple(Rule(path, reason, holds) for path, reason in keys.items())


def keys_without_effect(config: RLConfig) -> Iterator[str]:
    """Yield a sentence for every key that was set to something else than its default and does nothing here.

    Args:
        config: ``algorithm_modules`` must have been imported.
    """
    for path, reason in unread_keys(config).items():
        *parents, key = path.split(".")
        node: object = config
        for parent in parents:
            node = node.get(parent) if isinstance(node, Mapping) else getattr(node, parent, None)
        if isinstance(node, BaseModel) and _was_changed(node, key) and not _says_native(getattr(node, key)):
            value = getattr(node, key)
            shown = f"={value}" if isinstance(value, str | int | float) else ""
            yield f"{path}{shown} has no effect: {reason}"


def unread_keys(config: RLConfig) -> dict[str, str]:
    """Return the keys and sections that nothing reads in such a run, whether they were set or not, with the reason."""
    return {
        path: rule.reason.format(config=config) for rules in _RULES for rule in rules for path in rule.paths(config)
    }


def _was_changed(section: BaseModel, key: str) -> bool:
    """Whether a key was set to something else than its default; a key that the section does not have was not."""
    field = type(section).model_fields.get(key)
    if field is None or key not in section.model_fields_set:
        return False
    return bool(getattr(section, key) != field.get_default(call_default_factory=True))


def _says_native(section: object) -> bool:
    """Whether a data section only says that chat templates are the tokenizer's, which the guide repeats per role."""
    return section == DataArgs(template="native")


# What the chosen estimator and loss read is asked of their signatures.


def _unread_by_estimator(key: str) -> Condition:
    def unread(config: RLConfig, role: str) -> bool:
        return all(key not in keys for keys in estimator_keys(config.adv_estimator).values())

    return unread


def _unread_by_loss(key: str) -> Condition:
    def unread(config: RLConfig, role: str) -> bool:
        return all(key not in keys for keys in loss_keys(config.policy_loss_name).values())

    return unread


def _compares_turns(config: RLConfig, role: str) -> bool:
    return registry("advantage").get(config.adv_estimator).compares_turns


_ESTIMATOR_KEYS = ("gamma", "lambd", "step_reward_gamma", "step_reward_weight", "norm_adv_by_std_in_grpo")

_ALGORITHM: Final = (
    *(
        Rule(key, "adv_estimator={config.adv_estimator} does not read it", _unread_by_estimator(key))
        for key in _ESTIMATOR_KEYS
    ),
    *(
        Rule(key, "policy_loss={config.policy_loss_name} does not read it", _unread_by_loss(key))
        for key in dict.fromkeys(key for keys in LOSS_KEYS.values() for key in keys)
    ),
    *(
        Rule(key, "adv_estimator={config.adv_estimator} compares turns, not scores", _compares_turns)
        for key in NORMALISATION
    ),
)

_DEPENDENT: Final = (
    *_rules(
        dict.fromkeys(("reward_shift", "reward_scale"), "reward_norm is null"),
        lambda config, _: config.reward_norm is None and not config.use_reward_scaling,
    ),
    *_rules(
        dict.fromkeys(("reward_shift", "reward_scale"), "use_reward_scaling has use_reward_norm"),
        lambda config, _: config.reward_norm is None and config.use_reward_scaling,
    ),
    Rule(
        "use_reward_scaling",
        "reward_norm={config.reward_norm} takes its place",
        lambda config, _: config.reward_norm is not None,
    ),
    Rule(
        "use_reward_norm",
        "it only acts with use_reward_scaling",
        lambda config, _: not config.use_reward_scaling or config.reward_norm is not None,
    ),
    *_rules(
        dict.fromkeys(("difficulty_low_threshold", "difficulty_high_threshold"), "difficulty_mask is false"),
        lambda config, _: not config.difficulty_mask,
    ),
    Rule("overlong_buffer", "overlong_buffer.enable is false", lambda config, _: not config.overlong_buffer.enable),
    Rule(
        "sampler_correction",
        "old_log_probs=sampler takes the sampler's probabilities for the trainer's",
        lambda config, _: config.old_log_probs == "sampler",
    ),
    Rule("sampler_correction", "sampler_correction.mode is null", lambda config, _: config.correction.mode is None),
    Rule(
        "kl_horizon",
        "only an adaptive controller reads it (init_kl_coef above 0, target_kl)",
        lambda config, _: config.init_kl_coef == 0 or config.target_kl is None,
    ),
    Rule("target_kl", "init_kl_coef is 0", lambda config, _: config.init_kl_coef == 0),
    Rule("use_bias_correction_kl", "use_kl_loss is false", lambda config, _: not config.use_kl_loss),
    Rule("kl_penalty", "no term uses the divergence", lambda config, _: not config.needs_reference),
)
"""Keys that another key keeps from acting."""

_OF_ALL: Final = _rules(
    {
        "local_rank": "devices are given by device_mapping",
        "is_num_return_sequences_expand": "responses to one prompt are separate requests that share its prefix",
    }
)

_PACKING = "batches are made by length whatever it says (training_args.max_tokens_per_microbatch)"
_LORA = "only roles that are trained have adapters"
_TRAINERS_MODEL = "engines sample from the model of actor_train"
_DATA = "prompts are those of actor_train.data_args"
_CONVERSATION = ("template", "enable_thinking", "history")
_SAMPLES = "actor_infer samples"
_TRAINS = "actor_train and critic are trained"
_UPDATES = "only actor_infer is given new weights"


def _is_not_trained(config: RLConfig, role: str) -> bool:
    return not isinstance(dict(config.roles())[role], TrainWorkerConfig)


def _engine_computes_as_trainer(config: RLConfig, role: str) -> bool:
    return config.actor_infer.strategy_args.about.computes_as_trainer


def _engine_computes_by_itself(config: RLConfig, role: str) -> bool:
    return not config.actor_infer.strategy_args.about.computes_as_trainer


def _own_budget(config: RLConfig, role: str) -> bool:
    worker = dict(config.roles()).get(role)
    return isinstance(worker, TrainWorkerConfig) and worker.training_args.max_tokens_per_microbatch is not None


def _trainers_budget(config: RLConfig, role: str) -> bool:
    return role == "reference" and config.actor_train.training_args.max_tokens_per_microbatch is not None


_AS_TRAINER = (
    f"{_TRAINERS_MODEL}, and {{config.actor_infer.strategy_args.strategy_name}} computes as that does "
    "(actor_train.model_args)"
)

_OF_ROLES: Final = (
    *_rules(
        {
            "*.use_dynamic_batching_in_train": _PACKING,
            "*.use_dynamic_batching_in_infer": _PACKING,
            "*.name": "logs and errors call a role by its key",
            "*.model_args.model_type": "the checkpoint says it",
            "*.training_args.num_train_epochs": "max_steps says how long the run is",
            "actor_train.generating_args": _SAMPLES,
            "actor_train.model_update_frequency": _UPDATES,
            "actor_infer.training_args": _TRAINS,
            "actor_infer.data_args": _DATA,
            "actor_infer.use_sequence_packing": "the engine lays out requests itself",
            "actor_infer.use_remove_padding": "the engine lays out requests itself",
            "actor_infer.share_prefixes": "the engine keeps what its requests have in common by itself",
            "actor_infer.log_prob_chunk_size": "an engine has the logits of one token per request",
            "actor_infer.infer_batch_size": "the engine batches requests as they come (max_running_requests)",
            "actor_infer.model_args.model_name_or_path": _TRAINERS_MODEL,
            "actor_infer.model_args.rope_scaling": _TRAINERS_MODEL,
            "actor_infer.model_args.rope_theta": _TRAINERS_MODEL,
            "reference.training_args": _TRAINS,
            "reference.data_args": _DATA,
            "reference.generating_args": _SAMPLES,
            "reference.model_update_frequency": _UPDATES,
            "critic.data_args": _DATA,
            "critic.generating_args": _SAMPLES,
            "critic.model_update_frequency": _UPDATES,
            "critic.training_args.gradient_accumulation_steps": "it takes as many optimiser steps as actor_train",
        }
    ),
    *_rules(
        dict.fromkeys((f"*.model_args.{key}" for key in ("lora_rank", "lora_alpha", "lora_target")), _LORA),
        _is_not_trained,
    ),
    Rule("*.model_args.disable_gradient_checkpointing", "only roles that are trained have gradients", _is_not_trained),
    *_rules(
        {"actor_infer.model_args.dtype": _AS_TRAINER, "actor_infer.model_args.attn_implementation": _AS_TRAINER},
        _engine_computes_as_trainer,
    ),
    Rule(
        "actor_infer.model_args.attn_implementation",
        "{config.actor_infer.strategy_args.strategy_name} chooses its kernels itself (strategy_config)",
        _engine_computes_by_itself,
    ),
    *(
        Rule(
            f"{role}.infer_batch_size",
            f"training_args.max_tokens_per_microbatch={{config.{role}.training_args.max_tokens_per_microbatch}} "
            "limits passes",
            _own_budget,
        )
        for role in ("actor_train", "critic")
    ),
    Rule(
        "reference.infer_batch_size",
        "actor_train.training_args.max_tokens_per_microbatch="
        "{config.actor_train.training_args.max_tokens_per_microbatch} limits passes",
        _trainers_budget,
    ),
)

_PROMPTS = "prompts of the agentic pipeline come from environments, unless prompts_per_step is above 0"


_OF_OVER_ROLLOUT: Final = _rules(
    {"over_rollout.wait_after_min": "a step waits for all of its groups (over_rollout.ratio=0)"},
    lambda config, _: config.over_rollout.ratio == 0,
)


def _plays_environments(config: RLConfig, role: str) -> bool:
    return hasattr(config, "train_env_manager")


def _answers_prompts(config: RLConfig, role: str) -> bool:
    return not _plays_environments(config, role) or getattr(config, "prompts_per_step", 0) > 0


def _has_environments_only(config: RLConfig, role: str) -> bool:
    return not _answers_prompts(config, role)


def _has_prompts_only(config: RLConfig, role: str) -> bool:
    return not _plays_environments(config, role)


_OF_ENVIRONMENTS_ONLY: Final = _rules(
    {
        "generate_opt_level": "it says when responses to prompts are graded; environments reward every turn",
        "num_return_sequences_in_group": "the responses of a group are episodes: train_env_manager.group_size",
        "actor_infer.generating_args.num_return_sequences": "an environment takes one response per turn",
        **dict.fromkeys(("is_use_additional_prompts", "max_additional_running_prompts"), _PROMPTS),
        **{f"actor_train.data_args.{key}": _PROMPTS for key in DataArgs.model_fields if key not in _CONVERSATION},
        "validation": _PROMPTS,
    },
    _has_environments_only,
)

_OF_ENVIRONMENTS: Final = _rules(
    {
        "reward": "rewards come from the environment",
        "val_env_manager.sample_mode": "episodes of evaluations are not trained on",
        "val_env_manager.compare_seats": "episodes of evaluations are not trained on",
    },
    _plays_environments,
)

_OF_PROMPTS: Final = _rules(
    {
        "actor_infer.generating_args.num_return_sequences": "num_return_sequences_in_group says how many responses",
        "validation.data_args.history": "an answer is one turn",
    },
    _answers_prompts,
)


def _has_expert(config: RLConfig, role: str) -> bool:
    return config.expert is not None


def _joins_batch(config: RLConfig, role: str) -> bool:
    return config.expert is not None and config.expert.join == "batch"


def _joins_groups(config: RLConfig, role: str) -> bool:
    return config.expert is not None and config.expert.join == "groups"


_OF_EXPERTS: Final = _rules(
    {
        **{f"expert.data_args.{key}": "conversations are those of actor_train.data_args" for key in _CONVERSATION},
        **dict.fromkeys(("expert.data_args.tag", "expert.data_args.domain_interleave_probs"), "rows have no domain"),
        "expert.data_args.ground_truth": "what an expert wrote is not graded",
        "expert.data_args.image_key": "what an expert wrote is text",
    },
    _has_expert,
)
_OF_JOINING: Final = (
    Rule("expert.score", "rows beside the batch have no score (join: batch)", _joins_batch),
    Rule("expert.expert_data_ratio", "a group has one member that an expert wrote (join: groups)", _joins_groups),
    Rule("expert.data_args.shuffle", "answers are found by their prompts (join: groups)", _joins_groups),
)

_OF_PROMPTS_ONLY: Final = _rules({"actor_train.data_args.history": "an answer is one turn"}, _has_prompts_only)

_GRADES = "a domain is graded by its verifiers, which have options of their own"
_CLASSIFIER = "a reward model is a sequence classifier that this process loads"

_OF_REWARDS: Final = (
    *_rules(
        {
            f"rewards.*.{key}": _GRADES
            for key in ("training_args", "data_args", "generating_args", "strategy_args", "model_update_frequency")
        }
    ),
    *_rules(
        {
            f"rewards.*.{key}": _CLASSIFIER
            for key in (
                *("use_dynamic_batching_in_train", "use_dynamic_batching_in_infer", "use_sequence_packing"),
                *("use_remove_padding", "share_prefixes", "log_prob_chunk_size", "model_args.attn_implementation"),
                *("model_args.disable_gradient_checkpointing", "model_args.model_type", "model_args.lora_rank"),
                *("model_args.lora_alpha", "model_args.lora_target"),
            )
        }
    ),
    Rule("rewards.*.name", "logs and errors call a domain by its key"),
)

_ONE_PROCESS = "cluster: local runs everything in one process"

_OF_LOCAL: Final = _rules(
    dict.fromkeys(
        (
            "rpc_timeout",
            "max_recoveries",
            "enable_ray_timeline",
            "train_env_manager.max_env_num_per_worker",
            "train_env_manager.system_envs",
            "val_env_manager.max_env_num_per_worker",
            "val_env_manager.system_envs",
            "*.system_envs",
        ),
        _ONE_PROCESS,
    ),
    lambda config, _: config.cluster == "local",
)
"""Keys that are about several processes."""


def _does_not_serve(config: RLConfig, role: str) -> bool:
    return config.mode != "serve"


_OF_SERVING: Final = _rules({"serve": "only mode: serve answers calls"}, _does_not_serve)

_RULES: Final = (
    _OF_SERVING,
    _OF_OVER_ROLLOUT,
    *(_ALGORITHM, _DEPENDENT, _OF_ALL, _OF_ROLES, _OF_ENVIRONMENTS_ONLY, _OF_ENVIRONMENTS),
    *(_OF_PROMPTS, _OF_EXPERTS, _OF_JOINING, _OF_PROMPTS_ONLY, _OF_REWARDS, _OF_LOCAL),
)
