"""Every built-in loss against a plain loop in float64, written from the formula; gradients by hand where stopped."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings

from roll.algorithms import losses
from roll.algorithms.losses.ratio import to_ratio
from roll.algorithms.registry import LOSSES

from .batches import Batch, batches, make_batch

F64 = torch.float64
Token = tuple[float, float]  # the loss, and its derivative by log pi of the same token


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def ppo_token(a: float, new: float, old: float) -> Token:
    r = math.exp(new - old)
    plain, bounded = -a * r, -a * clip(r, 0.8, 1.3)
    return max(plain, bounded), -a * r if plain >= bounded else 0.0


def cispo_token(a: float, new: float, old: float) -> Token:
    w = clip(math.exp(new - old), 0.8, 1.3)
    return -w * a * new, -w * a


def topr_token(a: float, new: float, old: float) -> Token:
    w = 2.0 if a > 0 else 0.5 * min(math.exp(new - old), 1.0)
    return -w * a * new, -w * a


def tis_token(a: float, new: float, old: float) -> Token:
    w = min(math.exp(new - old), 1.1)
    return -w * a * new, -w * a


def kimi_token(a: float, new: float, old: float) -> Token:
    return -a * new + 0.35 * (new - old) ** 2, -a + 0.7 * (new - old)


def sapo_token(a: float, new: float, old: float) -> Token:
    tau, r = (1.0 if a > 0 else 1.05), math.exp(new - old)
    gate = 1 / (1 + math.exp(-tau * (r - 1)))
    return -a * 4 / tau * gate, -a * 4 * gate * (1 - gate) * r


ALONE: dict[str, tuple[Callable[[float, float, float], Token], dict[str, float]]] = {
    "ppo": (ppo_token, {"clip_low": 0.2, "clip_high": 0.3}),
    "cispo": (cispo_token, {"clip_low": 0.2, "clip_high": 0.3}),
    "topr": (topr_token, {"positive_weight": 2.0, "negative_weight": 0.5}),
    "tis": (tis_token, {"cap": 1.1}),
    "kimi15": (kimi_token, {"tau": 0.7}),
    "sapo": (sapo_token, {}),
    "vanilla": (lambda a, new, old: (-a * new, -a), {}),
    "opmd": (lambda a, new, old: (-a * new / 1.5, -a / 1.5), {"tau": 0.5}),
    "sft": (lambda a, new, old: (-new, -1.0), {}),
}
TOGETHER = {"gspo", "gspo_segment", "gmpo", "mix"}


def test_every_built_in_loss_has_an_oracle() -> None:
    built_in = {n for n in LOSSES.names() if LOSSES.get(n).function.__module__.startswith("roll.")}
    assert built_in == set(ALONE) | TOGETHER


@pytest.mark.parametrize("name", sorted(ALONE))
@settings(max_examples=25, deadline=None)
@given(batch=batches)
def test_loss_and_gradient_equal_the_loop(name: str, batch: Batch) -> None:
    formula, options = ALONE[name]
    leaf = batch.log_probs.clone().requires_grad_()
    loss, _ = losses.compute(name, leaf, batch.old_log_probs, batch.advantages, batch.mask, options)
    loss.sum().backward()
    for i, row in enumerate(batch.mask.tolist()):
        for t, m in enumerate(row):
            a, new, old = (float(x[i, t]) for x in (batch.advantages, batch.log_probs, batch.old_log_probs))
            value, slope = formula(a, new, old) if m else (0.0, 0.0)
            assert float(loss.detach()[i, t]) == pytest.approx(value, rel=1e-9, abs=1e-9)
            assert leaf.grad is not None
            assert float(leaf.grad[i, t]) == pytest.approx(slope, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("segment", [False, True])
@settings(max_examples=20, deadline=None)
@given(batch=batches)
def test_gspo_equals_the_loop_and_every_token_gets_its_gradient(segment: bool, batch: Batch) -> None:
    leaf = batch.log_probs.clone().requires_grad_()
    name, options = ("gspo_segment" if segment else "gspo"), {"clip_low": 0.1, "clip_high": 0.2}
    loss, _ = losses.compute(
        name, leaf, batch.old_log_probs, batch.advantages, batch.mask, options, turn_ids=batch.turn_ids
    )
    loss.sum().backward()
    difference = batch.log_probs - batch.old_log_probs
    for i, t in batch.mask.nonzero().tolist():
        peers = [u for u in range(batch.mask.shape[1]) if batch.mask[i, u]]
        if segment:
            peers = [u for u in peers if batch.turn_ids[i, u] == batch.turn_ids[i, t]]
        s = math.exp(math.fsum(float(difference[i, u]) for u in peers) / len(peers))
        a = float(batch.advantages[i, t])
        plain, bounded = -a * s, -a * clip(s, 0.9, 1.2)
        assert float(loss.detach()[i, t]) == pytest.approx(max(plain, bounded), rel=1e-9, abs=1e-9)
        assert leaf.grad is not None
        assert float(leaf.grad[i, t]) == pytest.approx(plain if plain >= bounded else 0.0, rel=1e-9, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(batch=batches)
def test_gmpo_equals_the_loop(batch: Batch) -> None:
    per_row = batch.advantages[:, 0]
    loss, _ = losses.gmpo(batch.log_probs, batch.old_log_probs, per_row, batch.mask, 0.1, 0.2)
    for i, row in enumerate(batch.mask.tolist()):
        a, logs = float(per_row[i]), []
        for t in [t for t, m in enumerate(row) if m]:
            r = math.exp(float(batch.log_probs[i, t] - batch.old_log_probs[i, t]))
            bounded = clip(r, math.exp(-0.1), math.exp(0.2))
            logs.append(math.log(abs(min(r * a, bounded * a) / a)))
        for t, m in enumerate(row):
            expected = -a * math.exp(math.fsum(logs) / len(logs)) if m else 0.0
            assert float(loss.detach()[i, t]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("with_expert", [True, False])
def test_mix_weighs_reinforcement_and_imitation(with_expert: bool) -> None:
    b = make_batch(4, 6, 7, 2)
    expert = b.expert if with_expert else None
    loss, _ = losses.mix(b.log_probs, b.old_log_probs, b.advantages, b.mask, expert, mu=0.3)
    policy = losses.ppo(b.log_probs, b.old_log_probs, b.advantages, b.mask)[0]
    for i, t in b.mask.nonzero().tolist():
        rl, imitation = 0.7 * float(policy[i, t]), -0.3 * float(b.log_probs[i, t])
        expected = rl + imitation if expert is None else imitation if b.expert[i] else rl
        assert float(loss.detach()[i, t]) == pytest.approx(expected)


def test_topr_sequence_level_tapers_by_the_product_of_ratios() -> None:
    new, old = torch.tensor([[-2.0, -1.0, -1.0]], dtype=F64), torch.tensor([[-1.0, -1.5, -9.0]], dtype=F64)
    mask = torch.tensor([[1, 1, 0]])
    loss, _ = losses.topr(new, old, torch.tensor([-1.0], dtype=F64), mask, level="sequence")
    torch.testing.assert_close(loss, math.exp(-0.5) * torch.tensor([[-2.0, -1.0, 0.0]], dtype=F64))


def test_dual_clip_bounds_the_loss_of_negative_advantages() -> None:
    new, old = torch.tensor([[2.0, 2.0]], dtype=F64, requires_grad=True), torch.zeros(1, 2, dtype=F64)
    advantage = torch.tensor([[-1.0, 1.0]], dtype=F64)
    loss, metrics = losses.ppo(new, old, advantage, torch.ones(1, 2), dual_clip=3.0)
    loss.sum().backward()
    assert loss.tolist() == [[pytest.approx(3.0), pytest.approx(-1.2)]]
    assert new.grad is not None and new.grad.tolist() == [[0.0, 0.0]]
    assert float(metrics["clip_fraction"]) == 1.0
    with pytest.raises(ValueError, match="above 1"):
        losses.ppo(new, old, advantage, torch.ones(1, 2), dual_clip=1.0)


def test_extreme_log_ratios_are_clamped_to_twenty() -> None:
    assert to_ratio(torch.tensor([1e4, -1e4], dtype=F64)).tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_value_loss_takes_the_larger_error() -> None:
    values, old, target = (torch.tensor([[x]], dtype=F64) for x in (1.0, 0.0, 1.0))
    loss, metrics = losses.value(values, old, target, torch.ones(1, 1), 0.2)
    assert float(loss) == pytest.approx(0.5 * 0.8**2) and float(metrics["value_clip_fraction"]) == 1.0
    assert float(losses.value(values, old, target + 1, torch.ones(1, 1), None)[0]) == pytest.approx(0.5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dpo_equals_the_formula(smoothing: float) -> None:
    pc, pr, rc, rr = (torch.tensor([x], dtype=F64) for x in (-10.0, -12.0, -11.0, -11.5))
    h, sigmoid = (1.0 - -0.5), lambda x: 1 / (1 + math.exp(-x))
    loss, metrics = losses.dpo(pc, pr, rc, rr, beta=0.2, label_smoothing=smoothing)
    expected = -(1 - smoothing) * math.log(sigmoid(0.2 * h)) - smoothing * math.log(sigmoid(-0.2 * h))
    assert float(loss) == pytest.approx(expected) and float(metrics["accuracy"]) == 1.0
    assert float(losses.dpo(pc, pr, rc, rr, beta=0.2, loss_type="ipo")[0]) == pytest.approx((h - 2.5) ** 2)


def test_combine_adds_the_terms_and_asks_for_what_is_missing() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    ones = torch.ones(2, 3, dtype=F64)
    total = losses.combine(
        ones,
        mask,
        rl_loss_coef=2.0,
        entropy=3 * ones,
        entropy_loss_coef=0.1,
        kl=5 * ones,
        kl_loss_coef=0.01,
        log_probs=-7 * ones,
        positive=torch.tensor([True, False]),
        sft_loss_coef=0.5,
        weights=torch.tensor([1.0, 3.0]),
    )
    torch.testing.assert_close(total, torch.tensor([[5.25, 5.25, 0.0], [5.75, 0.0, 0.0]], dtype=F64))
    with pytest.raises(ValueError, match="kl_loss_coef is not 0 but kl is missing"):
        losses.combine(ones, mask, kl_loss_coef=0.1)
