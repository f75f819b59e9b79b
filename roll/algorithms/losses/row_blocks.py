"""A policy loss worked through in blocks of rows that stay in the processor's cache."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch
from torch import Tensor

from roll.algorithms.losses.ratio import Metrics
from roll.algorithms.masking import slab_height

_Arguments = ParamSpec("_Arguments")


def in_row_blocks(loss: Callable[_Arguments, tuple[Tensor, Metrics]]) -> Callable[_Arguments, tuple[Tensor, Metrics]]:
    """Let a policy loss take a large batch block by block, several times faster than passes over all of it.

    The loss of a row must depend on that row alone. Its tensors have one entry per row first; its metrics are means
    over the tokens of ``mask`` ``[batch, sequence]``, or largest values where their name ends in ``_max``. A batch of
    one block, which most micro-batches are, goes to the loss as it is.
    """
    signature = inspect.signature(loss)

    @functools.wraps(loss)
    def through_blocks(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> tuple[Tensor, Metrics]:
        given = signature.bind(*args, **kwargs).arguments
        mask = given["mask"]
        height = slab_height(mask)
        if mask.shape[0] <= height:
            return loss(*args, **kwargs)
        # Not slices: the gradient of each would be as large as the whole.
        split = {name: value.split(height) for name, value in given.items() if isinstance(value, Tensor)}
        losses, metrics = zip(
            *(
                loss(**{**given, **{name: parts[block] for name, parts in split.items()}})  # type: ignore[call-arg]
                for block in range(len(split["mask"]))
            ),
            strict=True,
        )
        return torch.cat(losses), _joined(metrics, [torch.count_nonzero(part) for part in split["mask"]])

    return through_blocks


def _joined(metrics: Sequence[Metrics], tokens: Sequence[Tensor]) -> Metrics:
    """Return the metrics of blocks with these numbers of tokens as those of the whole."""
    weights = torch.stack(list(tokens)).double()

    def join(name: str) -> Any:
        values = torch.stack([block[name] for block in metrics])
        if name.endswith("_max"):
            return values.amax()
        return ((values.double() * weights).sum() / weights.sum().clamp_min(1)).to(values.dtype)

    return {name: join(name) for name in metrics[0]}
