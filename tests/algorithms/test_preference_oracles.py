"""Losses over preferences against loops in double precision that were written from the papers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.algorithms.losses import preference

F64 = torch.float64
LOG_PROB = st.floats(-60, -1e-6)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def numbers(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(LOG_PROB, LOG_PROB), min_size=1, max_size=5), st.floats(0.05, 3), st.floats(0, 0.45))
def test_losses_over_margins_are_those_of_the_papers(pairs, beta: float, noise: float) -> None:
    margins = [a - b for a, b in pairs]
    right, wrong = ([-math.log(sigmoid(sign * beta * h)) for h in margins] for sign in (1, -1))
    conservative = [(1 - noise) * r + noise * w for r, w in zip(right, wrong, strict=True)]
    unbiased = [((1 - noise) * r - noise * w) / (1 - 2 * noise) for r, w in zip(right, wrong, strict=True)]

    found = preference.dpo(numbers(margins), beta=beta, label_smoothing=noise)
    assert found.tolist() == pytest.approx(conservative, rel=1e-9)
    found = preference.robust_dpo(numbers(margins), beta=beta, label_smoothing=noise)
    assert found.tolist() == pytest.approx(unbiased, rel=1e-9, abs=1e-9)
    found = preference.ipo(numbers(margins), beta=beta)
    assert found.tolist() == pytest.approx([(h - 1 / (2 * beta)) ** 2 for h in margins], rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-20, -1e-3), st.floats(-20, -1e-3)), min_size=1, max_size=5), st.floats(0.05, 3))
def test_losses_without_a_reference_are_those_of_the_papers(pairs, beta: float) -> None:
    chosen, rejected = zip(*pairs, strict=True)

    def odds(log_p: float) -> float:
        return math.exp(log_p) / (1 - math.exp(log_p))

    found = preference.orpo(numbers(chosen), numbers(rejected))
    expected = [-math.log(sigmoid(math.log(odds(a) / odds(b)))) for a, b in pairs]
    assert found.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    found = preference.simpo(numbers(chosen), numbers(rejected), beta=beta, gamma=0.7)
    expected = [-math.log(sigmoid(beta * a - beta * b - 0.7)) for a, b in pairs]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=5),
    st.lists(st.floats(-5, 5), min_size=1, max_size=4),
    st.floats(0.05, 3),
)
def test_kto_is_that_of_the_paper(answers, unrelated: list[float], beta: float) -> None:
    z = max(0.0, sum(unrelated) / len(unrelated))
    expected = [
        1.5 * (1 - sigmoid(beta * (r - z))) if good else 0.5 * (1 - sigmoid(beta * (z - r))) for r, good in answers
    ]

    divergence = preference.kto_divergence(numbers(unrelated))
    ratios, desirable = numbers([r for r, _ in answers]), torch.tensor([good for _, good in answers])
    found = preference.kto(ratios, desirable, divergence, beta=beta, desirable_weight=1.5, undesirable_weight=0.5)

    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_odds_of_orpo_have_a_gradient_at_both_ends() -> None:
    for value in (-1e-12, -0.69, -0.7, -800.0):
        log_p = numbers([value]).requires_grad_()
        loss = preference.orpo(log_p, numbers([-1.0]))
        (gradient,) = torch.autograd.grad(loss.sum(), log_p)
        assert torch.isfinite(loss).all() and torch.isfinite(gradient).all()


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_a_beta_that_is_not_positive_is_refused(beta: float) -> None:
    for loss in (preference.dpo, preference.robust_dpo, preference.ipo):
        with pytest.raises(ValueError, match="beta"):
            loss(torch.zeros(1), beta=beta)
    with pytest.raises(ValueError, match="label_smoothing"):
        preference.dpo(torch.zeros(1), label_smoothing=0.5)
