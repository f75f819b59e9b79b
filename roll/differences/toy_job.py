"""A configuration on the toy: its algorithm as it is, and model, data, seed and sizes the same for everybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from roll.config import AgenticConfig, RLConfig, RLVRConfig
from roll.config.loading import load
from roll.config.written import flat

STEPS: Final = 2
"""Of a run on the toy."""
_MOST_UPDATES: Final = 4

_NOT_OF_THE_ALGORITHM: Final = (
    *("pretrain", "reward_pretrain", "*output_dir", "logging_dir", "render_save_dir", "checkpoint_config*", "seed"),
    *("resume_from_checkpoint", "track_with", "tracker_*", "progress", "exp_name", "pipeline", "*_modules", "cluster"),
    *("num_nodes", "num_gpus_per_node", "*system_envs", "rpc_timeout", "enable_ray_timeline", "max_recoveries"),
    *("max_steps", "save_steps", "eval_steps", "logging_steps", "validation*", "val_*", "experience*", "mode"),
    *("weight_sync*", "deepspeed_*", "variables*", "tune*", "rollout_batch_size", "num_return_sequences_in_group"),
    *("prompt_length", "response_length", "sequence_length", "max_running_requests", "generation_timeout"),
    *(
        "mini_batches",
        "trajectory_dump_steps",
        "rewards*",
        "judges*",
        "custom_env*",
        "train_env_manager*",
        "*.device_mapping",
    ),
    *("*.world_size", "*.num_gpus_per_worker", "*.strategy_args*", "*.model_args*", "*.data_args*", "*.name"),
    *("*.worker_cls", "*.infer_batch_size", "*.use_sequence_packing", "*.use_remove_padding", "*.share_prefixes"),
    "*_length",
    *("*.log_prob_chunk_size", "*.use_dynamic_batching_*", "*.training_args.per_device_train_batch_size"),
    *("*.training_args.gradient_accumulation_steps", "*.training_args.max_tokens_per_microbatch"),
    *("*.training_args.num_train_epochs", "*.generating_args.max_new_tokens", "*.generating_args.stop_strings"),
    *("custom_reward_function*", "reward", "reward.*", "expert*", "max_tokens_per_step", "max_actions_per_traj"),
    *("agent_*template", "*_response_pattern", "*action_pattern", "env_manager_cls", "deterministic", "local_rank"),
    *("max_concurrent_rewards", "async_generation_ratio", "is_use_additional_prompts", "*.num_return_sequences"),
    *("max_additional_running_prompts", "group_size_redundancy", "straggler_timeout", "optimizer_from", "tools*"),
    "over_rollout.*",
)
"""Keys of models, data, machines and sizes: the toy has its own."""

_COMMON: Final[Mapping[str, Any]] = {
    "seed": 42,
    "max_steps": STEPS,
    "save_steps": 0,
    "eval_steps": 0,
    "progress": "none",
    "track_with": ["jsonl"],
    "trajectory_dump_steps": 0,
    "actor_train.model_args.disable_gradient_checkpointing": True,
    "actor_train.training_args.max_tokens_per_microbatch": 8192,
}
_PROMPTS: Final[Mapping[str, Any]] = {
    "pipeline": "rlvr",
    "pretrain": "toy_math",
    "prompt_length": 96,
    "sequence_length": 144,
    "rollout_batch_size": 8,
    "num_return_sequences_in_group": 4,
    "rewards": {"math_rule": {"tag_included": ["arithmetic"], "verifiers": {"math": 1.0, "format": 0.1}}},
    "actor_train.data_args.file_name": ["examples/data/arithmetic_train.jsonl"],
    "actor_train.data_args.max_samples": 64,
    "actor_infer.generating_args.max_new_tokens": 48,
}
_GAMES: Final[Mapping[str, Any]] = {
    "pipeline": "agentic",
    "pretrain": "toy_sokoban",
    "sequence_length": 640,
    "rollout_batch_size": 32,
    "max_tokens_per_step": 8,
    "agent_system_template": "Solve the Sokoban puzzle.",
    "agent_template": "{observation}",
    "train_env_manager": {"env_groups": 8, "group_size": 4, "tags": ["SimpleSokoban"]},
    "val_env_manager": {"env_groups": 4, "group_size": 1, "tags": ["SimpleSokoban"]},
    "val_batch_size": 4,
    "actor_infer.generating_args.max_new_tokens": 8,
}


@dataclass(frozen=True, slots=True)
class ToyJob:
    """The algorithm of a configuration.

    Attributes:
        keys: Its keys by their paths, those that are set.
        frame: Keys of the toy.
        kind: The model of both.
    """

    keys: Mapping[str, Any]
    frame: Mapping[str, Any]
    kind: type[RLConfig]

    @classmethod
    def of(cls, config: RLConfig) -> ToyJob:
        """Return what is left of a configuration on the toy."""
        kind: type[RLConfig] = AgenticConfig if config.plays else RLVRConfig
        frame = _GAMES if config.plays else _PROMPTS
        keys = {key: value for key, value in _set_keys(config) if not _is_dropped(key)}
        keys["mini_batches"] = min(config.update_plan().mini_batches, _MOST_UPDATES)
        return cls(keys, {**_COMMON, **frame}, kind)

    def with_keys(self, other: ToyJob, paths: frozenset[str]) -> ToyJob:
        """Return this job with some keys as another has them."""
        keys = dict(self.keys)
        for path in paths:
            keys.pop(path, None)
            if path in other.keys:
                keys[path] = other.keys[path]
        return ToyJob(keys, self.frame, self.kind)

    def config(self, output_dir: Path) -> RLConfig:
        """Return a configuration that runs it.

        Raises:
            ConfigError: Its keys contradict each other.
        """
        everything = {**self.keys, **self.frame, "output_dir": str(output_dir)}
        config: RLConfig = load({}, kind=self.kind, overrides=everything)
        return config


def differing(first: ToyJob, second: ToyJob) -> list[str]:
    """Return the keys in which two jobs differ once everything that is not set has its default."""
    defaults = _defaults(first.kind)
    keys = dict.fromkeys((*first.keys, *second.keys))

    def value(job: ToyJob, key: str) -> Any:
        return job.keys.get(key, defaults.get(key))

    return [key for key in keys if value(first, key) != value(second, key)]


def _set_keys(config: RLConfig) -> Iterator[tuple[str, Any]]:
    yield from flat(config.model_dump(exclude_unset=True)).items()


def _defaults(kind: type[RLConfig]) -> dict[str, Any]:
    return flat(kind().model_dump()) if kind is not AgenticConfig else {}


def _is_dropped(key: str) -> bool:
    return any(fnmatch(key, pattern) for pattern in _NOT_OF_THE_ALGORITHM)
