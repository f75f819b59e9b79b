"""AdamW of Megatron-Core, taken apart so that a step can be refused, and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roll.strategies.jobs import TrainOptions
from roll.strategies.training.megatron.core import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    OptimizerConfig,
    clip_grad_by_total_norm_fp32,
    finalize_model_grads,
    get_megatron_optimizer,
    param_is_not_shared,
    param_is_not_tensor_parallel_duplicate,
)
from roll.strategies.training.megatron.model import Stage
from roll.strategies.training.megatron.options import MegatronOptions
from roll.strategies.training.schedules import make_schedule


class Stepper:
    """Sums the gradients of ranks, and moves the weights.

    Args:
        stages: Of this rank. They are wrapped: from now on :attr:`chunks` are what computes.
        train: How the optimiser steps.
        megatron: How optimiser states are spread, and what overlaps.
    """

    def __init__(self, stages: Sequence[Stage], train: TrainOptions, megatron: MegatronOptions) -> None:
        self._train = train
        config = stages[0].config
        wrapping = DistributedDataParallelConfig(
            use_distributed_optimizer=megatron.use_distributed_optimizer,
            overlap_grad_reduce=megatron.overlap_grad_reduce,
            overlap_param_gather=megatron.overlap_param_gather,
            grad_reduce_in_fp32=megatron.grad_reduce_in_fp32,
            bucket_size=megatron.ddp_bucket_size,
        )
        self.chunks: list[Any] = [
            DistributedDataParallel(config, wrapping, stage, disable_bucketing=number > 0)
            for number, stage in enumerate(stages)
        ]
        self._gathers_late = megatron.overlap_param_gather
        config.finalize_model_grads_func = _finalize
        if megatron.overlap_grad_reduce:
            wrappers = [chunk.no_sync for chunk in self.chunks]
            config.no_sync_func = wrappers if len(wrappers) > 1 else wrappers[0]
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=train.learning_rate,
                weight_decay=train.weight_decay,
                adam_beta1=train.betas[0],
                adam_beta2=train.betas[1],
                adam_eps=train.epsilon,
                # Clipping is done here, once it is known that the gradient is finite.
                clip_grad=0.0,
                bf16=config.bf16,
                params_dtype=config.params_dtype,
                use_distributed_optimizer=megatron.use_distributed_optimizer,
                overlap_param_gather=megatron.overlap_param_gather,
            ),
            self.chunks,
        )
        for group in self.optimizer.param_groups:
            group["weight_decay"] = train.weight_decay * group["wd_mult"]
        self.schedule = Schedule(train)
        self.steps = 0

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def step(self) -> tuple[float, float, float]:
        """Clip the gradients that the passes have added up, and move the weights.

        Returns:
            The gradient norm before clipping, the learning rate, and the L2 term of the loss.

        Raises:
            FloatingPointError: If the gradient is not finite, on every rank; nothing has moved.
        """
        self.optimizer.prepare_grads()
        penalty = self._penalize() if self._train.l2 else 0.0
        norm = float(self.optimizer.get_grad_norm())
        if not math.isfinite(norm):
            self.zero_grad()
            raise FloatingPointError(
                f"Gradient norm is {norm}: the step was not taken. "
                "Lower training_args.learning_rate, or check rewards and log-probs for extreme values."
            )
        if self._train.max_grad_norm > 0:
            for part in self.parts:
                clip_grad_by_total_norm_fp32(part.get_parameters(), self._train.max_grad_norm, norm)
        rate = self.schedule.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step_with_ready_grads()
        self.schedule.advance()
        self.steps += 1
        return norm, rate, penalty

    def finish_gathering(self) -> None:
        """Make sure that the weights are those after the last step, where they are gathered during the next pass."""
        if self._gathers_late:
            for chunk in self.chunks:
                chunk.start_param_sync(force_sync=True)

    @property
    def parts(self) -> list[Any]:
        """The optimisers, of experts and of all else, that have parameters on this rank."""
        return [part for part in self.optimizer.chained_optimizers if not part.is_stub_optimizer]

    def state_tensors(self) -> Iterator[Tensor]:
        """Yield the optimiser states, of any shape, and main weights that are kept beside those of the model."""
        own = {parameter.untyped_storage().data_ptr() for chunk in self.chunks for parameter in chunk.parameters()}
        for part in self.parts:
            for state in part.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor) and value.is_cuda)
            for parameter in part.get_parameters():
                if parameter.untyped_storage().data_ptr() not in own:
                    yield parameter

    @torch.no_grad()
    def _penalize(self) -> float:
        """Add the gradient of ``l2 / 2 * sum(w^2)`` of the matrices and return the term."""
        term = 0.0
        for part in self.optimizer.chained_optimizers:
            total = torch.zeros((), dtype=torch.float64, device=weights_device(self.chunks))
            for group in part.param_groups:
                if not group["wd_mult"]:
                    continue
                for parameter in group["params"]:
                    parameter.grad.add_(parameter, alpha=self._train.l2)
                    # Weights that several ranks hold count once.
                    if param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter):
                        total += parameter.square().sum(dtype=torch.float64)
            dist.all_reduce(total, group=part.get_grad_stats_parallel_group())
            term += float(total)
        return 0.5 * self._train.l2 * term


class Schedule:
    """The learning rate of each step, by the schedule of the run; optimisers of several ranks follow it."""

    def __init__(self, train: TrainOptions) -> None:
        # Schedules of torch change an optimiser; this one has nothing else to do.
        self._carrier = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=train.learning_rate)
        self._scheduler = make_schedule(self._carrier, train)

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return float(self._scheduler.get_last_lr()[0])

    def advance(self) -> None:
        """Go on to the step after it."""
        self._carrier.step()
        self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule is."""
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._scheduler.load_state_dict(state)


def _finalize(
    chunks: list[nn.Module], num_tokens: Tensor | None = None, pg_collection: Any = None, force_all_reduce: bool = False
) -> None:
    """Sum gradients over ranks. They are divided by nothing: losses are shares of the loss of the whole batch."""
    finalize_model_grads(chunks, None, pg_collection=pg_collection, force_all_reduce=force_all_reduce)


def weights_device(chunks: Sequence[Any]) -> torch.device:
    """Return where the weights are."""
    device: torch.device = next(chunks[0].parameters()).device
    return device
