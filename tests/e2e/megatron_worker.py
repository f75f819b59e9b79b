"""Named as ``worker_cls``: trains with the real Megatron-Core on processors, in place of the GPUs that it wants."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "integration"))

from roll.config import RLConfig  # noqa: E402
from roll.models.finding import resolve_pretrain  # noqa: E402
from roll.workers.factory import _add_adapters, train_options  # noqa: E402
from roll.workers.train import TrainWorker  # noqa: E402


class MegatronOnProcessors(TrainWorker):
    """Makes the strategy with layers in plain PyTorch; everything else is as on a GPU."""

    def make_strategy(self, config: RLConfig, role: str) -> Any:
        from megatron_support.cpu import cpu_layers, pretend_cuda

        from roll.strategies.training.megatron.options import MegatronOptions
        from roll.strategies.training.megatron.train import MegatronTrainStrategy

        pretend_cuda()
        worker = getattr(config, role)
        return MegatronTrainStrategy(
            resolve_pretrain(config.model_path(role)),
            train_options(config, worker),
            megatron=MegatronOptions.from_mapping(worker.strategy_args.strategy_config, role),
            layer_spec=cpu_layers,
            device=torch.device("cpu"),
            seed=config.seed,
            adapt=None if worker.model_args.lora_rank is None else partial(_add_adapters, config, role),
        )
