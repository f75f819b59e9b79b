"""The state of torch's generators that a pass may draw from (dropout), for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def random_state(device: torch.device | str) -> dict[str, Tensor]:
    """Return the states of the generators that a forward pass on ``device`` may draw from, each ``[bytes]``."""
    state = {"cpu": torch.get_rng_state()}
    if torch.device(device).type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: Mapping[str, Tensor], device: torch.device | str) -> None:
    """Go on drawing where :func:`random_state` was called, ``[bytes]`` each."""
    torch.set_rng_state(state["cpu"])
    if torch.device(device).type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
