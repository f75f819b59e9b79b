"""A job of a cluster on this machine: the same roles, strategies and code paths, and what is narrower, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from roll.config import PlayingConfig, RunConfig
from roll.config.answering import AnsweringConfig
from roll.config.loading import load
from roll.config.strategies import Ability, ability_for
from roll.config.trainer_keys import TrainerKeys
from roll.config.worker import TrainWorkerConfig, WorkerConfig
from roll.rehearsal.stand_in import StandIn

RANKS: Final = 2
"""Processes that many ranks are folded onto."""
STEPS: Final = 2
_RESPONSE: Final = 16
_DEVICE_OPTIONS: Final = (
    *("tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "tp_size", "pp_size", "ulysses_size"),
    *(
        "block_size",
        "swap_space",
        "cpu_offload_gb",
        "mem_fraction_static",
        "max_model_len",
        "max_num_batched_tokens",
        "fsdp_size",
        "max_num_seqs",
        "context_length",
    ),
)


@dataclass(slots=True)
class Folding:
    """What is changed for a rehearsal.

    Attributes:
        changes: Keys by their paths; ``None`` is ``null``.
        removed: Keys that are left out.
        notes: What was folded, as sentences.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def apply(self, config: RunConfig, output_dir: Path) -> RunConfig:
        """Return the configuration of the rehearsal.

        Raises:
            ConfigError: Its keys contradict each other.
        """
        data = config.model_dump(exclude_unset=True)
        for path in self.removed:
            _put(data, path, None, remove=True)
        for path, value in {**self.changes, "output_dir": output_dir}.items():
            _put(data, path, value)
        folded: RunConfig = load(data, kind=type(config), overrides={})
        return folded

    def touches(self, key: str) -> bool:
        """Tell whether a key, or a section that it is in, was changed: whether it would be read cannot be known."""
        return any(key == path or key.startswith(f"{path}.") for path in (*self.changes, *self.removed))


def fold(config: TrainerKeys, model: StandIn, *, ray: bool) -> Folding:
    """Return what has to change so that a job runs here.

    Args:
        config: A checked configuration.
        model: The random model.
        ray: Whether roles with several ranks get processes.
    """
    folding = Folding()
    folding.changes |= {
        **{"pretrain": str(model.folder), "max_steps": STEPS, "save_steps": 1, "progress": "none"},
        **{"track_with": ["jsonl"], "eval_steps": 1, "num_nodes": None, "cluster": "ray" if ray else "local"},
    }
    folding.removed |= {
        "resume_from_checkpoint",
        "checkpoint_config",
        "logging_dir",
        "render_save_dir",
        "tracker_kwargs",
    }
    if getattr(config, "reward_pretrain", None) is not None:
        folding.changes["reward_pretrain"] = str(model.folder)
    folding.notes += [model.note, f"{config.max_steps} steps became {STEPS}."]
    for role, worker in config.roles():
        _fold_role(folding, role, worker, model, ray=ray)
    _fold_sizes(folding, config, model)
    return folding


def _fold_role(folding: Folding, role: str, worker: WorkerConfig, model: StandIn, *, ray: bool) -> None:
    ranks = len(worker.device_mapping or ()) or worker.workers
    several = ray and ranks > 1
    folding.removed |= {f"{role}.device_mapping", f"{role}.num_gpus_per_worker", f"{role}.system_envs"}
    folding.changes[f"{role}.world_size"] = RANKS if several else 1
    if ranks > 1:
        folding.notes.append(f"{role}: {ranks} devices became {RANKS if several else 1} on the CPU.")
    if worker.model_args.model_name_or_path is not None:
        folding.changes[f"{role}.model_args.model_name_or_path"] = str(model.folder)
    if worker.model_args.attn_implementation == "fa2":
        folding.changes[f"{role}.model_args.attn_implementation"] = "auto"
        folding.notes.append(f"{role}: fa2 needs a GPU, so attention is the engine's choice.")
    _fold_strategy(folding, role, worker)


