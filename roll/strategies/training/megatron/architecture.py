"""What a Hugging Face model is made of, in the words of Megatron-Core."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from roll.strategies.training.megatron.core import TransformerConfig
from roll.strategies.training.megatron.options import MegatronOptions

FAMILIES = ("qwen2", "qwen3", "llama", "qwen3_moe")
"""Values of ``model_type`` whose weights can be read and written."""

_VOCABULARY_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this and of the tensor-parallel ranks."""


def transformer_config(
    config: PretrainedConfig,
    options: MegatronOptions,
    device: torch.device,
    *,
    bf16: bool = False,
    recompute: bool = False,
) -> TransformerConfig:
    """Describe a Hugging Face model to Megatron-Core.

    Args:
        config: Of the Hugging Face model.
        options: How it is spread over ranks.
        device: Where it computes.
        bf16: Weights and arithmetic in bf16; otherwise fp32.
        recompute: Recompute every layer in the backward pass, unless ``options`` say what to recompute.

    Raises:
        ValueError: The architecture has something that the conversion does not know, or its sizes do not divide.
    """
    _check_architecture(config, options)
    dtype = torch.bfloat16 if bf16 else torch.float32
    on_cpu = device.type == "cpu"
    return TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=head_size(config),
        ffn_hidden_size=config.intermediate_size,
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=config.model_type == "qwen2" or bool(getattr(config, "attention_bias", False)),
        qk_layernorm=config.model_type.startswith("qwen3"),
        hidden_dropout=0.0,
        attention_dropout=getattr(config, "attention_dropout", 0.0) or 0.0,
        attention_softmax_in_fp32=options.attention_softmax_in_fp32,
        bf16=bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        use_cpu_initialization=on_cpu,
        # A loss is a share of the loss of the whole batch: gradients are summed over ranks, and divided by nothing.
        calculate_per_token_loss=True,
        attention_backend=_attention_backend(options),
        bias_activation_fusion=options.bias_activation_fusion,
        bias_dropout_fusion=options.bias_dropout_fusion,
        apply_rope_fusion=options.apply_rope_fusion,
        gradient_accumulation_fusion=options.gradient_accumulation_fusion,
        masked_softmax_fusion=options.masked_softmax_fusion,
        persist_layer_norm=not on_cpu,
        **_division(options, on_cpu),
        **_recomputation(options, recompute),
        **_experts(config, options),
    )


