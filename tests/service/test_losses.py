"""Losses of the training service beside loops over numbers, written from Tinker's page "Loss functions"."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

import pytest
import torch

from roll.service.losses import LOSSES, loss_named
from roll.service.records import RefusedError

Numbers = Mapping[str, float]


def told(name: str, logprob: float, given: Numbers, config: Numbers) -> tuple[float, float]:
    """The loss of one target, and its derivative by the log-prob."""
    if name == "cross_entropy":
        return -logprob * given["weights"], -given["weights"]
    advantage, gap = given["advantages"], logprob - given["logprobs"]
    ratio = exp(gap)
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    clipped = min(max(ratio, low), high)
    if name == "importance_sampling":
        return -ratio * advantage, -ratio * advantage
    if name == "ppo":
        free = ratio * advantage <= clipped * advantage
        return -min(ratio * advantage, clipped * advantage), -ratio * advantage if free else 0.0
    if name == "cispo":
        return -clipped * advantage * logprob, -clipped * advantage
    beta = config["beta"]
    return -(logprob * advantage - 0.5 * beta * gap**2), -(advantage - beta * gap)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("cross_entropy", {}),
        ("importance_sampling", {}),
        ("ppo", {}),
        ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 3.0}),
        ("cispo", {}),
        ("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
        ("dro", {"beta": 0.05}),
        ("dro", {"beta": 2.0}),
    ],
)
def test_losses_and_their_slopes_are_those_of_the_page(name: str, config: Numbers) -> None:
    generator = torch.Generator().manual_seed(3)
    shape = (17, 3) if LOSSES[name].several else (50,)
    logprobs = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    inputs = {
        "weights": torch.rand(shape, generator=generator, dtype=torch.float64),
        "logprobs": logprobs + 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64),
        "advantages": torch.randn(shape, generator=generator, dtype=torch.float64),
    }
    logprobs.requires_grad_()
    found = loss_named(name, frozenset({"target_tokens", *inputs}), config).function(logprobs, inputs, config)
    (slopes,) = torch.autograd.grad(found.sum(), logprobs)
    flat = {key: each.flatten().tolist() for key, each in inputs.items()}
    for place, logprob in enumerate(logprobs.flatten().tolist()):
        loss, slope = told(name, logprob, {key: each[place] for key, each in flat.items()}, config)
        assert found.flatten()[place].item() == pytest.approx(loss, rel=1e-12)
        assert slopes.flatten()[place].item() == pytest.approx(slope, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("gspo", {}, "no loss 'gspo': there are cross_entropy"),
        ("dro", {}, r"dro needs loss_fn_config\['beta'\]"),
        ("dro", {"beta": 1.0, "tau": 1.0}, r"dro has no setting loss_fn_config\['tau'\]: it has beta"),
        ("cross_entropy", {"beta": 1.0}, "it has none"),
    ],
)
def test_what_a_loss_is_not_is_told(name: str, config: Numbers, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        loss_named(name, frozenset({"target_tokens", "logprobs", "advantages"}), config)
