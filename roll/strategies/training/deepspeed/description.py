"""What the rest of the library knows of `deepspeed_train` and `deepspeed_infer`."""

from functools import partial
from typing import Final

from roll.config.strategies import StrategyDescription

_describe: Final = partial(
    StrategyDescription,
    check_options="roll.strategies.training.deepspeed.options:DeepSpeedOptions.from_mapping",
    package="deepspeed",
    install="pip install 'roll-rl[deepspeed]'",
    instead="fsdp_train",
    distributions=("deepspeed",),
    spans_processes=True,
    takes_fp16=False,
    packs=True,
    memory="roll.planning.trainers.deepspeed:states",
    smaller="roll.planning.trainers.deepspeed:smaller",
    shares_prefixes=True,
)

# A frozen reference without keys of its own is small enough for one process: it takes no engine.
DEEPSPEED_TRAIN: Final = _describe(
    name="deepspeed_train",
    trainer="roll.strategies.training.deepspeed.build:trainer",
    scorer="roll.strategies.training.pytorch.build:scorer",
    trains_critics=True,
    takes_optimizer_state=True,
    saves_reward_models=True,
    adapts=True,
    distils=True,
)

DEEPSPEED_INFER: Final = _describe(name="deepspeed_infer", scorer="roll.strategies.training.deepspeed.build:scorer")
