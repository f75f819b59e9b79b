"""Spreading a model over ranks with FSDP2 (`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.ranks import Ranks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Shards:
    """One rank's share of a model.

    Every transformer layer is a group of its own, gathered when it computes; embeddings, last norm and head are in the
    group of ``root``. Gradients are *summed* over ranks: losses are shares of the loss of the whole batch.

    Args:
        root: The module that is called, with ``model`` inside. Sharded in place.
        model: The Hugging Face model, the same on every rank; or with ``meta_init``, as
            :func:`roll.strategies.training.pytorch.loading.load_on_first_rank` returns it.
        options: How to shard.
        ranks: The ranks that share it.
        mixed_precision: Compute in bf16, with fp32 weights and optimiser states.
        full_precision: Modules inside ``model`` that compute in the precision of their weights all the same.

    Raises:
        RuntimeError: This version of torch lacks what is needed.
        ValueError: ``fsdp_size`` does not divide the number of ranks, or the ranks do not hold the same weights.
    """

    def __init__(
        self,
        root: nn.Module,
        model: PreTrainedModel,
        options: FsdpOptions,
        ranks: Ranks,
        *,
        mixed_precision: bool = False,
        full_precision: tuple[nn.Module, ...] = (),
    ) -> None:
        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise RuntimeError(
                f"fsdp_train over several ranks needs torch 2.13 or newer, and this is {torch.__version__}."
            )
        self.ranks = ranks
        self.device = ranks.device
        self.offloaded = options.offload_params
        mesh, self.replicated = _mesh(options.fsdp_size, ranks), 0 < options.fsdp_size < ranks.size
        state = _full_state(model, ranks) if options.meta_init else None
        if state is None:
            _check_same_weights(model, ranks)
        exact = MixedPrecisionPolicy()
        policy = exact
        if mixed_precision:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=DTYPES[options.reduce_dtype])
        offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if self.offloaded else OffloadPolicy()
        for module in (*full_precision, *layers(model), root):
            fully_shard(
                module,
                mesh=mesh,
                # The backward pass begins with the root: its weights would be gathered again at once.
                reshard_after_forward=options.reshard_after_forward and module is not root,
                mp_policy=exact if module in full_precision else policy,
                offload_policy=offload,
            )
        self.root = root
        for group in self._groups():
            group.set_gradient_divide_factor(1.0)
            group.set_force_sum_reduction_for_comms(True)
            # Experts that no token of this rank reached have a gradient on others, which wait for this rank's share.
            group.set_reduce_scatter_unused_params(True, recurse=False)
        if state is not None:
            _materialise(model, state, self.device, offloaded=self.offloaded)

    def reshard(self) -> None:
        """Drop gathered weights. Needed after a forward pass that no backward pass follows."""
        for group in self._groups():
            group.reshard()

    def set_last(self, last: bool) -> None:
        """Say whether the next backward pass is the last one before the optimiser step."""
        if self.replicated:
            # Copies of the weights are brought together once per step; within a copy gradients are summed every time.
            assert isinstance(self.root, FSDPModule)
            self.root.set_requires_all_reduce(last)

    def full(self, tensor: Tensor) -> Tensor:
        """Return all of a sharded tensor of any shape, on every rank, on the device. Every rank must call it."""
        return full(tensor, self.device)

    def _groups(self) -> Iterator[FSDPModule]:
        return (module for module in self.root.modules() if isinstance(module, FSDPModule))


def layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the transformer layers of a model, those that ``transformers`` says must stay on one device."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def full(tensor: Tensor, device: torch.device) -> Tensor:
    """Return all of a tensor of any shape that may be sharded, detached and on ``device``."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        # What is offloaded must be on the device first: ranks may have no way to talk about CPU memory.
        tensor = tensor.to(device)
        assert isinstance(tensor, DTensor)
        return tensor.full_tensor()
    return tensor


def _mesh(fsdp_size: int, ranks: Ranks) -> DeviceMesh:
    kind, size = ranks.device.type, fsdp_size if fsdp_size > 0 else ranks.size
    if ranks.size % size:
        fitting = [n for n in range(1, ranks.size + 1) if ranks.size % n == 0]
        raise ValueError(
            f"fsdp_size={fsdp_size} does not divide the {ranks.size} ranks. Use one of {', '.join(map(str, fitting))}, "
            "or -1 for all."
        )
    if size == ranks.size:
        return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(kind, (ranks.size // size, size), mesh_dim_names=("replicate", "shard"))


@torch.no_grad()
def _check_same_weights(model: PreTrainedModel, ranks: Ranks) -> None:
    """Raise where a rank loaded other weights than rank 0: nothing would ever bring them together."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("The model has no weights on this rank; set meta_init, so that they come from rank 0.")
    norms = ranks.gather([float(torch.linalg.vector_norm(p, dtype=torch.float64)) for p in model.parameters()])
    for rank, own in enumerate(norms):
        # Equal weights have nearly equal norms: the order of a sum depends on the number of threads.
        if not np.allclose(own, norms[0], rtol=1e-9, atol=0.0):
            raise ValueError(
                f"Rank {rank} holds other weights than rank 0. Load the same checkpoint everywhere, or set meta_init."
            )


def _full_state(model: PreTrainedModel, ranks: Ranks) -> dict[str, Tensor]:
    """Take the weights out of rank 0's model; every rank returns the buffers, which are never sharded."""
    state = dict(model.state_dict(keep_vars=False)) if ranks.rank == 0 else {}
    own = {name: value.cpu() for name, value in model.named_buffers(remove_duplicate=False)} if ranks.rank == 0 else {}
    buffers = ranks.gather(own)[0]
    if ranks.rank == 0:
        shared = _tied(model)
        model.to(torch.device("meta"))  # type: ignore[arg-type]
        _tie(model, shared)
    return {**state, **{_BUFFER + name: buffer for name, buffer in buffers.items()}}


_BUFFER = "buffer of "


def _materialise(model: PreTrainedModel, state: dict[str, Tensor], device: torch.device, *, offloaded: bool) -> None:
    """Give a sharded model without memory its weights from rank 0, and its buffers."""
    shared = _tied(model)
    model.to_empty(device="cpu" if offloaded else device)
    _tie(model, shared)
    weights: dict[str, Any] = {name: value for name, value in state.items() if not name.startswith(_BUFFER)}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for name, value in state.items():
        if name.startswith(_BUFFER):
            path, _, leaf = name.removeprefix(_BUFFER).rpartition(".")
            setattr(model.get_submodule(path), leaf, value.to(device))


def _tied(model: nn.Module) -> list[list[str]]:
    """Return the names of the parameters that are the same one, which moving a model takes apart."""
    by_identity: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_identity.setdefault(id(parameter), []).append(name)
    return [names for names in by_identity.values() if len(names) > 1]


def _tie(model: nn.Module, shared: list[list[str]]) -> None:
    for first, *others in shared:
        for name in others:
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, model.get_parameter(first))
