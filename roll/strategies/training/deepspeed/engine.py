"""Starting DeepSpeed: its import, its ranks, models that are shared out while they load, and engines."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel
from transformers.integrations import deepspeed as transformers_deepspeed

_SHARED_MEMORY_OPERATOR = "deepspeed_shm_comm"
"""A faster sum between processes of one machine, which DeepSpeed compiles for more than a minute when it starts."""


def import_deepspeed() -> ModuleType:
    """Return the package, which is imported when a strategy needs it.

    Raises:
        ImportError: It is not installed; names the extra to install.
    """
    if not torch.cuda.is_available():
        # Otherwise it looks for accelerators at its import, and warns that it found none.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise ImportError(
            "deepspeed_train and deepspeed_infer need DeepSpeed, which is not installed: "
            "pip install 'roll-rl[deepspeed]'."
        ) from error
    module: ModuleType = deepspeed
    return module


def start_deepspeed() -> ModuleType:
    """Import DeepSpeed and let it use the default process group, one of this process alone if there is none."""
    deepspeed = import_deepspeed()
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if "LOCAL_RANK" not in os.environ:
        # DeepSpeed takes its device from there and from nowhere else.
        on_gpu = "nccl" in str(dist.get_backend())
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if on_gpu else dist.get_rank())
    # It calls torch by names that torch has since renamed, in every step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    _count_cpu_devices_once(deepspeed)
    with _without_compiler(deepspeed):
        deepspeed.init_distributed(dist_backend=str(dist.get_backend()), verbose=False)
    return deepspeed


def _count_cpu_devices_once(deepspeed: ModuleType) -> None:
    """Keep DeepSpeed from starting ``numactl`` for every bucket of gradients, to count what never changes."""
    accelerator = deepspeed.accelerator.get_accelerator()
    if accelerator.device_name() == "cpu" and "LOCAL_SIZE" not in os.environ:
        os.environ["LOCAL_SIZE"] = str(accelerator.device_count())


def _import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon, which no optimizer of ours is, and leave its functions to the interpreter.

    DeepSpeed imports it to know all optimizers, and asks PyTorch to compile it: the import of the compiler takes two
    seconds of every process.
    """
    with _variable("TORCHDYNAMO_DISABLE", "1"), suppress(ImportError):
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _without_compiler(deepspeed: ModuleType) -> Iterator[None]:
    """Keep DeepSpeed from compiling an operator for its communication on the CPU."""
    if deepspeed.accelerator.get_accelerator().device_name() != "cpu":
        yield
        return
    operators: dict[str, bool] = deepspeed.ops.__compatible_ops__
    compatible = operators.get(_SHARED_MEMORY_OPERATOR, False)
    operators[_SHARED_MEMORY_OPERATOR] = False
    try:
        yield
    finally:
        operators[_SHARED_MEMORY_OPERATOR] = compatible


class _LoadingConfig:
    """What ``transformers`` asks of a DeepSpeed configuration while it loads a model."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def is_zero3(self) -> bool:
        return True


@contextmanager
def sharing_out(config: Mapping[str, Any]) -> Iterator[None]:
    """Let ``from_pretrained`` hand each weight out to the ranks as soon as it is read (ZeRO stage 3).

    No rank then ever holds the whole model. Only models that are loaded inside are shared out; those that are loaded
    later in the same process are whole.

    Args:
        config: A complete DeepSpeed configuration with stage 3.
    """
    # transformers holds it by a weak reference: shared out is what loads while this variable is alive.
    loading = _LoadingConfig(dict(config))
    transformers_deepspeed.set_hf_deepspeed_config(loading)
    try:
        yield
    finally:
        transformers_deepspeed.unset_hf_deepspeed_config()
        del loading


def is_shared_out(parameter: nn.Parameter) -> bool:
    """Return whether ZeRO stage 3 has spread a parameter over the ranks."""
    return hasattr(parameter, "ds_id")


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of the whole parameter, also where this rank holds a share of it."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def numel_of(model: PreTrainedModel) -> int:
    """Return how many numbers the whole model has."""
    return sum(shape_of(parameter).numel() for parameter in model.parameters())


def make_engine(module: nn.Module, config: Mapping[str, Any], optimizer: Optimizer | None = None) -> Any:
    """Return a DeepSpeed engine around ``module``; with an optimizer, one that trains.

    Args:
        module: What is called as a whole.
        config: A complete DeepSpeed configuration.
        optimizer: Of the parameters that are trained; DeepSpeed wraps it.
    """
    deepspeed = start_deepspeed()
    _import_muon_uncompiled()
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=dict(config), dist_init_required=False)
    return engine


def first_rank_weights_everywhere(model: PreTrainedModel) -> None:
    """Send rank 0's weights to all ranks; what DeepSpeed does not do where it trains nothing."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