def _fold_strategy(folding: Folding, role: str, worker: WorkerConfig) -> None:
    about, path = worker.strategy_args.about, f"{role}.strategy_args"
    options = dict(worker.strategy_args.strategy_config or {})
    missing = bool(about.package) and find_spec(about.package) is None
    if missing or (about.needs_gpu and not torch.cuda.is_available()):
        why = "is not installed here" if missing else "needs a GPU"
        kind = TrainWorkerConfig if ability_for(role) is Ability.TRAIN else WorkerConfig
        instead = about.instead or kind().strategy_args.strategy_name
        folding.changes[f"{path}.strategy_name"] = instead
        folding.changes[f"{path}.strategy_config"] = None
        folding.notes.append(f"{role}: {about.name} {why}, so {instead} stands in for it.")
        return
    dropped: list[str] = [key for key in _DEVICE_OPTIONS if key in options]
    if dropped:
        folding.notes.append(f"{role}: without {', '.join(dropped)}, which are about devices.")
    if worker.strategy_args.begins_with_own_weights:
        dropped.append(about.own_weights)
        folding.notes.append(f"{role}: without {about.own_weights}, for the model is a random one.")
    if dropped:
        folding.changes[f"{path}.strategy_config"] = {k: v for k, v in options.items() if k not in dropped} or None


def _fold_sizes(folding: Folding, config: TrainerKeys, model: StandIn) -> None:
    sizes = dict(_sizes(config))
    accumulation = config.actor_train.training_args.gradient_accumulation_steps
    if accumulation is not None:
        folding.removed.add("actor_train.training_args.gradient_accumulation_steps")
    if hasattr(config, "update_plan"):
        sizes["mini_batches"] = min(2, config.update_plan().mini_batches)
    per_device = config.actor_train.training_args.per_device_train_batch_size
    if per_device > 2:
        sizes["actor_train.training_args.per_device_train_batch_size"] = 2
    if not model.own_tokenizer:
        # Its words are shorter than those of a real tokenizer, so texts have more tokens.
        sizes |= {"prompt_length": 1024, "sequence_length": 2048}
    for key, value in sizes.items():
        if key.partition(".")[0] not in type(config).model_fields:
            continue
        now: Any = config
        for part in key.split("."):
            now = getattr(now, part, None)
        if now != value:
            folding.changes[key] = value
    folding.notes.append(f"Smaller: {', '.join(f'{key} {value}' for key, value in sizes.items())}.")


def _sizes(config: TrainerKeys) -> Iterator[tuple[str, Any]]:
    if isinstance(config, PlayingConfig):
        group = min(4, config.train_env_manager.group_size)
        tags = len(config.train_env_manager.tags)
        yield "rollout_batch_size", group * 2 * tags
        yield "train_env_manager.env_groups", 2 * tags
        yield "train_env_manager.group_size", group
        yield "val_batch_size", 2 * len(config.val_env_manager.tags)
        yield "val_env_manager.env_groups", 2 * len(config.val_env_manager.tags)
        yield "val_env_manager.group_size", 1
        for name in ("train_env_manager", "val_env_manager"):
            if getattr(config, name).n_groups is not None:
                yield f"{name}.n_groups", [2] * len(getattr(config, name).tags)
        yield "max_actions_per_traj", 2
        yield "max_tokens_per_step", 8
        yield "actor_infer.generating_args.max_new_tokens", 8
    elif isinstance(config, AnsweringConfig):
        yield "rollout_batch_size", 4
        yield "num_return_sequences_in_group", min(4, config.num_return_sequences_in_group)
        yield "actor_infer.generating_args.max_new_tokens", _RESPONSE
        yield "response_length", _RESPONSE
        if config.validation is not None:
            yield "validation.data_args.max_samples", 4
    else:
        yield "actor_train.data_args.max_samples", 16


def _put(data: dict[str, Any], path: str, value: Any, *, remove: bool = False) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        below = data.get(parent)
        if not isinstance(below, dict):
            if remove:
                return
            below = data[parent] = {}
        data = below
    if remove:
        data.pop(last, None)
    else:
        data[last] = value
