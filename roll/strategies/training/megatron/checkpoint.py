"""Training state on disk, in the format of ``megatron.core.dist_checkpointing``: any division of ranks reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from roll.strategies.training.megatron.core import (
    DistributedOptimizer,
    MCoreSavePlanner,
    ShardedStateDict,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    dist_checkpointing,
    get_cuda_rng_tracker,
    get_param_id_to_sharded_param_map,
    make_sharded_optimizer_tensor,
    mcore_to_pyt_state_dict,
)
from roll.strategies.training.megatron.model import Stage
from roll.strategies.training.megatron.optimizer import Stepper
from roll.strategies.training.megatron.options import MegatronOptions

CHECKPOINT_FOLDER = "train_state"

_METADATA = {
    # Moments in the shapes of their parameters, so that they can be cut in another way.
    "distrib_optim_sharding_type": "fully_reshardable",
    "chained_optim_avoid_prefix": True,
}


def save(
    directory: Path, stages: Sequence[Stage], stepper: Stepper, options: MegatronOptions, device: torch.device
) -> None:
    """Write weights, optimiser, schedule and random state. Every rank must call it, with a folder that all see."""
    folder = directory / CHECKPOINT_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    _fill_moments(stepper)
    state = _sharded(stages, stepper, loading=False)
    state["trainer"] = {
        "steps": stepper.steps,
        "schedule": stepper.schedule.state_dict(),
        "use_distributed_optimizer": options.use_distributed_optimizer,
        "division": division(options),
    }
    dist_checkpointing.save(state, str(folder), DirectSave("torch_dist", 1), content_metadata=dict(_METADATA))
    torch.save(_random_state(device), folder / _rank_file(dist.get_rank()))
    dist.barrier()


def load(
    directory: Path,
    stages: Sequence[Stage],
    stepper: Stepper,
    options: MegatronOptions,
    device: torch.device,
    *,
    moments_only: bool = False,
) -> None:
    """Restore what :func:`save` wrote.

    Args:
        directory: A checkpoint.
        stages: Of this rank.
        stepper: The optimiser and its schedule.
        options: How the model is spread over ranks.
        device: Where this rank computes.
        moments_only: Leave the schedule and the random state as they are.

    Raises:
        FileNotFoundError: If ``directory`` holds no training state.
        ValueError: If it was written with another value of ``use_distributed_optimizer``.
    """
    folder = directory / CHECKPOINT_FOLDER
    if not (folder / "metadata.json").is_file():
        raise FileNotFoundError(f"{directory} holds no {CHECKPOINT_FOLDER}; it is not a checkpoint of megatron_train.")
    trainer = dist_checkpointing.load_common_state_dict(str(folder))["trainer"]
    if trainer["use_distributed_optimizer"] != options.use_distributed_optimizer:
        raise ValueError(
            f"{folder} was written with use_distributed_optimizer={trainer['use_distributed_optimizer']}. "
            "Set it to the same value to load it."
        )
    _fill_moments(stepper)
    state = dist_checkpointing.load(_sharded(stages, stepper, loading=True), str(folder))
    for number, stage in enumerate(stages):
        stage.load_state_dict(state[f"model{number}"])
    for number, part in enumerate(stepper.parts):
        _load_moments(part, state["moments"][number], trainer["steps"])
    stepper.steps = trainer["steps"]
    if not moments_only:
        stepper.schedule.load_state_dict(trainer["schedule"])
    if trainer["division"] == division(options) and not moments_only:
        _restore_random_state(torch.load(folder / _rank_file(dist.get_rank()), weights_only=True), device)
    dist.barrier()


class DirectSave(TorchDistSaveShardedStrategy):
    """Writes shards from this process.

    Megatron-Core's own writer forks the process, with all its threads, and leaves behind a server for the results that
    outlives a process that is killed. The files are the same.
    """

    def save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: str | Path) -> None:
        """Write this rank's shards to the folder; every rank must call it."""
        by_key, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        planner = MCoreSavePlanner(dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False)
        writer = dcp.FileSystemWriter(str(checkpoint_dir))
        dcp.save(mcore_to_pyt_state_dict(by_key, False), storage_writer=writer, planner=planner)


def division(options: MegatronOptions) -> dict[str, int | None]:
    """Return what the random state of a rank depends on."""
    return {
        "ranks": dist.get_world_size(),
        "tensor_model_parallel_size": options.tensor_model_parallel_size,
        "pipeline_model_parallel_size": options.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": options.virtual_stages,
        "context_parallel_size": options.context_parallel_size,
        "expert_model_parallel_size": options.expert_model_parallel_size,
        "expert_tensor_parallel_size": options.expert_tensor_parallel_size,
    }


