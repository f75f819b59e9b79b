"""`megatron_train`: training of a policy or critic with Megatron-Core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel

from roll.strategies.base import BatchTotals, Classifier, Loss, Prediction
from roll.strategies.jobs import TrainOptions
from roll.strategies.parking import Parking
from roll.strategies.training.megatron import checkpoint
from roll.strategies.training.megatron.lora import Adapt
from roll.strategies.training.megatron.megatron_format import save_model
from roll.strategies.training.megatron.model import LayerSpec, Stage
from roll.strategies.training.megatron.optimizer import Stepper
from roll.strategies.training.megatron.options import MegatronOptions
from roll.strategies.training.megatron.parallel import gather
from roll.strategies.training.megatron.scorer import MegatronScorer, Pass
from roll.strategies.training.trainer import ScoringTrainer, accumulate, contributing


class MegatronTrainStrategy(ScoringTrainer):
    """Trains one model (see :class:`roll.strategies.base.TrainStrategy`).

    Every rank of the default process group makes this strategy with the same model and options, and calls every
    method, in the same order. Ranks with the same ``data_rank`` are given the same rows, any number of them, and all
    of them get the results; ``speaks`` picks one of them.

    Args:
        model: A folder in Hugging Face format, of which every rank reads what it needs; or a loaded model, which is
            copied from and can be dropped afterwards.
        options: How the optimiser steps. With ``mixed_precision`` weights are kept in bf16 and, by the optimiser, in
            fp32.
        predicts: What losses are given: ``log_probs`` of a language model, or ``values`` of a critic.
        megatron: How the model is spread over ranks.
        layer_spec: Makes the layers of a stage; ``None`` takes those of Transformer Engine.
        device: Where this rank computes; ``None`` takes its CUDA device.
        seed: Of the generators for dropout.
        adapt: Gives a Hugging Face model LoRA adapters, in place (:func:`roll.models.lora.add_adapters`); is given one
            whose weights are all 0. Then only adapters are trained, and of a critic the value head. The same goes for
            a loaded ``model`` that has adapters.
        classifier: What a model that predicts ``values`` is saved as.
        pad_token_id: What fills up sequences, where a classifier of them has to know it.

    Raises:
        RuntimeError: There is no process group, no CUDA device where one is needed, or the process divides its ranks
            in another way already.
        ValueError: The model cannot be converted or adapted, or sizes do not divide.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        options: TrainOptions,
        *,
        predicts: Prediction = "log_probs",
        megatron: MegatronOptions | None = None,
        layer_spec: LayerSpec | None = None,
        device: torch.device | None = None,
        seed: int = 0,
        adapt: Adapt | None = None,
        classifier: Classifier = "token",
        pad_token_id: int | None = None,
    ) -> None:
        self.options = options
        self._scorer = MegatronScorer(
            model,
            predicts=predicts,
            megatron=megatron,
            layer_spec=layer_spec,
            device=device,
            seed=seed,
            recompute=options.gradient_checkpointing,
            adapt=adapt,
            classifier=classifier,
            pad_token_id=pad_token_id,
            **options.for_scoring(),
        )
        self.device = self._scorer.device
        self.hf_config = self._scorer.hf_config
        self.stepper = Stepper(self._scorer.stages, options, self._scorer.megatron)
        self._scorer.chunks = self.stepper.chunks
        self._parking, self._optimizer_handed_over = Parking(), False

    @property
    def stages(self) -> list[Stage]:
        """The stages of this rank."""
        return self._scorer.stages

    def train_step(self, batch: TensorDict, loss: Loss, totals: BatchTotals | None = None) -> dict[str, float]:
        """Take one optimiser step on ``batch``.

        Args:
            batch: ``input_ids``, ``response_mask`` ``[batch, sequence]`` and ``lengths`` ``[batch]``, plus what the
                loss reads. The rows of this rank's ``data_rank``.
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
            totals = self._total(loss.totals(batch))
        self.stepper.zero_grad()
        own = self._backward(contributing(batch, loss), loss, totals)
        norm, rate, penalty = self.stepper.step()
        sums: dict[str, float] = {}
        for share in gather(own if self.speaks else {}):
            accumulate(sums, share)
        if self.options.l2:
            accumulate(sums, {"loss": penalty, "loss/l2": penalty})
        return {**sums, "grad_norm": norm, "learning_rate": rate}

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Stream whole weights under the Hugging Face names of a model in memory, one parameter at a time.

        Every rank must iterate to the end. The tensors are copies, and the experts of a layer come as one tensor. LoRA
        adapters are merged. The optimiser states may be handed over meanwhile.
        """
        self._weights_must_be_here()
        self.stepper.finish_gathering()
        return self._scorer.named_parameters()

    def adapters_disabled(self) -> AbstractContextManager[None]:
        """Score with the base model inside this context: the reference of a policy with LoRA adapters."""
        adapters = self._scorer.adapters
        return nullcontext() if adapters is None else adapters.disabled()

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights, optimiser, schedule and random state to ``directory``, which all ranks must see.

        Loading them continues exactly, on the same division of ranks; any other division can load them too.
        """
        self._must_be_here()
        self.stepper.finish_gathering()
        checkpoint.save(directory, self.stages, self.stepper, self._scorer.megatron, self.device)

    def load_checkpoint(self, directory: Path) -> None:
        """Restore what :meth:`save_checkpoint` wrote, on any division of ranks.

        The state of the random generators (dropout) comes back where the division is the same.

        Raises:
            FileNotFoundError: If ``directory`` holds no training state.
            ValueError: If it was written with another value of ``use_distributed_optimizer``.
        """
        self._must_be_here()
        # What was dispatched before must not arrive in the weights that are loaded.
        self.stepper.finish_gathering()
        checkpoint.load(directory, self.stages, self.stepper, self._scorer.megatron, self.device)

    def load_optimizer(self, directory: Path) -> None:
        """Load weights and moments of a checkpoint; schedule, options and random state stay those of this run.

        Raises:
            FileNotFoundError: If ``directory`` holds no training state.
            ValueError: If it was written with another value of ``use_distributed_optimizer``.
        """
        self._must_be_here()
        self.stepper.finish_gathering()
        checkpoint.load(directory, self.stages, self.stepper, self._scorer.megatron, self.device, moments_only=True)

    def save_hf(self, directory: Path) -> None:
        """Write weights, adapters merged, and config in Hugging Face format; of several ranks the first one writes."""
        self._must_be_here()
        self.stepper.finish_gathering()
        self._scorer.save_hf(directory)

    def save_megatron(self, directory: Path, step: int) -> None:
        """Write the weights as Megatron-Core does, for a run of Megatron to begin with.

        Args:
            directory: Gets ``iter_<step>`` and the file that names it; all ranks must see it.
            step: Of the training.
        """
        self._must_be_here()
        self.stepper.finish_gathering()
        save_model(directory, step, self.stages, self._scorer.megatron)

    def save_adapters(self, directory: Path) -> None:
        """Write the LoRA adapters in the format of peft; of several ranks the first one writes.

        Raises:
            ValueError: The model has no adapters.
        """
        self._must_be_here()
        if self._scorer.adapters is None:
            kind = self.hf_config.model_type
            raise ValueError(f"{kind} has no LoRA adapters here. Set model_args.lora_rank, or use save_hf.")
        self.stepper.finish_gathering()
        self._scorer.adapters.save(directory, write=dist.get_rank() == 0)

    @property
    def offloaded(self) -> bool:
        """Whether weights or optimiser states are handed over, so that no step can be taken."""
        return self._scorer.offloaded or self._optimizer_handed_over

    def offload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Move weights and optimiser states to CPU memory and free gradients, so that others can use the device.

        On the CPU everything stays where it is. Until :meth:`reload`, what needs it raises ``RuntimeError``.

        Args:
            weights: Whether to move the weights, and to free the gradients.
            optimizer: Whether to move the optimiser states.
        """
        if self.device.type == "cuda":
            if optimizer and not self._optimizer_handed_over:
                self._parking.park(self.stepper.state_tensors())
            if weights and not self._scorer.offloaded:
                self.stepper.finish_gathering()
                for chunk in self.stepper.chunks:
                    chunk.offload_grad_buffers()
        self._optimizer_handed_over |= optimizer
        if weights:
            self._scorer.offload()

    def reload(self, *, weights: bool = True, optimizer: bool = True) -> None:
        """Take back what :meth:`offload` moved, exactly as it was."""
        if weights:
            if self.device.type == "cuda" and self._scorer.offloaded:
                for chunk in self.stepper.chunks:
                    chunk.restore_grad_buffers()
            self._scorer.reload()
        if optimizer:
            self._parking.restore()
            self._optimizer_handed_over = False

    def _backward(self, batch: TensorDict, loss: Loss, totals: BatchTotals) -> dict[str, float]:
        """Add up the gradient of ``loss`` over the rows and return its metrics, on ranks of the last stage."""

        def outputs(one: Pass, stage: Stage, output: Tensor) -> tuple[Tensor, Any]:
            predicted, entropy, _ = self._scorer.score(one, stage, output, with_entropy=loss.needs_entropy)
            if not len(one.rows):
                # Other ranks go through the stages in this pass; this one takes part with zeros.
                return (0.0 * predicted).sum(), {}
            value, metrics = loss(predicted, entropy, one.micro, totals)
            # The schedule may scale the loss in place.
            return value, {"loss": value.detach().clone(), **metrics}

        sums: dict[str, float] = {}
        for metrics in self._scorer.run(self._scorer.passes(batch), outputs, train=True):
            accumulate(sums, metrics)
        return sums

    def _total(self, totals: BatchTotals) -> BatchTotals:
        """Return the sums over data ranks of the counts of their shares of a batch."""
        shares = [share for share in gather(totals if self.speaks else None) if share is not None]
        return BatchTotals(
            tokens=sum(share.tokens for share in shares),
            sequences=sum(share.sequences for share in shares),
            measured_tokens=sum(share.measured_tokens for share in shares),
        )
