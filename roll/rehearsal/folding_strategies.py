"""The strategies of a job on this machine: which ones are the real ones, and what becomes of their widths."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import torch

from roll.config.strategies import FROZEN, Ability, StrategyDescription, ability_for, is_installed
from roll.config.worker import TrainWorkerConfig, WorkerConfig
from roll.rehearsal.changes import Folding

_WIDTHS: Final = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "ulysses_size"),
    *("tensor_parallel_size", "pipeline_parallel_size", "tp_size", "pp_size"),
)
"""Options with how many ranks share a model; ranks go to the first that is above 1."""
_DEVICE_OPTIONS: Final = (
    *("gpu_memory_utilization", "block_size", "swap_space", "cpu_offload_gb", "mem_fraction_static", "max_model_len"),
    *("max_num_batched_tokens", "fsdp_size", "max_num_seqs", "context_length"),
)
_LAYERS: Final = (
    *("virtual_pipeline_model_parallel_size", "num_layers_in_first_pipeline_stage"),
    *("num_layers_in_last_pipeline_stage", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    "recompute_num_layers",
)
"""Options of Megatron-Core that count layers, of which the random model has two."""
_KERNELS: Final = (
    *("moe_grouped_gemm", "moe_permute_fusion", "moe_shared_expert_overlap", "attention_backend"),
    *("masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion", "apply_rope_fusion"),
    "gradient_accumulation_fusion",
)
"""Options of Megatron-Core that choose kernels of CUDA."""
_MEGATRON: Final = "megatron.core"
_WORKERS: Final = "roll.rehearsal.megatron_workers"


def fold_strategy(folding: Folding, role: str, worker: WorkerConfig, ranks: int) -> int:
    """Choose the strategy of a role, fold its options, and return how many workers it has.

    Args:
        folding: Is told what changes.
        role: Key path of the role.
        worker: Its keys.
        ranks: Processes that may share a model.
    """
    about, path = worker.strategy_args.about, f"{role}.strategy_args"
    on_cpu = _worker_on_cpu(about, role, worker) if about.needs_gpu and not torch.cuda.is_available() else None
    if why := _obstacle(about, on_cpu):
        kind = TrainWorkerConfig if ability_for(role) is Ability.TRAIN else WorkerConfig
        instead = about.instead or kind().strategy_args.strategy_name
        folding.changes[f"{path}.strategy_name"] = instead
        folding.changes[f"{path}.strategy_config"] = None
        folding.notes.append(f"{role}: {about.name} {why}, so {instead} stands in for it.")
        return ranks
    given = _options(worker)
    options = _narrowed(folding, role, given, ranks)
    dropped: list[str] = [key for key in _DEVICE_OPTIONS if key in options]
    if dropped:
        folding.notes.append(f"{role}: without options about devices: {', '.join(dropped)}.")
    if about.package == _MEGATRON:
        if layers := [key for key in _LAYERS if options.get(key)]:
            dropped += layers
            folding.notes.append(f"{role}: without {', '.join(layers)}, for the random model has two layers.")
    if on_cpu is not None:
        folding.changes |= {f"{role}.worker_cls": on_cpu, f"{path}.strategy_name": about.name}
        kernels = [key for key in _KERNELS if options.get(key) not in (None, False, "auto", "unfused")]
        dropped += kernels
        which = f" ({', '.join(kernels)})" if kernels else ""
        folding.notes.append(f"{role}: Megatron-Core runs on the CPU, without CUDA's kernels{which}.")
    if worker.strategy_args.begins_with_own_weights:
        dropped.append(about.own_weights)
        folding.notes.append(f"{role}: without {about.own_weights}, for the model is a random one.")
    left = {key: value for key, value in options.items() if key not in dropped}
    if left != given or on_cpu is not None:
        folding.changes[f"{path}.strategy_config"] = left or None
    # An engine has all that share its model inside one worker.
    return max(1, ranks // about.parts(left))


def _obstacle(about: StrategyDescription, on_cpu: str | None) -> str | None:
    """Return why a strategy cannot run here, if it cannot."""
    if about.package and not is_installed(about.package):
        return "is not installed here"
    if torch.cuda.is_available():
        return None
    if about.kernels:
        try:
            import_module(about.kernels)
        except (ImportError, OSError):
            return f"has no kernels for the CPU here ({about.kernels})"
    return "needs a GPU" if about.needs_gpu and on_cpu is None else None


def _options(worker: WorkerConfig) -> dict[str, Any]:
    """Return the options of a strategy, among them how an engine divides its model where it says nothing of it."""
    arguments = worker.strategy_args
    return arguments.about.divided(arguments.strategy_config, worker.num_gpus_per_worker)


def _worker_on_cpu(about: StrategyDescription, role: str, worker: WorkerConfig) -> str | None:
    """Return the class of workers that computes on the CPU what otherwise needs a GPU, if there is one."""
    if about.package != _MEGATRON or worker.worker_cls is not None:
        return None
    if ability_for(role) is Ability.TRAIN:
        return f"{_WORKERS}.MegatronTrainWorker"
    return f"{_WORKERS}.MegatronScoreWorker" if role.partition(".")[0] in FROZEN else None


def _narrowed(folding: Folding, role: str, options: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return options whose widths are those of ``ranks``, with what depends on them, and say what became of each."""
    wide = [key for key in _WIDTHS if (options.get(key) or 1) > 1]
    new: dict[str, Any] = {key: ranks if key == wide[0] else 1 for key in wide}
    whole = {**options, **new}
    tensor = whole.get("tensor_model_parallel_size") or 1
    if (whole.get("expert_tensor_parallel_size") or 1) > 1:
        new["expert_tensor_parallel_size"] = 1 if (whole.get("expert_model_parallel_size") or 1) > 1 else tensor
    if whole.get("sequence_parallel") and tensor == 1:
        new["sequence_parallel"] = False
    became = [
        f"{key} {options[key]} {'stays' if value == options[key] else f'became {value}'}".lower()
        for key, value in new.items()
    ]
    if became:
        folding.notes.append(f"{role}: {', '.join(became)}.")
    return {**options, **new}
