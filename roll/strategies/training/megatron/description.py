"""What the rest of the library knows of `megatron_train` and `megatron_infer`."""

from functools import partial
from typing import Final

from roll.config.strategies import StrategyDescription

_describe: Final = partial(
    StrategyDescription,
    scorer="roll.strategies.training.megatron.build:scorer",
    check_options="roll.strategies.training.megatron.options:MegatronOptions.from_mapping",
    package="megatron.core",
    install="pip install 'roll-rl[megatron]'",
    instead="fsdp_train",
    distributions=("megatron-core",),
    spans_processes=True,
    needs_process_group=True,
    needs_gpu=True,
    gpu_package="transformer_engine",
    gpu_install="pip install 'transformer-engine[pytorch]'",
    takes_fp16=False,
    packs=True,
    memory="roll.planning.trainers.megatron:states",
    smaller="roll.planning.trainers.megatron:smaller",
    has_own_layers=True,
    own_weights="load",
)

MEGATRON_TRAIN: Final = _describe(
    name="megatron_train",
    trainer="roll.strategies.training.megatron.build:trainer",
    trains_critics=True,
    takes_optimizer_state=True,
    saves_reward_models=True,
    adapts=True,
    distils=True,
    saves_megatron=True,
)

MEGATRON_INFER: Final = _describe(name="megatron_infer")
