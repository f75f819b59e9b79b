"""What the rest of the library knows of `fsdp_train` and `fsdp_infer`."""

from typing import Final

from roll.config.strategies import StrategyDescription

_OPTIONS: Final = "roll.strategies.training.pytorch.options:FsdpOptions.from_mapping"
_SCORER: Final = "roll.strategies.training.pytorch.build:fsdp_scorer"
_MEMORY: Final = "roll.planning.trainers.fsdp:states"

FSDP_TRAIN: Final = StrategyDescription(
    name="fsdp_train",
    trainer="roll.strategies.training.pytorch.build:trainer",
    scorer=_SCORER,
    check_options=_OPTIONS,
    spans_processes=True,
    trains_critics=True,
    adapts=True,
    takes_optimizer_state=True,
    saves_reward_models=True,
    distils=True,
    packs=True,
    shares_prefixes=True,
    sees=True,
    shares_model=True,
    memory=_MEMORY,
    smaller="roll.planning.trainers.fsdp:smaller",
    autocasts=True,
)

FSDP_INFER: Final = StrategyDescription(
    name="fsdp_infer",
    scorer=_SCORER,
    check_options=_OPTIONS,
    spans_processes=True,
    packs=True,
    shares_prefixes=True,
    sees=True,
    memory=_MEMORY,
    autocasts=True,
)
