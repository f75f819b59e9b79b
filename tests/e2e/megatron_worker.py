"""Named as ``worker_cls``: trains with the real Megatron-Core on processors, in place of the GPUs that it wants."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "integration"))

from roll.config import RLConfig  # noqa: E402
from roll.workers.factory import scorer_job, trainer_job  # noqa: E402
from roll.workers.train import ScoreWorker, TrainWorker  # noqa: E402


class MegatronOnProcessors(TrainWorker):
    """Makes the strategy with layers in plain PyTorch; everything else is as on a GPU."""

    def make_strategy(self, config: RLConfig, role: str) -> Any:
        from megatron_support.cpu import cpu_layers, pretend_cuda

        from roll.strategies.training.megatron.options import MegatronOptions
        from roll.strategies.training.megatron.train import MegatronTrainStrategy

        pretend_cuda()
        job = trainer_job(config, role)
        return MegatronTrainStrategy(
            job.folder(),
            job.options,
            predicts=job.predicts,
            megatron=MegatronOptions.from_mapping(job.strategy_config, job.path),
            layer_spec=cpu_layers,
            device=torch.device("cpu"),
            seed=job.seed,
            adapt=job.adapt,
            classifier=job.classifier,
            pad_token_id=job.pad_token_id() if job.predicts == "values" else None,
        )


class MegatronScoresOnProcessors(ScoreWorker):
    """The same for a frozen model."""

    def make_scorer(self, config: RLConfig, role: str) -> Any:
        from megatron_support.cpu import cpu_layers, pretend_cuda

        from roll.strategies.training.megatron.options import MegatronOptions
        from roll.strategies.training.megatron.scorer import MegatronScorer

        pretend_cuda()
        job = scorer_job(config, role)
        return MegatronScorer(
            job.folder(),
            megatron=MegatronOptions.from_mapping(job.strategy_config, job.path),
            layer_spec=cpu_layers,
            device=torch.device("cpu"),
            seed=job.seed,
            **job.options.arguments(),
        )
