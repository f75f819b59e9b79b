"""`fsdp_train`: training of a Hugging Face policy or critic, plain PyTorch in one process, FSDP2 over several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel

from roll.strategies.base import BatchTotals, Loss, Prediction
from roll.strategies.calling import recompute_activations
from roll.strategies.jobs import TrainOptions
from roll.strategies.parking import Parking
from roll.strategies.training.adapters import adapted_layers, adapters_disabled, merged_named_parameters, save_adapters
from roll.strategies.training.pytorch import checkpoint
from roll.strategies.training.pytorch.checkpoint import CHECKPOINT_FILE
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.ranks import Ranks
from roll.strategies.training.schedules import make_schedule
from roll.strategies.training.taking_over import own_schedule
from roll.strategies.training.trainer import ScoringTrainer, accumulate, contributing

__all__ = ["CHECKPOINT_FILE", "FsdpTrainStrategy"]


class FsdpTrainStrategy(ScoringTrainer):
    """Trains one model (see :class:`roll.strategies.base.TrainStrategy`).

    In one process this is plain PyTorch. Where ``torch.distributed`` is initialised with several ranks, each of them
    makes this strategy with the same model and options, and the model is sharded over them. Then every rank calls
    every method, in the same order; batches are a rank's own rows, any number of them.

    Args:
        model: A Hugging Face model, whose weights are updated in place: a causal language model, or a critic
            (:func:`roll.models.critic.load_critic`). In one process on its device; several ranks move it to theirs.
        options: How the optimiser steps.
        predicts: What losses are given: ``log_probs`` of a language model, or ``values`` of a critic.
        fsdp: How the model is spread over ranks.

    Raises:
        ValueError: The options do not fit the model or the number of ranks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        options: TrainOptions,
        *,
        predicts: Prediction = "log_probs",
        fsdp: FsdpOptions | None = None,
    ) -> None:
        self.model = model
        self.options = options
        if options.gradient_checkpointing:
            recompute_activations(model)
        self._scorer = Scorer(
            model,
            predicts=predicts,
            fsdp=fsdp or FsdpOptions(),
            **options.for_scoring(),
        )
        self.device = self._scorer.device
        self._ranks, self._shards = Ranks(), self._scorer.shards
        self._parking, self._parked_gradients, self._optimizer_handed_over = Parking(), Parking(), False
        # Only now: sharding replaces parameters.
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._matrices = [parameter for parameter in trained if parameter.ndim >= 2]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": self._matrices, "weight_decay": options.weight_decay},
                {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0},
            ],
            lr=options.learning_rate,
            betas=options.betas,
            eps=options.epsilon,
        )
        self.scheduler = make_schedule(self.optimizer, options)

    def train_step(self, batch: TensorDict, loss: Loss, totals: BatchTotals | None = None) -> dict[str, float]:
        """Take one optimiser step on ``batch``.

        Args:
            batch: ``input_ids``, ``response_mask`` ``[batch, sequence]`` and ``lengths`` ``[batch]``, plus what the
                loss reads. This rank's rows of it, if there are several.
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
            totals = self._ranks.total(loss.totals(batch) if self.speaks else BatchTotals(0, 0, 0))
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums = self._merge(self._backward(contributing(batch, loss), loss, totals))
        self._fill_missing_gradients()
        if self.options.l2:
            penalty = self._penalize()
            accumulate(sums, {"loss": penalty, "loss/l2": penalty})
        grad_norm = self._clip()
        if not torch.isfinite(grad_norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(
                f"Gradient norm is {float(grad_norm)}: the step was not taken. "
                "Lower training_args.learning_rate, or check rewards and log-probs for extreme values."
            )
        learning_rate = float(self.scheduler.get_last_lr()[0])
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {**sums, "grad_norm": float(grad_norm), "learning_rate": learning_rate}

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter under its Hugging Face name, detached: in one process without a copy.

        The optimiser states may be handed over meanwhile. Of a sharded model one parameter at a time is gathered, on
        every rank, so every rank must iterate to the end. Of a model with LoRA adapters come the merged weights, one
        matrix at a time; the training weights stay apart.
        """
        self._weights_must_be_here()
        yield from merged_named_parameters(self.model, self._gather)

    def adapters_disabled(self) -> AbstractContextManager[None]:
        """Score with the base model inside this context: the reference of a policy with LoRA adapters."""
        return adapters_disabled(self.model)

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights, optimiser, schedule and random state to ``directory``; loading them continues exactly.

        Several ranks write a folder of shards, which must be on a file system that all of them see.
        """
        self._must_be_here()
        if self._shards is None:
            checkpoint.save_file(directory, self.model, self.optimizer, self.scheduler, self.device)
        else:
            checkpoint.save_shards(directory, self.model, self.optimizer, self.scheduler, self.device, self._ranks)

    def load_checkpoint(self, directory: Path) -> None:
        """Restore what :meth:`save_checkpoint` wrote, the state of torch's global generators (dropout) included.

        Any number of ranks reads what any other number wrote; only the generators are then left as they are.

        Raises:
            FileNotFoundError: If ``directory`` holds no training state.
        """
        self._must_be_here()
        checkpoint.load(directory, self.model, self.optimizer, self.scheduler, self.device, self._ranks)

    def load_optimizer(self, directory: Path) -> None:
        """Load weights and moments of a checkpoint; schedule, options and random state stay those of this run.

        Raises:
            FileNotFoundError: If ``directory`` holds no training state.
        """
        self._must_be_here()
        with own_schedule(self.optimizer, self.scheduler, self.device):
            self.load_checkpoint(directory)

    def save_hf(self, directory: Path) -> None:
        """Write weights, adapters merged, and config in Hugging Face format; of several ranks the first one writes."""
        if self._shards is None and not adapted_layers(self.model):
            self._must_be_here()
            self.model.save_pretrained(directory)
            return
        first = self._ranks.rank == 0
        whole = {name: tensor.cpu() for name, tensor in self.named_parameters() if first}
        if first:
            persistent = self.model.state_dict().keys()
            whole |= {name: buffer.cpu() for name, buffer in self.model.named_buffers() if name in persistent}
            self.model.save_pretrained(directory, state_dict=whole)
        self._ranks.gather(None)

    def save_adapters(self, directory: Path) -> None:
        """Write the LoRA adapters in the format of peft; of several ranks the first one writes.

        Raises:
            ValueError: The model has no adapters.
        """
        self._must_be_here()
        save_adapters(self.model, directory, self._gather, write=self._ranks.rank == 0)
        self._ranks.gather(None)

    @property
    def offloaded(self) -> bool:
        """Whether weights or optimiser states are handed over, so that no step can be taken."""
        return self._scorer.offloaded or self._optimizer_handed_over

    def offload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Move weights, gradients and optimiser states to CPU memory, so that others can use the device.

        On the CPU everything stays where it is. Until :meth:`reload`, what needs it raises ``RuntimeError``.

        Args:
            weights: Whether to move weights and gradients (in one process also those that an engine samples from).
            optimizer: Whether to move the optimiser states.
        """
        on_cpu = self.device.type != "cuda" or (self._shards is not None and self._shards.offloaded)
        if optimizer and not on_cpu and not self._optimizer_handed_over:
            self._parking.park(
                value
                for state in self.optimizer.state.values()
                for value in state.values()
                # AdamW counts its steps on the CPU.
                if isinstance(value, Tensor) and value.device.type == "cuda"
            )
        if weights and not on_cpu and not self._scorer.offloaded:
            self._parked_gradients.park(p.grad for p in self.model.parameters() if p.grad is not None)
        self._optimizer_handed_over |= optimizer
        if weights:
            self._scorer.offload()
        if not on_cpu:
            torch.cuda.empty_cache()

    def reload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Take back what :meth:`offload` moved, exactly as it was."""
        if weights:
            self._scorer.reload()
            self._parked_gradients.restore()
        if optimizer:
            self._parking.restore()
            self._optimizer_handed_over = False

    def _prepare_scoring(self) -> None:
        self.model.eval()

    def _gather(self, parameter: Tensor) -> Tensor:
        return parameter.detach() if self._shards is None else self._shards.full(parameter)

    def _backward(self, batch: TensorDict, loss: Loss, totals: BatchTotals) -> dict[str, float]:
        """Add the gradient of ``loss`` over this rank's rows and return its metrics."""
        shares: list[Mapping[str, Tensor]] = []
        for rows, micro, last in self._scorer.passes(batch):
            if self._shards is not None:
                self._shards.set_last(last)
            outputs, entropy = self._scorer.forward(micro, with_entropy=loss.needs_entropy)
            if not len(rows):
                # Other ranks sum their gradients in this pass; this one takes part with zeros.
                (0.0 * outputs).sum().backward()
                continue
            value, metrics = loss(outputs, entropy, micro, totals)
            value.backward()
            shares.append({"loss": value.detach(), **metrics})
        # Read only now: on a GPU reading a number waits for all work before it.
        sums: dict[str, float] = {}
        for share in shares:
            accumulate(sums, share)
        return sums

    def _merge(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the metrics of all ranks as one."""
        merged: dict[str, float] = {}
        for share in self._ranks.gather(sums if self.speaks else {}):
            accumulate(merged, share)
        return merged

    def _fill_missing_gradients(self) -> None:
        """Give parameters that no row reached a zero gradient, so that the optimiser's moments move as they would."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def _penalize(self) -> Tensor:
        """Add the gradient of the L2 term and return the term."""
        squares = []
        for matrix in self._matrices:
            assert matrix.grad is not None
            matrix.grad.add_(matrix, alpha=self.options.l2)
            squares.append(matrix.square().sum(dtype=torch.float64))
        return 0.5 * self.options.l2 * self._whole(torch.stack(squares).sum())

    def _clip(self) -> Tensor:
        limit = self.options.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit if limit > 0 else float("inf"))
        return self._whole(norm)

    def _whole(self, scalar: Tensor) -> Tensor:
        return scalar if self._shards is None else self._shards.full(scalar)
