"""`deepspeed_train`: training of a Hugging Face policy or critic with DeepSpeed, ZeRO stages 0 to 3."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from roll.strategies.base import BatchTotals, Loss, Prediction
from roll.strategies.calling import recompute_activations
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.adapters import adapters_disabled, save_adapters
from roll.strategies.training.deepspeed import checkpoint
from roll.strategies.training.deepspeed.engine import make_engine, numel_of, shape_of, start_deepspeed
from roll.strategies.training.deepspeed.loading import load_shared_out
from roll.strategies.training.deepspeed.memory import DeviceMemory
from roll.strategies.training.deepspeed.options import DeepSpeedOptions
from roll.strategies.training.deepspeed.penalty import SquarePenalty
from roll.strategies.training.deepspeed.scorer import EngineScorer
from roll.strategies.training.deepspeed.weights import exact, save_whole, stream_weights
from roll.strategies.training.ranks import Ranks
from roll.strategies.training.schedules import make_schedule
from roll.strategies.training.taking_over import own_schedule
from roll.strategies.training.trainer import ScoringTrainer, accumulate, contributing


class DeepSpeedTrainStrategy(ScoringTrainer):
    """Trains one model (see :class:`roll.strategies.base.TrainStrategy`).

    Each rank of the default process group makes this strategy with the same model and options; without a process group
    this process is the only rank. Then every rank calls every method, in the same order; batches are a rank's own
    rows, any number of them. Losses are normalised by counts over the whole batch, and gradients are summed over
    ranks, so neither micro-batches nor ranks change a gradient.

    Args:
        model: A Hugging Face model, a causal language model or a critic, whose weights are updated in place; ranks
            that hold other weights than rank 0 are given its. Or a function that loads it: under ZeRO stage 3 each
            weight is then handed out to the ranks as soon as it is read, and no rank ever holds the whole model.
        options: How the optimiser steps.
        predicts: What losses are given: ``log_probs`` of a language model, or ``values`` of a critic.
        config: DeepSpeed's JSON configuration, as a ``strategy_config`` holds it
            (:class:`roll.strategies.training.deepspeed.options.DeepSpeedOptions`), or one that is already checked.
        path: The key path of ``config``, for errors.

    Raises:
        ConfigError: ``config`` is wrong, or contradicts ``options``.
        ImportError: DeepSpeed is not installed.
    """

    def __init__(
        self,
        model: PreTrainedModel | Callable[[], PreTrainedModel],
        options: TrainOptions,
        *,
        predicts: Prediction = "log_probs",
        config: Mapping[str, Any] | DeepSpeedOptions | None = None,
        path: str = "strategy_config",
    ) -> None:
        zero = config if isinstance(config, DeepSpeedOptions) else DeepSpeedOptions.from_mapping(config, path)
        zero.check_precision(options.mixed_precision, path)
        start_deepspeed()
        if not isinstance(model, PreTrainedModel):
            model = load_shared_out(model, zero, mixed_precision=options.mixed_precision, predicts=predicts)
        self.model, self.options, self.zero = model, options, zero
        if options.gradient_checkpointing:
            recompute_activations(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._penalty = SquarePenalty([p for p in trained if len(shape_of(p)) >= 2], options.l2)
        self.optimizer = self._make_optimizer(trained)
        self._scorer = EngineScorer(
            model,
            self._make_engine,
            predicts=predicts,
            **options.for_scoring(),
        )
        self.engine: Any = self._scorer.engine
        self.device = self._scorer.device
        self._ranks = Ranks()
        self._memory = DeviceMemory(model, self.engine, self.optimizer)
        self.scheduler = make_schedule(self.optimizer, options)

    def train_step(self, batch: TensorDict, loss: Loss, totals: BatchTotals | None = None) -> dict[str, float]:
        """Take one optimiser step on ``batch``.

        Args:
            batch: ``input_ids``, ``response_mask`` ``[batch, sequence]`` and ``lengths`` ``[batch]``, plus what the
                loss reads: this rank's rows.
            loss: Normalised by the counts of the whole batch, so neither micro-batches nor ranks change the gradient.
            totals: The counts of the whole batch, all ranks together; ``None`` adds up what the ranks count.

        Returns:
            The loss and its metrics over the batch, ``grad_norm`` before clipping and ``learning_rate`` of this step;
            ``loss/l2`` with that option, included in ``loss``. The same on every rank.

        Raises:
            FloatingPointError: If the gradient is not finite, on every rank; the weights are left as they were.
        """
        self._must_be_here()
        if totals is None:
            totals = self._ranks.total(loss.totals(batch))
        self.engine.train()
        sums = self._merge(self._backward(contributing(batch, loss), loss, totals))
        if self.options.l2:
            accumulate(sums, {"loss": self._penalty.value, "loss/l2": self._penalty.value})
        learning_rate = float(self.scheduler.get_last_lr()[0])
        grad_norm = self._step()
        self.scheduler.step()
        return {**sums, "grad_norm": grad_norm, "learning_rate": learning_rate}

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter under its Hugging Face name, detached, LoRA adapters merged.

        The optimiser states may be handed over meanwhile. Of weights that are shared out, a bucket at a time is
        gathered, on every rank, so every rank must iterate to the end. Under bf16 these are the bf16 weights that the
        model computes with.
        """
        self._weights_must_be_here()
        yield from stream_weights(self.model)

    def adapters_disabled(self) -> AbstractContextManager[None]:
        """Score with the base model inside this context: the reference of a policy with LoRA adapters."""
        return adapters_disabled(self.model)

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights, optimiser, schedule and random state to ``directory``; loading them continues exactly.

        Every rank writes its share in DeepSpeed's own format, to a file system that all of them see.
        """
        self._must_be_here()
        checkpoint.save(directory, self.engine, self.scheduler, self.zero.stage)

    def load_checkpoint(self, directory: Path) -> None:
        """Restore what :meth:`save_checkpoint` wrote, on as many ranks and with the same ZeRO stage.

        DeepSpeed's files are pickles, which can run code: load only what you trust.

        Raises:
            FileNotFoundError: If ``directory`` holds no training state of this strategy.
            ValueError: It was written by another number of ranks, or under another stage.
        """
        self._must_be_here()
        checkpoint.load(directory, self.engine, self.scheduler, self.zero.stage)

    def load_optimizer(self, directory: Path) -> None:
        """Load weights and moments of a checkpoint; schedule, options and random state stay those of this run.

        Raises:
            FileNotFoundError: If ``directory`` holds no training state of this strategy.
            ValueError: It was written by another number of ranks, or under another stage.
        """
        with own_schedule(self.optimizer, self.scheduler, self.device):
            self.load_checkpoint(directory)

    def save_hf(self, directory: Path) -> None:
        """Write weights, adapters merged, and config in Hugging Face format; the first rank writes.

        Under bf16 it writes the fp32 weights of the optimiser.
        """
        self._must_be_here()
        save_whole(self.model, directory, self._ranks)

    def save_adapters(self, directory: Path) -> None:
        """Write the LoRA adapters in the format of peft; the first rank writes.

        Raises:
            ValueError: The model has no adapters.
        """
        self._must_be_here()
        save_adapters(self.model, directory, exact, write=self._ranks.rank == 0)
        self._ranks.gather(None)

    @property
    def offloaded(self) -> bool:
        """Whether weights or optimiser states are handed over, so that no step can be taken."""
        return self._memory.weights or self._memory.states

    def offload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Move weights, gradients and optimiser states to CPU memory, so that others can use the device.

        On the CPU, and of what DeepSpeed keeps in CPU memory anyway, everything stays where it is. Until
        :meth:`reload`, what needs it raises ``RuntimeError``.

        Args:
            weights: Whether to move weights and gradients.
            optimizer: Whether to move what the optimiser keeps, master weights among it.
        """
        self._memory.offload(weights=weights, optimizer=optimizer)
        self._scorer.handed_over = self._memory.weights

    def reload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Take back what :meth:`offload` moved, exactly as it was."""
        self._memory.reload(weights=weights, optimizer=optimizer)
        self._scorer.handed_over = self._memory.weights

    def _prepare_scoring(self) -> None:
        self.engine.eval()

    def close(self) -> None:
        """Take DeepSpeed's hooks and buffers away; nothing else can be called afterwards."""
        self._penalty.close()
        self.engine.destroy()

    def _make_optimizer(self, trained: list[nn.Parameter]) -> Optimizer:
        kind: Any = torch.optim.AdamW
        if self.zero.compiled_optimizer:
            kind = start_deepspeed().ops.adam.DeepSpeedCPUAdam
        matrices = [parameter for parameter in trained if len(shape_of(parameter)) >= 2]
        vectors = [parameter for parameter in trained if len(shape_of(parameter)) < 2]
        groups = [
            {"params": matrices, "weight_decay": self.options.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        # DeepSpeed cannot partition a group without parameters.
        groups = [group for group in groups if group["params"]]
        optimizer: Optimizer = kind(
            groups, lr=self.options.learning_rate, betas=self.options.betas, eps=self.options.epsilon
        )
        return optimizer

    def _make_engine(self, module: nn.Module) -> Any:
        limit = self.options.max_grad_norm
        config = self.zero.config(
            mixed_precision=self.options.mixed_precision,
            # Stage 0 without master weights clips without telling the norm; this strategy does it instead.
            max_grad_norm=limit if limit > 0 and not self._plain else 0.0,
            hidden_size=self.model.config.get_text_config().hidden_size,
            numel=numel_of(self.model),
        )
        return make_engine(module, config, self.optimizer)

    @property
    def _plain(self) -> bool:
        """Whether the optimiser is not wrapped by DeepSpeed, which then only sums gradients over ranks."""
        return self.zero.stage == 0 and not self.options.mixed_precision

    def _backward(self, batch: TensorDict, loss: Loss, totals: BatchTotals) -> dict[str, float]:
        """Add the gradient of ``loss`` over this rank's rows and return its metrics."""
        sums: dict[str, float] = {}
        passes = 0
        for rows, micro, last in self._scorer.passes(batch):
            passes += 1
            self._prepare(last)
            outputs, entropy = self._scorer.forward(micro, with_entropy=loss.needs_entropy)
            if not len(rows):
                # Other ranks reduce their gradients in this pass; this one takes part with zeros.
                self.engine.backward((0.0 * outputs).sum())
                continue
            value, metrics = loss(outputs, entropy, micro, totals)
            # DeepSpeed averages over ranks; losses are shares of a sum.
            self.engine.backward(value * self._ranks.size)
            accumulate(sums, {"loss": value.detach(), **metrics})
        if not passes:
            # No rank has rows: the optimiser's moments move as with any gradient that is zero.
            self._prepare(True)
            self.engine.backward(
                (0.0 * self._scorer.forward(self._scorer.empty_pass().micro, with_entropy=False)[0]).sum()
            )
        return sums

    def _prepare(self, last: bool) -> None:
        """Say whether the next pass is the last one before the optimiser step."""
        self.engine.set_gradient_accumulation_boundary(last)
        self._penalty.active = last

    def _merge(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the metrics of all ranks as one."""
        merged: dict[str, float] = {}
        for share in self._ranks.gather(sums):
            accumulate(merged, share)
        return merged

    def _step(self) -> float:
        """Clip, let the optimiser step and return the gradient norm before clipping."""
        if self._plain:
            limit = self.options.max_grad_norm
            clipped = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit if limit > 0 else float("inf"))
            norm = float(clipped)
            if not math.isfinite(norm):
                self.engine.zero_grad()
                raise _not_finite(norm)
            self.engine.step()
            return norm
        # DeepSpeed leaves out a step whose gradient norm is not finite.
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm())
        if not self.engine.was_step_applied():
            raise _not_finite(norm)
        return norm


def _not_finite(norm: float) -> FloatingPointError:
    return FloatingPointError(
        f"Gradient norm is {norm}: the step was not taken. "
        "Lower training_args.learning_rate, or check rewards and log-probs for extreme values."
    )
