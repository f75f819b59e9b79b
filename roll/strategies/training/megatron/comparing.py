"""Divergences from frozen models where every tensor-parallel rank holds a part of the vocabulary."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.strategies.training.comparing import Comparison
from roll.strategies.training.megatron.core import reduce_from_tensor_model_parallel_region
from roll.strategies.training.megatron.vocabulary import own_log_probs


class HeadPart(nn.Module):
    """The output layer of a frozen model, as far as it is of this rank's part of the vocabulary.

    Args:
        head: The whole layer.
        first: First token of the part.
        width: How many tokens the part has.
        device: Where it is kept.

    Attributes:
        weight: ``[tokens of the part, hidden]``, fewer than ``width`` where the whole vocabulary ends before.
        vocabulary: Tokens of the whole layer.
    """

    def __init__(self, head: nn.Module, first: int, width: int, device: torch.device) -> None:
        super().__init__()
        layer, bias = head.get_parameter("weight"), getattr(head, "bias", None)

        def part(whole: Tensor) -> nn.Parameter:
            # A copy: a slice would keep the whole in memory.
            return nn.Parameter(whole.detach()[first : first + width].to(device, copy=True), requires_grad=False)

        self.weight = part(layer)
        self.bias = None if bias is None else part(bias)
        self.vocabulary = len(layer)

    def forward(self, states: Tensor) -> Tensor:
        """Return the logits of the part, ``[n, tokens of the part]``, of states ``[n, hidden]``."""
        return nn.functional.linear(states.to(self.weight.dtype), self.weight, self.bias)


class SplitComparison(Comparison):
    """As :class:`Comparison`, of log-probs ``[n, own part of the vocabulary]``; what comes of it all ranks have.

    A divergence is a sum over the vocabulary, so each rank adds up its part, and the ranks add up these. For that the
    log-probs have to be those of :func:`own_log_probs`, whose gradients come from all ranks.

    Args:
        temperature: Logits of both are divided by it.
        first: First token of this rank's part.
        width: Tokens of the part, without padding.
        vocabulary: Tokens of all parts.
        group: The tensor-parallel ranks.
        device: Where this rank computes.
    """

    def __init__(
        self,
        temperature: float,
        *,
        first: int,
        width: int,
        vocabulary: int,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        super().__init__(temperature)
        self._first, self._width, self._vocabulary = first, width, vocabulary
        self._group, self._device = group, device

    def measure_from(self, *heads: nn.Module, divergence: Divergence = REVERSE_KL) -> None:
        """Take this rank's part of the output layers of the frozen models, and the divergence."""
        parts = [HeadPart(head, self._first, self._width, self._device) for head in heads]
        super().measure_from(*parts, divergence=divergence)

    def _whole(self, log_probs: Tensor, states: Tensor, head: nn.Module) -> Tensor:
        assert isinstance(head, HeadPart)
        shared = min(head.vocabulary, self._vocabulary)
        own = min(max(shared - self._first, 0), self._width)
        with torch.no_grad():
            softened = self.temperature * self.divergence.temperature
            teacher = own_log_probs(head(states)[:, :own], softened, self._group)
        student = self._softened(log_probs[:, :own], known=shared == self._vocabulary)
        return self._together(self.divergence(student, teacher))

    def _from_buckets(self, log_probs: Tensor, ids: Tensor, teacher: Tensor) -> Tensor:
        teacher, log_probs = teacher.to(log_probs.dtype), self._softened(log_probs, known=True)
        own = (ids >= self._first) & (ids < self._first + self._width)
        # What other ranks have goes to a column behind the others.
        columns = torch.where(own, ids - self._first, self._width)
        padded = nn.functional.pad(log_probs, (0, 1))
        named = self._together(torch.where(own, padded.gather(-1, columns), 0.0))
        if ids.shape[-1] == self._vocabulary:  # nothing is left for the last bucket
            return self.divergence(named, teacher[:, :-1])
        rest = padded.scatter(-1, columns, float("-inf"))[:, : self._width]
        return self.divergence(torch.cat((named, self._log_sum(rest).unsqueeze(-1)), dim=-1), teacher)

    def _softened(self, log_probs: Tensor, known: bool) -> Tensor:
        """Return log-probs at the temperature of the divergence, normalised anew where that is not ``known``."""
        if known and self.divergence.temperature == 1.0:
            return log_probs
        return own_log_probs(log_probs, self.divergence.temperature, self._group)

    def _log_sum(self, log_probs: Tensor) -> Tensor:
        """Return the log of the sum of the exponentials of all ranks, ``[n]``."""
        with torch.no_grad():
            smallest = torch.finfo(log_probs.dtype).min
            largest = log_probs.new_full((len(log_probs),), smallest)
            if log_probs.shape[1]:
                largest = log_probs.amax(1).clamp_min(smallest)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group)
        return self._together((log_probs - largest.unsqueeze(1)).exp().sum(1)).log() + largest

    def _together(self, part: Tensor) -> Tensor:
        whole: Tensor = reduce_from_tensor_model_parallel_region(part, group=self._group)
        return whole
