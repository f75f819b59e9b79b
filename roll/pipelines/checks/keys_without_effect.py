"""Keys of the ROLL guide that are valid, and that a pipeline of this version does nothing with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import BaseModel

from roll.config import AgenticConfig, RLConfig
from roll.config.worker import DataArgs, TrainWorkerConfig
from roll.pipelines.checks.algorithms import was_changed

_ONE_PROCESS = "cluster: local runs everything in one process"
_PACKING = "batches are made by length whatever it says (training_args.max_tokens_per_microbatch)"
_LORA = "only roles that are trained have adapters"
_TRAINERS_MODEL = "engines sample from the model of actor_train"
_DATA = "prompts are those of actor_train.data_args"
_PROMPTS = "prompts of the agentic pipeline come from environments"

_OF_ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("use_dynamic_batching_in_train", "use_dynamic_batching_in_infer"), _PACKING),
    "name": "logs and errors call a role by its key",
}
"""Keys of every role."""

_SAMPLES = "actor_infer samples"
_TRAINS = "actor_train and critic are trained"
_UPDATES = "only actor_infer is given new weights"

_OF_ROLE: Final[Mapping[str, Mapping[str, str]]] = {
    "actor_train": {"generating_args": _SAMPLES, "model_update_frequency": _UPDATES},
    "actor_infer": {
        "training_args": _TRAINS,
        "data_args": _DATA,
        **dict.fromkeys(("use_sequence_packing", "use_remove_padding"), "the engine lays out requests itself"),
        "log_prob_chunk_size": "an engine has the logits of one token per request",
    },
    "reference": {
        "training_args": _TRAINS,
        "data_args": _DATA,
        "generating_args": _SAMPLES,
        "model_update_frequency": _UPDATES,
    },
    "critic": {
        "data_args": _DATA,
        "generating_args": _SAMPLES,
        "model_update_frequency": _UPDATES,
        "training_args.gradient_accumulation_steps": "it takes as many optimiser steps as actor_train",
    },
}
"""Keys of single roles, whatever their engine."""

_OF_ALL: Final[Mapping[str, str]] = {
    "local_rank": "devices are given by device_mapping",
    "is_num_return_sequences_expand": "responses to one prompt are separate requests that share its prefix",
}

_OF_AGENTIC: Final[Mapping[str, str]] = {
    "generate_opt_level": "it says when responses to prompts are graded; environments reward every turn",
    "reward": "rewards come from the environment",
    "num_return_sequences_in_group": "the responses of a group are episodes: train_env_manager.group_size",
    "actor_infer.generating_args.num_return_sequences": "an environment takes one response per turn",
    **dict.fromkeys(("is_use_additional_prompts", "max_additional_running_prompts"), _PROMPTS),
    **{f"actor_train.data_args.{key}": _PROMPTS for key in DataArgs.model_fields if key != "template"},
    "val_env_manager.sample_mode": "episodes of evaluations are not trained on",
}

_OF_LOCAL: Final[Mapping[str, str]] = {
    **dict.fromkeys(("rpc_timeout", "max_recoveries", "enable_ray_timeline"), _ONE_PROCESS),
    **{
        f"{manager}.{key}": _ONE_PROCESS
        for manager in ("train_env_manager", "val_env_manager")
        for key in ("max_env_num_per_worker", "system_envs")
    },
}
"""Keys that are about several processes."""

_OF_RLVR: Final[Mapping[str, str]] = {
    "actor_infer.generating_args.num_return_sequences": "num_return_sequences_in_group says how many responses",
}


def keys_without_effect(config: RLConfig) -> Iterator[str]:
    """Yield a sentence for every key that was set to something else than its default and does nothing here."""
    for path, reason in unread_keys(config).items():
        *parents, key = path.split(".")
        node: object = config
        for parent in parents:
            node = getattr(node, parent, None)
        if isinstance(node, BaseModel) and was_changed(node, key) and not _says_native(getattr(node, key)):
            yield f"{path} has no effect: {reason}"


def unread_keys(config: RLConfig) -> dict[str, str]:
    """Return the keys and sections that nothing reads in such a run, whether they were set or not, with the reason."""
    listed = {**_OF_ALL, **(_OF_AGENTIC if isinstance(config, AgenticConfig) else _OF_RLVR)}
    listed |= {f"{role}.{key}": reason for role, _ in config.roles() for key, reason in _OF_ROLES.items()}
    listed |= {f"{role}.{key}": reason for role, keys in _OF_ROLE.items() for key, reason in keys.items()}
    listed |= {
        f"{role}.model_args.{key}": _LORA
        for role, _ in config.roles()
        if role not in ("actor_train", "critic")
        for key in ("lora_rank", "lora_alpha", "lora_target")
    }
    listed |= {f"actor_infer.model_args.{key}": reason for key, reason in _engine_model_keys(config)}
    listed |= {f"{role}.{key}": reason for role, key, reason in _scoring_keys(config)}
    if config.cluster == "local":
        listed |= {**_OF_LOCAL, **{f"{role}.system_envs": _ONE_PROCESS for role, _ in config.roles()}}
    return listed


def _says_native(section: object) -> bool:
    """Whether a data section only says that chat templates are the tokenizer's, which the guide repeats per role."""
    return section == DataArgs(template="native")


def _engine_model_keys(config: RLConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys of ``actor_infer.model_args`` that its engine does not read."""
    yield "model_name_or_path", _TRAINERS_MODEL
    engine = config.actor_infer.strategy_args.strategy_name
    if config.actor_infer.strategy_args.about.computes_as_trainer:
        reason = f"{_TRAINERS_MODEL}, and {engine} computes as that does (actor_train.model_args)"
        yield from (("dtype", reason), ("attn_implementation", reason))
    else:
        yield "attn_implementation", f"{engine} chooses its kernels itself (strategy_config)"


def _scoring_keys(config: RLConfig) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of roles about passes, gradients and model families that nothing reads."""
    for role, worker in config.roles():
        yield role, "model_args.model_type", "the checkpoint says it"
        if not isinstance(worker, TrainWorkerConfig):
            yield role, "model_args.disable_gradient_checkpointing", "only roles that are trained have gradients"
        if role == "actor_infer":
            yield role, "infer_batch_size", "the engine batches requests as they come (max_running_requests)"
        trainer = worker if isinstance(worker, TrainWorkerConfig) else config.actor_train
        budget = trainer.training_args.max_tokens_per_microbatch
        if role in ("actor_train", "critic", "reference") and budget is not None:
            where = "" if trainer is worker else "actor_train."
            reason = f"{where}training_args.max_tokens_per_microbatch={budget} limits passes"
            yield role, "infer_batch_size", reason
