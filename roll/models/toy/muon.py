"""The optimiser that schools small policies quickly: Muon on matrices, AdamW on the rest, and a cosine."""

from __future__ import annotations

import math

import torch
from torch import nn


class Muon:
    """Steps of a stage of schooling, with a warm-up of a twentieth and a cosine down to a fiftieth of the peak.

    Args:
        model: What is trained.
        steps: Optimiser steps of the stage.
        learning_rate: Its peak.
    """

    def __init__(self, model: nn.Module, steps: int, learning_rate: float) -> None:
        self.model, self.steps, self.learning_rate = model, steps, learning_rate
        matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
        others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=1.0, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0),
        ]

    def begin(self, number: int) -> None:
        """Forget the gradients, and set the learning rate of step ``number`` of the stage (from 0)."""
        progress = number / self.steps
        rate = self.learning_rate * min(1.0, progress / 0.05 + 0.01) * (0.51 + 0.49 * math.cos(math.pi * progress))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Clip the gradients' norm to 1 and step."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
