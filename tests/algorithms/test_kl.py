"""Divergence estimates: values by formula, gradients by hand and against the divergence over the whole vocabulary."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from roll.algorithms import kl

F64 = torch.float64


def k3(d: float) -> float:
    bounded = min(max(-d, -20.0), 20.0)
    return math.exp(bounded) - bounded - 1


FORMULAS = {"kl": lambda d: d, "abs": abs, "mse": lambda d: d * d / 2, "low_var_kl": k3}
SLOPES = {"kl": lambda d: 1.0, "abs": lambda d: math.copysign(1, d), "mse": lambda d: d} | {
    "low_var_kl": lambda d: 1 - math.exp(-d)
}


@pytest.mark.parametrize("kind", [*FORMULAS, "kl+", "abs+", "low_var_kl+", "k1", "k2", "k3", "k1+", "k2+", "k3+"])
def test_values_and_gradients_equal_the_formula(kind: str) -> None:
    base = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}.get(kind.rstrip("+"), kind.rstrip("+"))
    d = torch.tensor([[-6.0, -3.0, -0.5, 1e-4, 2.0, 15.0]], dtype=F64)
    log_probs = (d - 1).requires_grad_()
    result = kl.kl_penalty(log_probs, torch.full_like(d, -1.0), kind)
    result.sum().backward()
    assert log_probs.grad is not None
    slope = (lambda x: x) if kind.endswith("+") else SLOPES[base]
    assert result[0].tolist() == [pytest.approx(FORMULAS[base](x), abs=1e-12) for x in d[0].tolist()]
    assert log_probs.grad[0].tolist() == [pytest.approx(slope(x), rel=1e-9) for x in d[0].tolist()]


def test_the_loss_pulls_hardest_where_the_policy_drifted_furthest() -> None:
    log_probs = torch.tensor([[-4.0]], dtype=F64, requires_grad=True)
    kl.kl_penalty(log_probs, torch.tensor([[-1.0]], dtype=F64), "low_var_kl").sum().backward()
    assert log_probs.grad is not None and float(log_probs.grad) == pytest.approx(1 - math.exp(3)), "about -19.1"


@pytest.mark.parametrize("kind", ["k3", "low_var_kl", "k3+"])
def test_rewards_are_charged_at_most_ten_for_a_token(kind: str) -> None:
    d = torch.tensor([[-30.0, -2.7, -2.0, 5.0]], dtype=F64)
    charged = kl.reward_divergence(d, torch.zeros_like(d), kind)
    assert charged[0].tolist() == [10.0, 10.0, pytest.approx(k3(-2.0)), pytest.approx(k3(5.0))]
    assert kl.reward_divergence(d, torch.zeros_like(d), "mse")[0, 0] == 450.0


def test_every_estimate_is_finite_however_far_apart_the_policies_are() -> None:
    for kind in (*FORMULAS, "k1+", "k3+"):
        log_probs = torch.tensor([[-1e4, 0.0]], requires_grad=True)
        result = kl.kl_penalty(log_probs, torch.tensor([[0.0, -1e4]]), kind)
        result.sum().backward()
        assert result.isfinite().all() and log_probs.grad is not None and log_probs.grad.isfinite().all()


def three_policies() -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the policy, of the one that sampled, and of the reference, over five words."""
    noise = torch.Generator().manual_seed(0)
    policy, old, reference = 0.5 * torch.randn(3, 1, 1, 5, generator=noise, dtype=F64)
    return policy, old, reference


def gradient_in_expectation(kind: str, old: Tensor, corrected: bool) -> tuple[float, Tensor]:
    """The mean over what the old policy samples of an estimate, and its gradient by the policy's logits."""
    policy, _, reference = three_policies()
    leaf = policy.clone().requires_grad_()
    log_probs, before = leaf.log_softmax(-1)[0], old.log_softmax(-1)[0]
    estimate = kl.kl_penalty(log_probs, reference.log_softmax(-1)[0], kind)
    if corrected:
        estimate = estimate * kl.bias_correction(log_probs, before, torch.ones_like(before))
    mean = (before.exp() * estimate).sum()
    mean.backward()
    assert leaf.grad is not None
    return float(mean.detach()), leaf.grad


def exact() -> tuple[float, Tensor]:
    policy, _, reference = three_policies()
    leaf = policy.clone().requires_grad_()
    divergence = kl.kl_penalty(leaf, reference, "full").sum()
    p, q = policy.softmax(-1), reference.softmax(-1)
    assert float(divergence.detach()) == pytest.approx(float((p * (p / q).log()).sum()))
    divergence.backward()
    assert leaf.grad is not None
    return float(divergence.detach()), leaf.grad


@pytest.mark.parametrize("kind", ["k1", "k3"])
@pytest.mark.parametrize("off_policy", [False, True])
def test_weighed_by_the_ratio_the_gradient_is_that_of_the_whole_divergence(kind: str, off_policy: bool) -> None:
    policy, old, _ = three_policies()
    value, slope = gradient_in_expectation(kind, old if off_policy else policy, corrected=True)
    whole, expected = exact()
    assert value == pytest.approx(whole)
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("kind", ["k1", "k3", "k2", "k1+", "k3+"])
def test_on_policy_only_the_gradient_of_the_square_is_that_of_the_whole_divergence(kind: str) -> None:
    policy, _, _ = three_policies()
    value, slope = gradient_in_expectation(kind, policy, corrected=False)
    whole, expected = exact()
    assert torch.allclose(slope, expected, atol=1e-9) is (kind not in ("k1", "k3"))
    if kind != "k2":
        assert value == pytest.approx(whole)


def test_an_unknown_estimate_names_those_there_are() -> None:
    for kind in ("k9", "full+", "k3++"):
        with pytest.raises(ValueError, match="low_var_kl"):
            kl.kl_penalty(torch.zeros(1, 1), torch.zeros(1, 1), kind)


def test_adaptive_controller_moves_towards_its_target_by_at_most_a_fifth() -> None:
    controller = kl.kl_controller("adaptive", 0.1, target=1.0, horizon=100)
    controller.update(50.0, 10)
    assert controller.coefficient == pytest.approx(0.1 * 1.02)
    controller.update(0.95, 10)
    assert controller.coefficient == pytest.approx(0.1 * 1.02 * (1 - 0.05 * 0.1))
    resumed = kl.kl_controller("adaptive", 9.0, target=1.0, horizon=100)
    resumed.load_state_dict(controller.state_dict())
    assert resumed.coefficient == controller.coefficient
    fixed = kl.kl_controller("fixed", 0.3)
    fixed.update(50.0, 10)
    assert fixed.coefficient == 0.3


def test_batch_kl_is_the_mean_of_sequence_means() -> None:
    value, mask = (
        torch.tensor([[1.0, 3.0, 9.0], [8.0, 9.0, 9.0], [9.0] * 3]),
        torch.tensor([[1, 1, 0], [1, 0, 0], [0] * 3]),
    )
    assert float(kl.batch_kl(value, mask)) == 5.0
    penalized = kl.penalize_rewards(torch.ones(3, 3), value, 0.5, mask)
    assert penalized.tolist() == [[0.5, -0.5, 0], [-3, 0, 0], [0, 0, 0]]