def head_size(config: PretrainedConfig) -> int:
    """Return the size of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def padded_vocabulary(config: PretrainedConfig, tensor_parallel_size: int) -> int:
    """Return the number of rows of the embedding, a multiple of what it is divided by."""
    multiple = _VOCABULARY_MULTIPLE * tensor_parallel_size
    return -(-config.vocab_size // multiple) * multiple


def inverse_frequencies(config: PretrainedConfig) -> Tensor:
    """Return the rotary frequencies of the Hugging Face model, ``[head size / 2]`` float32.

    Raises:
        ValueError: They depend on the length of the sequence, or come with a scaling of attention.
    """
    parameters: dict[str, Any] = dict(getattr(config, "rope_parameters", None) or {})
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_size(config), 2, dtype=torch.float32) / head_size(config)
        return 1.0 / (float(parameters.get("rope_theta", 10000.0)) ** exponents)
    if kind not in ("linear", "llama3"):
        raise ValueError(
            f"rope_type={kind!r} of the model is not supported by megatron_train, which knows default, linear and "
            "llama3. Use fsdp_train for this model."
        )
    frequencies, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.float()


def expert_layers(config: PretrainedConfig) -> list[int]:
    """Return 1 for each layer that is a mixture of experts, and 0 for the others."""
    if config.model_type != "qwen3_moe":
        return [0] * config.num_hidden_layers
    dense, step = set(config.mlp_only_layers or ()), config.decoder_sparse_step
    return [int(layer not in dense and (layer + 1) % step == 0) for layer in range(config.num_hidden_layers)]


def _experts(config: PretrainedConfig, options: MegatronOptions) -> dict[str, Any]:
    if not any(expert_layers(config)):
        return {}
    return dict(
        num_moe_experts=config.num_experts,
        moe_layer_freq=expert_layers(config),
        moe_router_topk=config.num_experts_per_tok,
        moe_ffn_hidden_size=config.moe_intermediate_size,
        # Probabilities of the chosen experts are normalised among themselves, or are those among all experts.
        moe_router_pre_softmax=not config.norm_topk_prob,
        moe_router_load_balancing_type="none",
        moe_aux_loss_coeff=0.0,
        expert_model_parallel_size=options.expert_model_parallel_size,
        expert_tensor_parallel_size=options.expert_tensor_parallel_size,
        moe_grouped_gemm=options.moe_grouped_gemm,
        moe_router_dtype=options.moe_router_dtype,
        moe_permute_fusion=options.moe_permute_fusion,
        moe_shared_expert_overlap=options.moe_shared_expert_overlap,
        moe_router_force_load_balancing=options.moe_router_force_load_balancing,
    )


def _division(options: MegatronOptions, on_cpu: bool) -> dict[str, Any]:
    """Return how the model is divided over ranks, and how these talk to each other."""
    pipelined, interleaved = options.pipeline_model_parallel_size > 1, options.virtual_stages is not None
    return {
        "tensor_model_parallel_size": options.tensor_model_parallel_size,
        "pipeline_model_parallel_size": options.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": options.virtual_stages,
        "num_layers_in_first_pipeline_stage": options.num_layers_in_first_pipeline_stage,
        "num_layers_in_last_pipeline_stage": options.num_layers_in_last_pipeline_stage,
        "context_parallel_size": options.context_parallel_size,
        "sequence_parallel": options.sequence_parallel,
        # Two ranks that are each other's neighbours on both sides could not tell the shapes that they send apart, so
        # the interleaved schedule is given micro-batches of one shape.
        "variable_seq_lengths": pipelined and not interleaved,
        "overlap_p2p_comm": interleaved,
        # Also without experts: the default cannot take sequences of different lengths.
        "moe_token_dispatcher_type": options.moe_token_dispatcher_type,
        "batch_p2p_comm": not on_cpu and not interleaved,
        "batch_p2p_sync": not on_cpu,
        # Without CUDA streams, what overlaps is still being sent when the schedule frees it.
        "deallocate_pipeline_outputs": pipelined and not (interleaved and on_cpu),
    }


def _recomputation(options: MegatronOptions, recompute: bool) -> dict[str, Any]:
    granularity, modules = options.recompute_granularity, options.recompute_modules
    if options.moe_layer_recompute:
        chosen = ["core_attn"] if granularity == "selective" and modules is None else list(modules or ())
        granularity, modules = "selective", [*chosen, "moe"]
    if granularity is None and recompute:
        granularity = "full"
    if granularity == "full":
        return dict(
            recompute_granularity="full",
            recompute_method=options.recompute_method or "uniform",
            recompute_num_layers=options.recompute_num_layers or 1,
        )
    return dict(recompute_granularity=granularity, recompute_modules=modules) if granularity else {}


def _attention_backend(options: MegatronOptions) -> Any:
    from megatron.core.transformer.enums import AttnBackend

    return AttnBackend[options.attention_backend]


def _check_architecture(config: PretrainedConfig, options: MegatronOptions) -> None:
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"megatron_train cannot convert models of type {config.model_type!r}; it knows {', '.join(FAMILIES)}. "
            "Use fsdp_train for this model."
        )
    unsupported = {
        "mlp_bias": getattr(config, "mlp_bias", False),
        "attention_bias": getattr(config, "attention_bias", False) and config.model_type != "qwen2",
        "use_sliding_window": getattr(config, "use_sliding_window", False),
        "hidden_act": config.hidden_act if config.hidden_act != "silu" else None,
    }
    for name, value in unsupported.items():
        if value:
            raise ValueError(
                f"{name}={value!r} of the model is not supported by megatron_train. Use fsdp_train for this model."
            )
    tensor = options.tensor_model_parallel_size
    if config.num_key_value_heads % tensor:
        raise ValueError(
            f"tensor_model_parallel_size={tensor} does not divide the {config.num_key_value_heads} key-value heads of "
            "the model. Use a smaller one, with context_parallel_size or pipeline_model_parallel_size beside it."
        )
    experts = getattr(config, "num_experts", None) if any(expert_layers(config)) else None
    if options.expert_model_parallel_size > 1 and (experts is None or experts % options.expert_model_parallel_size):
        raise ValueError(
            f"expert_model_parallel_size={options.expert_model_parallel_size} does not divide the "
            f"{experts or 0} experts of the model."
        )
