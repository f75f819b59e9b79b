"""What the rest of the library knows of `sglang`."""

from typing import Final

from roll.config.strategies import StrategyDescription

SGLANG: Final = StrategyDescription(
    name="sglang",
    engine="roll.strategies.generation.sglang.strategy:SglangStrategy.for_job",
    check_options="roll.strategies.generation.sglang.options:check_options",
    refusals="roll.strategies.generation.sglang.limits:refusals",
    package="sglang",
    kernels="sgl_kernel",
    install="pip install 'roll-rl[sglang]'",
    instead="hf_infer",
    distributions=("sglang",),
    scores_tokens=True,
    parallel_sizes=("tp_size", "pp_size"),
    random_weights=("load_format", "dummy"),
)
