"""Random training batches, a plain loss, and a look at the gradient of an optimiser step."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.strategies.base import BatchTotals
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.strategies.generation.hf_infer.hf_infer_support import VOCABULARY

PAD = 0


class NegativeLogLikelihood:
    """Mean over the response tokens of the batch."""

    needs_entropy = False

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def totals(self, batch: TensorDict) -> BatchTotals:
        tokens = int(batch["response_mask"].sum())
        return BatchTotals(tokens, len(batch), measured_tokens=tokens)

    def contributing_rows(self, batch: TensorDict) -> None:
        return None

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -self.factor * (log_probs * batch["response_mask"]).sum() / totals.tokens, {}


def token_batch(seed: int = 0, rows: int = 6, longest: int = 20) -> TensorDict:
    """Rows of unequal length; masks with gaps, a row without a response among them."""
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, longest + 1, (rows,), generator=noise)
    lengths[0] = longest
    positions = torch.arange(longest).expand(rows, longest)
    inside = positions < lengths.unsqueeze(1)
    input_ids = torch.randint(1, VOCABULARY, (rows, longest), generator=noise).masked_fill(~inside, PAD)
    mask = (torch.rand(rows, longest, generator=noise) < 0.5) & inside
    mask[:, 0] = False
    mask[:, 2] = True
    mask[1] = False
    return TensorDict({"input_ids": input_ids, "response_mask": mask, "lengths": lengths}, batch_size=[rows])


def policy_batch(trainer: FsdpTrainStrategy, seed: int = 0, rows: int = 6) -> TensorDict:
    """A batch with everything a policy objective reads, off-policy enough that the ratio is clipped here and there."""
    batch = token_batch(seed, rows)
    noise = torch.Generator().manual_seed(seed + 1)
    mask = batch["response_mask"]

    def near(log_probs: Tensor, distance: float) -> Tensor:
        shift = distance * torch.randn(mask.shape, generator=noise, dtype=torch.float64)
        return (log_probs.double() + shift) * mask

    log_probs = trainer.compute_log_probs(batch)
    batch["old_log_probs"] = near(log_probs, 0.8)
    batch["ref_log_probs"] = near(log_probs, 0.5)
    batch["advantages"] = torch.randn(mask.shape, generator=noise, dtype=torch.float64) * mask
    batch["positive"] = torch.arange(rows) % 2 == 0
    batch["turn_index"] = torch.where(mask, mask.cumsum(1) // 3, -1)
    return batch


def step_gradient(trainer: FsdpTrainStrategy, batch: TensorDict, loss) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Take a step and return the gradient the optimiser saw, and the metrics; the weights are put back."""
    gradient: dict[str, Tensor] = {}

    def look(*_: object) -> None:
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None, name
            gradient[name] = parameter.grad.clone()

    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    handle = trainer.optimizer.register_step_pre_hook(look)
    metrics = trainer.train_step(batch, loss)
    handle.remove()
    trainer.model.load_state_dict(before)
    return gradient, metrics
