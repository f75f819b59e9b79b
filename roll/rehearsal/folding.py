"""A job of a cluster on this machine: the same roles, strategies and code paths, and what is narrower, as sentences."""

from __future__ import annotations

from typing import Any, Final

from roll.config.trainer_keys import TrainerKeys
from roll.config.worker import WorkerConfig
from roll.rehearsal.changes import Folding
from roll.rehearsal.folding_strategies import fold_strategy
from roll.rehearsal.stand_in import StandIn

RANKS: Final = 2
"""Processes that many ranks are folded onto."""
STEPS: Final = 2


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
    wide = min(RANKS, ranks) if ray else 1
    folding.removed |= {f"{role}.device_mapping", f"{role}.num_gpus_per_worker", f"{role}.system_envs"}
    if ranks > 1:
        folding.notes.append(f"{role}: {ranks} devices became {wide} on the CPU.")
    if worker.model_args.model_name_or_path is not None:
        folding.changes[f"{role}.model_args.model_name_or_path"] = str(model.folder)
    if worker.model_args.attn_implementation == "fa2":
        folding.changes[f"{role}.model_args.attn_implementation"] = "auto"
        folding.notes.append(f"{role}: fa2 needs a GPU, so attention is the engine's choice.")
    folding.changes[f"{role}.world_size"] = fold_strategy(folding, role, worker, wide)


def _fold_sizes(folding: Folding, config: TrainerKeys, model: StandIn) -> None:
    sizes = dict(config.smallest_sizes())
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
