"""Megatron-Core on a machine without a GPU: the CPU answers what it asks of CUDA, and layers are in plain PyTorch."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Self

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region, get_cuda_rng_tracker
from megatron.core.tensor_parallel import random as tensor_parallel_random
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from roll.strategies.training.megatron import scorer

_CPU: Final = torch.device("cpu")
_ALONE: Final = threading.RLock()
"""PyTorch is changed for the whole process: threads take turns."""


class NoStream:
    """Stands for a CUDA stream: everything has happened already."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def wait_stream(self, *arguments: Any) -> NoStream:
        """Return at once, as all that waits for something does."""
        return self

    wait_event = record_event = synchronize = wait_stream


class CudaIsTheCpu(TorchFunctionMode):
    """Inside, what Megatron-Core takes for granted of CUDA is answered by the CPU.

    Tensors are made on the CPU where CUDA is named, and those in fp32 say that they are CUDA tensors. When it is left,
    PyTorch and Megatron-Core are as they were. Threads take turns inside.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch as it is to be on the CPU."""
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Inside twice, it was said already.
            return re.sub(r"^torch\.(?!cuda\.)", "torch.cuda.", func(*args))
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        """Change PyTorch and Megatron-Core."""
        self._before = contextlib.ExitStack()
        self._before.enter_context(_ALONE)
        for owner, name, answer in _answers():
            self._before.enter_context(replaced(owner, name, answer))
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo it."""
        super().__exit__(kind, error, trace)
        self._before.close()


def _answers() -> Iterator[tuple[Any, str, Any]]:
    cuda, stream = torch.cuda, NoStream()
    yield cuda, "current_device", lambda: _CPU
    for name in ("synchronize", "empty_cache"):
        yield cuda, name, lambda *a, **k: None
    yield cuda, "manual_seed", torch.manual_seed
    for owner in (cuda, cuda.random):
        yield owner, "get_rng_state", lambda *a, **k: torch.get_rng_state()
    yield tensor_parallel_random, "_set_cuda_rng_state", lambda state, *a, **k: torch.set_rng_state(state)
    yield cuda, "Stream", NoStream
    for name in ("current_stream", "default_stream"):
        yield cuda, name, lambda *a: stream
    yield cuda, "stream", lambda *a: contextlib.nullcontext()
    yield moe_utils, "te_general_gemm", getattr(moe_utils, "te_general_gemm", None)
    # What is computed again asks Transformer Engine about fp8, also in a model without.
    yield tensor_parallel_random, "FP8GlobalStateManager", SimpleNamespace(is_fp8_enabled=lambda: False)
    for name in ("activation_recompute_forward", "fp8_autocast"):
        yield tensor_parallel_random, name, lambda *a, **k: contextlib.nullcontext()
    # Sizes of splits are wanted in NumPy, also where they are on the CPU already.
    yield (
        token_dispatcher,
        "maybe_move_tensor_to_cpu",
        lambda tensor, as_numpy=False, record_stream=False: (
            tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
        ),
    )


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute has another value, whether or not it is there otherwise."""
    was_there, before = hasattr(owner, name), getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if was_there:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Inside, strategies of Megatron-Core compute on the CPU, with layers in plain PyTorch."""
    with (
        CudaIsTheCpu(),
        replaced(scorer, "default_device", lambda: _CPU),
        replaced(scorer, "transformer_engine_spec", cpu_layers),
    ):
        yield


class RMSNorm(nn.RMSNorm):
    """PyTorch's norm, whose weight says whether its gradient is one of a part of the sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **options: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        weight: Any = self.weight
        weight.sequence_parallel = config.sequence_parallel


class Attention(nn.Module):
    """Causal attention of padded or packed sequences, each of which may be spread over context ranks."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.ranks = pg_collection.cp
        self.scale = softmax_scale
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Return what tokens attend to, ``[sequence, batch, hidden]``; packed, ``[tokens, hidden]``."""
        packed = packed_seq_params is not None
        if packed:
            query, key, value = (states.unsqueeze(1) for states in (query, key, value))
        ends = packed_seq_params.cu_seqlens_q.tolist() if packed else [0, query.shape[0] * self.ranks.size()]
        lengths = [end - start for start, end in zip(ends, ends[1:], strict=False)]
        places = self._places(lengths, query.device)
        sequence = torch.repeat_interleave(torch.tensor(lengths, device=query.device))
        own = places[self.ranks.rank()]
        if self.ranks.size() > 1:
            order = torch.cat(places).argsort()
            key, value = (
                gather_from_sequence_parallel_region(states.contiguous(), group=self.ranks)[order]
                for states in (key, value)
            )
        everywhere = torch.arange(len(sequence), device=query.device)
        visible = (own[:, None] >= everywhere) & (sequence[own][:, None] == sequence)
        queries, keys, values = (states.permute(1, 2, 0, 3) for states in (query, key, value))
        shared = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
        drops = self.training and self.dropout > 0
        with get_cuda_rng_tracker().fork() if drops else contextlib.nullcontext():
            output = F.scaled_dot_product_attention(
                queries, keys, values, visible, self.dropout if drops else 0.0, scale=self.scale
            )
        output = output.permute(2, 0, 1, 3).flatten(2)
        return output.squeeze(1) if packed else output

    def _places(self, lengths: list[int], device: torch.device) -> list[Tensor]:
        """Return which tokens each context rank has: of each sequence one part from the begin and one from the end."""
        size = self.ranks.size()
        if size == 1:
            return [torch.arange(sum(lengths), device=device)]
        sequences = torch.arange(sum(lengths), device=device).split(lengths)
        parts = [sequence.chunk(2 * size) for sequence in sequences]
        return [torch.cat([t for part in parts for t in (part[r], part[2 * size - 1 - r])]) for r in range(size)]


def cpu_layers(config: TransformerConfig, virtual_stage: int | None) -> TransformerBlockSubmodules:
    """Return the layers of a stage; a ``layer_spec`` for the strategies."""
    kinds = {}
    for experts in (None, config.num_moe_experts):
        spec = get_gpt_layer_local_spec(experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
        layer, attention = spec.submodules, spec.submodules.self_attention.submodules
        layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
        attention.core_attention = Attention
        kinds[experts is not None] = spec
    frequency = config.moe_layer_freq if isinstance(config.moe_layer_freq, list) else [0] * config.num_layers
    every = [
        kinds[bool(frequency[number]) and config.num_moe_experts is not None] for number in range(config.num_layers)
    ]
    first = get_transformer_layer_offset(config, vp_stage=virtual_stage)
    count = get_num_layers_to_build(config, vp_stage=virtual_stage)
    return TransformerBlockSubmodules(layer_specs=every[first : first + count], layer_norm=RMSNorm)
