"""Training state on disk, in DeepSpeed's own format: every rank writes its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler

from roll.strategies.training.random_state import random_state, restore_random_state

FOLDER = "deepspeed_state"
"""The tag of DeepSpeed's checkpoint: the folder that it writes to."""


def save(directory: Path, engine: Any, scheduler: LRScheduler, stage: int) -> None:
    """Write weights, optimiser, schedule and random state. Every rank must call it, with a folder that all see."""
    engine.save_checkpoint(str(directory), tag=FOLDER)
    own = {
        "ranks": dist.get_world_size(),
        "stage": stage,
        "scheduler": scheduler.state_dict(),
        "random": random_state(engine.device),
    }
    torch.save(own, directory / FOLDER / _rank_file(dist.get_rank()))
    dist.barrier()


def load(directory: Path, engine: Any, scheduler: LRScheduler, stage: int) -> None:
    """Restore what :func:`save` wrote.

    Raises:
        FileNotFoundError: If ``directory`` holds no training state of DeepSpeed.
        ValueError: It was written by another number of ranks, or under another stage.
    """
    folder = directory / FOLDER
    if not (folder / _rank_file(0)).is_file():
        raise FileNotFoundError(f"{directory} holds no {FOLDER}; it is not a checkpoint of deepspeed_train.")
    first = torch.load(folder / _rank_file(0), map_location="cpu", weights_only=True)
    if first["ranks"] != dist.get_world_size():
        raise ValueError(
            f"{directory} was written by {first['ranks']} ranks and this run has {dist.get_world_size()}: DeepSpeed "
            "cannot deal its shares out again. Continue with as many workers, or start from the saved model."
        )
    if first["stage"] != stage:
        raise ValueError(
            f"{directory} was written with zero_optimization.stage {first['stage']} and this run has {stage}. "
            "Continue with that stage, or start from the saved model."
        )
    engine.load_checkpoint(str(directory), tag=FOLDER, load_lr_scheduler_states=False)
    own = torch.load(folder / _rank_file(dist.get_rank()), map_location="cpu", weights_only=True)
    scheduler.load_state_dict(own["scheduler"])
    restore_random_state(own["random"], engine.device)


def _rank_file(rank: int) -> str:
    return f"roll_rank_{rank:05d}.pt"
