"""The parts of Megatron-Core that are used here: the one file that imports it, and that says how to install it."""

from __future__ import annotations

try:
    from megatron.core import dist_checkpointing
    from megatron.core import parallel_state as mpu
    from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor
    from megatron.core.dist_checkpointing.optimizer import (
        get_param_id_to_sharded_param_map,
        make_sharded_optimizer_tensor,
    )
    from megatron.core.dist_checkpointing.strategies.torch import (
        MCoreSavePlanner,
        TorchDistSaveShardedStrategy,
        _replace_state_dict_keys_with_sharded_keys,
        mcore_to_pyt_state_dict,
    )
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import (
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
        get_cuda_rng_tracker,
        model_parallel_cuda_manual_seed,
        param_is_not_tensor_parallel_duplicate,
        reduce_from_tensor_model_parallel_region,
        reduce_scatter_to_sequence_parallel_region,
        set_tensor_model_parallel_attributes,
    )
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.module import param_is_not_shared
    from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
except ImportError as error:
    raise ImportError(
        f"megatron_train and megatron_infer need Megatron-Core ({error}). "
        "Install it with: pip install 'roll-rl[megatron]'"
    ) from error

__all__ = [
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "DistributedOptimizer",
    "DotProductAttention",
    "GPTModel",
    "MCoreSavePlanner",
    "OptimizerConfig",
    "PackedSeqParams",
    "ShardedStateDict",
    "ShardedTensor",
    "TorchDistSaveShardedStrategy",
    "TransformerConfig",
    "_replace_state_dict_keys_with_sharded_keys",
    "clip_grad_by_total_norm_fp32",
    "copy_to_tensor_model_parallel_region",
    "dist_checkpointing",
    "finalize_model_grads",
    "gather_from_sequence_parallel_region",
    "get_cuda_rng_tracker",
    "get_forward_backward_func",
    "get_gpt_decoder_block_spec",
    "get_megatron_optimizer",
    "get_param_id_to_sharded_param_map",
    "make_sharded_optimizer_tensor",
    "make_sharded_tensors_for_checkpoint",
    "mcore_to_pyt_state_dict",
    "model_parallel_cuda_manual_seed",
    "mpu",
    "param_is_not_shared",
    "param_is_not_tensor_parallel_duplicate",
    "reduce_from_tensor_model_parallel_region",
    "reduce_scatter_to_sequence_parallel_region",
    "set_tensor_model_parallel_attributes",
]
