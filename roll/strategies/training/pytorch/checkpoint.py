"""Training state on disk: one file of a single process, or a folder of shards that any number of ranks can read."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel

from roll.strategies.training.adapters import ADAPTER, adapted_layers
from roll.strategies.training.random_state import random_state, restore_random_state
from roll.strategies.training.ranks import Ranks

CHECKPOINT_FILE = "train_state.pt"
"""What a single process writes."""

MODEL_FOLDER = "train_model"
"""What says which model the weights belong to: its configuration, and that of its adapters."""

CHECKPOINT_FOLDER = "train_state"
"""What several ranks write: weights and moments as shards, and one small file of each rank."""

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps for each parameter, in the parameter's shape, beside its number of steps."""


def save_file(
    directory: Path, model: PreTrainedModel, optimizer: Optimizer, scheduler: LRScheduler, device: torch.device
) -> None:
    """Write weights, optimiser, schedule and random state of a model that is in one process."""
    directory.mkdir(parents=True, exist_ok=True)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "random": random_state(device),
    }
    torch.save(state, directory / CHECKPOINT_FILE)
    _describe(directory, model)


def save_shards(
    directory: Path,
    model: PreTrainedModel,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    device: torch.device,
    ranks: Ranks,
) -> None:
    """Write the same of a sharded model. Every rank must call it, with a folder that all of them see."""
    folder = directory / CHECKPOINT_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    moments = _moments(model, optimizer) if optimizer.state else {}
    dcp.save({**_weights(model), **moments}, checkpoint_id=folder)
    rank_state = {
        "ranks": ranks.size,
        "stepped": bool(moments),
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
        "scheduler": scheduler.state_dict(),
        "random": random_state(device),
    }
    torch.save(rank_state, folder / _rank_file(ranks.rank))
    if ranks.rank == 0:
        _describe(directory, model)
    ranks.gather(None)


def load(
    directory: Path,
    model: PreTrainedModel,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    device: torch.device,
    ranks: Ranks,
) -> None:
    """Restore what either function wrote, on any number of ranks.

    On the number of ranks that wrote it, the random state (dropout) comes back too; on another number each rank keeps
    its own.

    Raises:
        FileNotFoundError: If ``directory`` holds no training state.
    """
    if (directory / CHECKPOINT_FILE).is_file():
        _load_file(directory / CHECKPOINT_FILE, model, optimizer, scheduler, device, ranks)
    elif (directory / CHECKPOINT_FOLDER).is_dir():
        _load_shards(directory / CHECKPOINT_FOLDER, model, optimizer, scheduler, device, ranks)
    else:
        raise FileNotFoundError(f"{directory} holds no {CHECKPOINT_FILE}; it is not a checkpoint of fsdp_train.")


def _describe(directory: Path, model: PreTrainedModel) -> None:
    """Write the model's configuration, so that its weights can be used without the run that trained them."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(directory / MODEL_FOLDER)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(directory / MODEL_FOLDER)
    if adapted_layers(model):
        model.peft_config[ADAPTER].save_pretrained(directory / MODEL_FOLDER)


def _load_file(
    path: Path,
    model: PreTrainedModel,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    device: torch.device,
    ranks: Ranks,
) -> None:
    # Tensors are copied to where they belong below; generator states must stay on the CPU.
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=ranks.size > 1)
    scheduler.load_state_dict(state["scheduler"])
    if ranks.size == 1:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        restore_random_state(state["random"], device)
        return
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            tensor.copy_(_like(tensor, state["model"][name]))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    shares = {
        index: {
            name: value if value.ndim == 0 else _like(parameters[index], value)
            for name, value in state["optimizer"]["state"][index].items()
        }
        for index in state["optimizer"]["state"]
    }
    optimizer.load_state_dict({**state["optimizer"], "state": shares})


def _load_shards(
    folder: Path,
    model: PreTrainedModel,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    device: torch.device,
    ranks: Ranks,
) -> None:
    common = torch.load(folder / _rank_file(0), map_location="cpu", weights_only=True)
    optimizer.state.clear()
    if common["stepped"]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                moments = {name: torch.zeros_like(parameter, requires_grad=False) for name in MOMENTS}
                optimizer.state[parameter] = {"step": torch.zeros(()), **moments}
    target = {**_weights(model), **_moments(model, optimizer)}
    with warnings.catch_warnings():
        # It says that it reads in a single process even where it was told to.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(target, checkpoint_id=folder, no_dist=ranks.size == 1)
    for group, saved in zip(optimizer.param_groups, common["groups"], strict=True):
        group.update(saved)
    scheduler.load_state_dict(common["scheduler"])
    if common["ranks"] == ranks.size:
        own = torch.load(folder / _rank_file(ranks.rank), map_location="cpu", weights_only=True)
        restore_random_state(own["random"], device)


def _weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return every parameter once, and the buffers that are part of a model's state; not copies."""
    state = model.state_dict()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in state}
    return {f"model.{name}": tensor for name, tensor in {**parameters, **buffers}.items()}


def _moments(model: PreTrainedModel, optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        f"optimizer.{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _like(target: Tensor, whole: Tensor) -> Tensor:
    """Return this rank's share of ``whole``, as ``target`` has it of its own."""
    if not isinstance(target, DTensor):
        return whole.to(target.device)
    here = whole.to(target.to_local().device)
    # Every rank has read the whole tensor, so nothing has to be sent.
    return distribute_tensor(here, target.device_mesh, target.placements, src_data_rank=None)


def _rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.pt"