def _sharded(stages: Sequence[Stage], stepper: Stepper, *, loading: bool) -> dict[str, Any]:
    models = {f"model{number}": stage.sharded_state_dict() for number, stage in enumerate(stages)}
    # By number: another division may have more optimisers, or fewer, and lists would have to be of one length.
    moments = {number: _moments(part, models, loading=loading) for number, part in enumerate(stepper.parts)}
    return {**models, "moments": moments}


def _moments(part: Any, models: dict[str, Any], *, loading: bool) -> dict[Any, Any]:
    """Return what one optimiser keeps for each parameter, and nothing of how it divides the parameters."""
    if isinstance(part, DistributedOptimizer):
        with _places_without_padding(part.buffers):
            state = part.sharded_state_dict(models, is_loading=loading, metadata=dict(_METADATA))
        return {"distributed": state["param_state"]}
    own, main = part.get_parameters(), _main_weights(part)
    weights = get_param_id_to_sharded_param_map(models, [main.get(parameter, parameter) for parameter in own])

    def sharded(number: int, value: torch.Tensor, name: str) -> Any:
        return make_sharded_optimizer_tensor(weights[number], value, prefix=f"optimizer.state.{name}")

    return {
        number: {
            **{
                name: sharded(number, value, name)
                for name, value in part.optimizer.state[parameter].items()
                if name != "step"
            },
            **({"main": sharded(number, parameter, "fp32_param")} if parameter in main else {}),
        }
        for number, parameter in enumerate(own)
    }


@contextmanager
def _places_without_padding(buffers: Sequence[Any]) -> Iterator[None]:
    """Let the places of parameters in a buffer not count the padding between its buckets.

    Megatron-Core 0.16 puts the buckets end to end without it, and cuts parameters out where they are with it: behind
    the first bucket that is padded, it would write the numbers of other parameters.
    """
    before = [buffer.param_index_map for buffer in buffers]
    for buffer in buffers:
        padding = [0, *accumulate(bucket.grad_data.numel() - bucket.numel_unpadded for bucket in buffer.buckets)]
        buffer.param_index_map = {
            parameter: (start - padding[bucket], end - padding[bucket], bucket)
            for parameter, (start, end, bucket) in buffer.param_index_map.items()
        }
    try:
        yield
    finally:
        for buffer, places in zip(buffers, before, strict=True):
            buffer.param_index_map = places


def _main_weights(part: Any) -> dict[torch.Tensor, torch.Tensor]:
    """Return the weights of the model by the fp32 weights that the optimiser keeps beside them."""
    models = chain.from_iterable(getattr(part, "float16_groups", ()))
    mains = chain.from_iterable(getattr(part, "fp32_from_float16_groups", ()))
    return dict(zip(mains, models, strict=True))


def _fill_moments(stepper: Stepper) -> None:
    """Give AdamW the moments it starts from, which it makes only at its first step."""
    for part in stepper.parts:
        part.init_state_fn(part.optimizer, part.config)
        if isinstance(part.optimizer, torch.optim.AdamW):
            for state in part.optimizer.state.values():
                state.setdefault("step", torch.zeros(()))


@torch.no_grad()
def _load_moments(part: Any, state: dict[Any, Any], steps: int) -> None:
    """Take over the state of one optimiser.

    PyTorch's AdamW counts its steps for each parameter, others for each group of them.
    """
    adam = part.optimizer
    torch_adamw = isinstance(adam, torch.optim.AdamW)
    for own in adam.state.values():
        # Megatron-Core would look for it in the checkpoint.
        own.pop("step", None)
    if isinstance(part, DistributedOptimizer):
        part.load_parameter_state_from_fully_reshardable(state["distributed"])
    else:
        for number, parameter in enumerate(part.get_parameters()):
            for name, value in state[number].items():
                (parameter if name == "main" else adam.state[parameter][name]).copy_(value)
    for own in adam.state.values() if torch_adamw else ():
        own["step"] = torch.tensor(float(steps))
    for group in () if torch_adamw else adam.param_groups:
        group["step"] = steps


def _rank_file(rank: int) -> str:
    return f"random_{rank:05d}.pt"


def _random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators that a pass may draw from."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
