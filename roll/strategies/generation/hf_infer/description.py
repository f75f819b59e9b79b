"""What the rest of the library knows of `hf_infer`."""

from typing import Final

from roll.config.strategies import StrategyDescription

HF_INFER: Final = StrategyDescription(
    name="hf_infer",
    engine="roll.strategies.generation.hf_infer.build:engine",
    check_options="roll.strategies.generation.hf_infer.options:HfInferOptions.from_mapping",
    scorer="roll.strategies.training.pytorch.build:scorer",
    packs=True,
    shares_prefixes=True,
    shares_model=True,
    sees=True,
    computes_as_trainer=True,
)
