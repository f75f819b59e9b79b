"""`fsdp_train` with world size 1: plain PyTorch training of a Hugging Face causal language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel, get_scheduler

from roll.strategies.base import Loss
from roll.strategies.micro_batches import iterate_micro_batches
from roll.strategies.scoring import Scorer

CHECKPOINT_FILE = "train_state.pt"


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How the optimiser steps.

    Attributes:
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Decoupled weight decay on matrices; vectors (norms, biases) are not decayed.
        betas: AdamW moments.
        epsilon: AdamW epsilon.
        max_grad_norm: Global gradient norm is clipped to this; 0 switches clipping off.
        lr_scheduler_type: A schedule name of ``transformers.get_scheduler``.
        warmup_steps: Optimiser steps of linear warm-up.
        total_steps: Optimiser steps of the whole run; the schedule advances once per optimiser step.
        max_tokens_per_microbatch: Hard cap on padded tokens per forward; ``None`` for none.
        max_samples_per_microbatch: Hard cap on sequences per forward; ``None`` for none.
        mixed_precision: Compute in bf16 under autocast, with fp32 weights and optimiser states.
        gradient_checkpointing: Recompute activations in the backward pass.
        temperature: The sampling temperature; log-probs are those of the tempered distribution.
    """

    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "constant_with_warmup"
    warmup_steps: int = 0
    total_steps: int = 1
    max_tokens_per_microbatch: int | None = 8192
    max_samples_per_microbatch: int | None = None
    mixed_precision: bool = False
    gradient_checkpointing: bool = False
    temperature: float = 1.0


class FsdpTrainStrategy:
    """Trains one model in this process (see :class:`roll.strategies.base.TrainStrategy`).

    Args:
        model: A Hugging Face causal language model on its device; its weights are updated in place.
        options: How the optimiser steps.
    """

    def __init__(self, model: PreTrainedModel, options: TrainOptions) -> None:
        self.model = model
        self.options = options
        self.device = next(model.parameters()).device
        if options.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._scorer = Scorer(
            model,
            temperature=options.temperature,
            max_tokens_per_microbatch=options.max_tokens_per_microbatch,
            max_samples_per_microbatch=options.max_samples_per_microbatch,
            mixed_precision=options.mixed_precision,
        )
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": options.weight_decay},
                {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=options.learning_rate,
            betas=options.betas,
            eps=options.epsilon,
        )
        self.scheduler = get_scheduler(
            options.lr_scheduler_type,
            self.optimizer,
            num_warmup_steps=options.warmup_steps,
            num_training_steps=max(options.total_steps, 1),
        )

    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t) under the current weights, ``[batch, sequence]``, 0 outside the mask."""
        self.model.eval()
        return self._scorer.compute_log_probs(batch)

    def train_step(self, batch: TensorDict, loss: Loss) -> dict[str, float]:
        """Take one optimiser step on ``batch``.

        Args:
            batch: ``input_ids``, ``response_mask`` ``[batch, sequence]`` and ``lengths`` ``[batch]``, plus what the
                loss reads.
            loss: Normalised by the counts of the whole batch, so micro-batches do not change the gradient.

        Returns:
            The loss's metrics over the batch, ``grad_norm`` before clipping and ``learning_rate`` of this step.

        Raises:
            FloatingPointError: If the gradient is not finite; the weights are left as they were.
        """
        totals = loss.totals(batch)
        sums: dict[str, float] = {}
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        for _, micro in self._micro_batches(_contributing(batch, loss)):
            outputs = self._scorer.forward(micro, with_entropy=loss.needs_entropy)
            value, metrics = loss(outputs.log_probs, outputs.entropy, micro, totals)
            value.backward()
            _accumulate(sums, {"loss": value.detach(), **metrics})
        self._fill_missing_gradients()
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
        """Yield every parameter under its Hugging Face name, detached, without a copy."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights, optimiser, schedule and random state to ``directory``; loading them continues exactly."""
        directory.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": _random_state(self.device),
        }
        torch.save(state, directory / CHECKPOINT_FILE)

    def load_checkpoint(self, directory: Path) -> None:
        """Restore what :meth:`save_checkpoint` wrote, the state of torch's global generators (dropout) included.

        Raises:
            FileNotFoundError: If ``directory`` holds no training state.
        """
        path = directory / CHECKPOINT_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{directory} holds no {CHECKPOINT_FILE}; it is not a checkpoint of fsdp_train.")
        # Tensors are copied to where they belong below; generator states must stay on the CPU.
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        _restore_random_state(state["random"], self.device)

    def save_hf(self, directory: Path) -> None:
        """Write weights and config in Hugging Face format."""
        self.model.save_pretrained(directory)

    def _micro_batches(self, batch: TensorDict) -> Iterator[tuple[Tensor, TensorDict]]:
        return iterate_micro_batches(
            batch,
            self.device,
            max_tokens=self.options.max_tokens_per_microbatch,
            max_samples=self.options.max_samples_per_microbatch,
        )

    def _fill_missing_gradients(self) -> None:
        """Give parameters that no row reached a zero gradient, so that the optimiser's moments move as they would."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _clip(self) -> Tensor:
        limit = self.options.max_grad_norm
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit if limit > 0 else float("inf"))


def _accumulate(sums: dict[str, float], shares: Mapping[str, Tensor]) -> None:
    """Add one micro-batch's metrics in place: extremes by their name, everything else as shares of a sum."""
    for name, share in shares.items():
        value = float(share)
        if name not in sums:
            sums[name] = value
        elif name.endswith("_max"):
            sums[name] = max(sums[name], value)
        elif name.endswith("_min"):
            sums[name] = min(sums[name], value)
        else:
            sums[name] += value


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's generators that a forward pass on ``device`` may draw from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _contributing(batch: TensorDict, loss: Loss) -> TensorDict:
    """Leave out the rows that cannot have a gradient; what a loss divides by is counted over the whole batch."""
    rows = loss.contributing_rows(batch)
    return batch if rows is None else batch[rows]
