"""Where a rank stands among the others: tensor, pipeline, context and data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from roll.strategies.training.megatron.core import model_parallel_cuda_manual_seed, mpu
from roll.strategies.training.megatron.options import MegatronOptions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank stands.

    Ranks with the same ``data_rank`` hold one copy of the model together and are given the same rows.

    Attributes:
        data_rank: Number of the copy of the model, in 0..``data_size`` - 1: which rows this rank is given.
        data_size: Copies of the model: into how many parts a batch is split.
        speaks: Whether this rank speaks for its copy: first tensor and context rank of the last pipeline stage. Every
            other rank of the copy returns the same.
        tensor_rank: Which part of every matrix.
        context_rank: Which part of every sequence.
        pipeline_rank: Which stage of the layers.
    """

    data_rank: int
    data_size: int
    speaks: bool
    tensor_rank: int
    context_rank: int
    pipeline_rank: int


def open_parallel(options: MegatronOptions, seed: int) -> Place:
    """Form the groups of ranks, or take over those that are there, and say where this rank stands.

    Megatron-Core keeps the groups as global state, so all strategies of a process share one division.

    Args:
        options: The sizes.
        seed: Of the generators for dropout.

    Raises:
        RuntimeError: There is no default process group, or this process already divides its ranks in another way.
        ValueError: The sizes do not divide the number of ranks.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "megatron_train and megatron_infer need a process group, also in one process: "
            "call torch.distributed.init_process_group first."
        )
    _check_sizes(options, dist.get_world_size())
    if not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=options.tensor_model_parallel_size,
            pipeline_model_parallel_size=options.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=options.virtual_stages,
            context_parallel_size=options.context_parallel_size,
            expert_model_parallel_size=options.expert_model_parallel_size,
            expert_tensor_parallel_size=options.expert_tensor_parallel_size,
        )
        model_parallel_cuda_manual_seed(seed)
    elif _division() != _wanted(options):
        raise RuntimeError(
            f"This process already divides its ranks as {_division()}, and {_wanted(options)} is asked for. "
            "All Megatron strategies of a process share one division: give them the same sizes, or processes of "
            "their own."
        )
    return place()


def close_parallel() -> None:
    """Forget the groups of ranks, so that the process can form others; strategies made before are of no more use."""
    mpu.destroy_model_parallel()
    # Megatron-Core only forgets its groups. Each of them has threads, thousands after many divisions.
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def place() -> Place:
    """Return where this rank stands in the groups that are open."""
    tensor, context = mpu.get_tensor_model_parallel_rank(), mpu.get_context_parallel_rank()
    return Place(
        data_rank=mpu.get_data_parallel_rank(),
        data_size=mpu.get_data_parallel_world_size(),
        speaks=tensor == 0 and context == 0 and mpu.is_pipeline_last_stage(),
        tensor_rank=tensor,
        context_rank=context,
        pipeline_rank=mpu.get_pipeline_model_parallel_rank(),
    )


def gather(value: T) -> list[T]:
    """Return the ``value`` of every rank, in their order. Every rank must call it."""
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]


def default_device() -> torch.device:
    """Return this rank's CUDA device.

    Raises:
        RuntimeError: There is none.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "Megatron-Core computes on CUDA devices, and this process sees none. "
            "Run it on GPUs, or use fsdp_train, which also runs on CPUs."
        )
    return torch.device("cuda", torch.cuda.current_device())


def _check_sizes(options: MegatronOptions, world: int) -> None:
    wanted = {
        "tensor_model_parallel_size * pipeline_model_parallel_size * context_parallel_size": (
            options.model_parallel_size
        ),
        "expert_tensor_parallel_size * expert_model_parallel_size * pipeline_model_parallel_size": (
            (options.expert_tensor_parallel_size or options.tensor_model_parallel_size)
            * options.expert_model_parallel_size
            * options.pipeline_model_parallel_size
        ),
    }
    for names, size in wanted.items():
        if world % size:
            raise ValueError(
                f"{names} is {size}, which does not divide the {world} ranks. Make one of these sizes smaller, or "
                f"start a multiple of {size} ranks."
            )


def _division() -> dict[str, int | None]:
    return {
        "tensor_model_parallel_size": mpu.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": mpu.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline_model_parallel_size": mpu.get_virtual_pipeline_model_parallel_world_size(),
        "context_parallel_size": mpu.get_context_parallel_world_size(),
        "expert_model_parallel_size": mpu.get_expert_model_parallel_world_size(),
        "expert_tensor_parallel_size": mpu.get_expert_tensor_parallel_world_size(),
    }


def _wanted(options: MegatronOptions) -> dict[str, int | None]:
    sizes = {name: getattr(options, name) for name in _division()}
    sizes["virtual_pipeline_model_parallel_size"] = options.virtual_stages
    sizes["expert_tensor_parallel_size"] = options.expert_tensor_parallel_size or options.tensor_model_parallel_size
    return sizes
