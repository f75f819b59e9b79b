"""Megatron-Core on a machine without a GPU: what it asks CUDA for is answered by the CPU, and layers in plain PyTorch.

Only for tests, in processes of their own: PyTorch itself is changed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
)
from megatron.core.tensor_parallel import random as tensor_parallel_random
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class CudaIsTheCpu(TorchFunctionMode):
    """Makes tensors on the CPU where CUDA is named, and says that fp32 tensors are CUDA tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **kwargs)


class NoStream:
    """Stands for a CUDA stream: everything has happened already."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def wait_stream(self, *arguments: Any) -> NoStream:
        return self

    wait_event = record_event = synchronize = wait_stream


def pretend_cuda() -> None:
    """Change PyTorch and Megatron-Core in this process, for good."""
    cuda, stream = torch.cuda, NoStream()
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = cuda.empty_cache = lambda *a, **k: None
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *a, **k: torch.get_rng_state()
    tensor_parallel_random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    cuda.Stream, cuda.current_stream, cuda.default_stream = NoStream, lambda *a: stream, lambda *a: stream
    cuda.stream = lambda *a: contextlib.nullcontext()
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    # Sizes of splits are wanted in NumPy, also where they are on the CPU already.
    token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
        tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
    )
    CudaIsTheCpu().__enter__()


class RMSNorm(nn.RMSNorm):
    """PyTorch's norm, whose weight says whether its gradient is one of a part of the sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **options: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel


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
        packed = packed_seq_params is not None
        if packed:
            query, key, value = (states.unsqueeze(1) for states in (query, key, value))
        ends = packed_seq_params.cu_seqlens_q.tolist() if packed else [0, query.shape[0] * self.ranks.size()]
        lengths = [end - start for start, end in zip(ends, ends[1:], strict=False)]
        places = self._places(lengths, query.device)
        sequence = torch.repeat_interleave(torch.tensor(lengths))
        own = places[self.ranks.rank()]
        if self.ranks.size() > 1:
            order = torch.cat(places).argsort()
            key, value = (
                gather_from_sequence_parallel_region(states.contiguous(), group=self.ranks)[order]
                for states in (key, value)
            )
        everywhere = torch.arange(len(sequence))
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


class NormedLinear(ColumnParallelLinear):
    """Stands for Transformer Engine's layer with a norm inside: its names, and what it returns when asked."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm_weight = nn.Parameter(torch.ones(input_size))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel
        self.return_layernorm_output = False

    def forward(self, states: Tensor) -> Any:
        normed = F.rms_norm(states, states.shape[-1:], self.layer_norm_weight, self.config.layernorm_epsilon)
        output, bias = super().forward(normed)
        return ((output, normed) if self.return_layernorm_output else output), bias


class HiddenNormLinear(NormedLinear):
    """Keeps the output of its norm to itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        del self.return_layernorm_output

    def forward(self, states: Tensor) -> Any:
        raise NotImplementedError


def normed_layers(config: TransformerConfig, virtual_stage: int | None, linear: type = NormedLinear) -> Any:
    """Return the layers of :func:`cpu_layers` with norms inside the linear layers behind them."""
    block = cpu_layers(config, virtual_stage)
    for spec in block.layer_specs:
        layer = spec.submodules
        layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
        layer.self_attention.submodules.linear_qkv = layer.mlp.submodules.linear_fc1 = linear
    return block


def hidden_norm_layers(config: TransformerConfig, virtual_stage: int | None) -> Any:
    """Return layers whose norm nobody can see."""
    return normed_layers(config, virtual_stage, HiddenNormLinear)


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
