"""Every built-in loss against a plain loop in float64, written from the formula; gradients by hand where stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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


def sppo_token(a: float, new: float, old: float) -> Token:
    inside = 1 / 1.2 <= math.exp(new - old) <= 1.2
    return (-a * (new - old), -a) if inside else (0.0, 0.0)


def rec_token(a: float, new: float, old: float) -> Token:
    r = math.exp(new - old)
    near = 0.9 <= r <= 1.1 or (a >= 0 and r <= 0.7) or (a <= 0 and r >= 1.3)
    w = math.exp(a / 2) if near else 0.0
    return -w * a * new + 0.3 * (new - old) ** 2, -w * a + 0.6 * (new - old)


REC = {"clip_mode": "ring", "weight": "advantage", "temp": 2.0, "regularizer": "k2", "regularizer_coef": 0.3}
RING = {"epsilon_low": 0.1, "epsilon_high": 0.1, "epsilon_low_prime": 0.3, "epsilon_high_prime": 0.3}

ALONE: dict[str, tuple[Callable[[float, float, float], Token], dict[str, Any]]] = {
    "ppo": (ppo_token, {"clip_low": 0.2, "clip_high": 0.3}),
    "cispo": (cispo_token, {"clip_low": 0.2, "clip_high": 0.3}),
    "topr": (topr_token, {"positive_weight": 2.0, "negative_weight": 0.5}),
    "tis": (tis_token, {"cap": 1.1}),
    "kimi15": (kimi_token, {"tau": 0.7}),
    "sapo": (sapo_token, {}),
    "vanilla": (lambda a, new, old: (-a * new, -a), {}),
    "opmd": (lambda a, new, old: (-a * new / 1.5, -a / 1.5), {"tau": 0.5}),
    "rec": (rec_token, {**REC, **RING}),
    "sppo": (sppo_token, {"epsilon": 0.2}),
    "sft": (lambda a, new, old: (-new, -1.0), {}),
}
TOGETHER = {"gspo", "gspo_segment", "gmpo", "clip_cov", "kl_cov", "mix", "chord", "luffy", "opmd_kimi", "opmd_pairwise"}


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


@pytest.mark.parametrize("weight", ["gspo_importance_sampling", "truncated_importance_sampling", "none"])
@settings(max_examples=20, deadline=None)
@given(batch=batches)
def test_rec_in_the_form_of_gspo_equals_the_loop(weight: str, batch: Batch) -> None:
    leaf = batch.log_probs.clone().requires_grad_()
    options = {"clip_mode": "gspo-one-side", "weight": weight, **RING}
    loss, _ = losses.compute("rec", leaf, batch.old_log_probs, batch.advantages, batch.mask, options)
    loss.sum().backward()
    difference = batch.log_probs - batch.old_log_probs
    for i, t in batch.mask.nonzero().tolist():
        inside = batch.mask[i].nonzero().flatten().tolist()
        s = math.exp(math.fsum(float(difference[i, u]) for u in inside) / len(inside))
        a, r = float(batch.advantages[i, t]), math.exp(float(difference[i, t]))
        near = (a >= 0 and s <= 1.1) or (a <= 0 and s >= 0.9)
        weights = {"gspo_importance_sampling": s, "truncated_importance_sampling": clip(r, 0.7, 1.3), "none": 1.0}
        slope = -weights[weight] * a if near else 0.0
        assert float(loss.detach()[i, t]) == pytest.approx(slope * float(batch.log_probs[i, t]), rel=1e-9, abs=1e-9)
        assert leaf.grad is not None and float(leaf.grad[i, t]) == pytest.approx(slope, rel=1e-9, abs=1e-9)


IN_RANGE: dict[str, Callable[[float, float], bool]] = {
    "none": lambda a, r: True,
    "one-side": lambda a, r: (a >= 0 and r <= 1.1) or (a <= 0 and r >= 0.9),
    "two-side": lambda a, r: 0.9 <= r <= 1.1,
}


@pytest.mark.parametrize("clip_mode", IN_RANGE)
@settings(max_examples=20, deadline=None)
@given(batch=batches)
def test_rec_counts_the_tokens_whose_ratio_is_in_its_range(clip_mode: str, batch: Batch) -> None:
    leaf = batch.log_probs.clone().requires_grad_()
    options = {"clip_mode": clip_mode, **RING}
    loss, _ = losses.compute("rec", leaf, batch.old_log_probs, batch.advantages, batch.mask, options)
    loss.sum().backward()
    assert leaf.grad is not None
    for i, t in batch.mask.nonzero().tolist():
        a, r = (float(x[i, t]) for x in (batch.advantages, (batch.log_probs - batch.old_log_probs).exp()))
        slope = -a if IN_RANGE[clip_mode](a, r) else 0.0
        assert float(loss.detach()[i, t]) == pytest.approx(slope * float(batch.log_probs[i, t]), rel=1e-9, abs=1e-9)
        assert float(leaf.grad[i, t]) == pytest.approx(slope, rel=1e-9, abs=1e-9)


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


def covariance_loop(batch: Batch) -> dict[tuple[int, int], float]:
    places = [(i, t) for i, t in batch.mask.nonzero().tolist()]
    level = math.fsum(float(batch.advantages[p]) for p in places) / max(len(places), 1)
    usual = math.fsum(float(batch.log_probs[p]) for p in places) / max(len(places), 1)
    return {p: (float(batch.advantages[p]) - level) * (float(batch.log_probs[p]) - usual) for p in places}


@settings(max_examples=25, deadline=None)
@given(batch=batches)
def test_kl_cov_holds_the_tokens_of_highest_covariance(batch: Batch) -> None:
    spread = covariance_loop(batch)
    wanted = min(max(int(0.3 * len(spread)), 1), len(spread))
    held = sorted(spread, key=lambda p: -spread[p])[:wanted]
    leaf = batch.log_probs.clone().requires_grad_()
    options = {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.7}
    loss, metrics = losses.compute("kl_cov", leaf, batch.old_log_probs, batch.advantages, batch.mask, options)
    loss.sum().backward()
    assert leaf.grad is not None
    for place in spread:
        a, difference = float(batch.advantages[place]), float((batch.log_probs - batch.old_log_probs)[place])
        extra = 0.7 if place in held else 0.0
        expected = -a * math.exp(difference) + extra * abs(difference)
        slope = -a * math.exp(difference) + extra * math.copysign(1, difference)
        assert float(loss.detach()[place]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert float(leaf.grad[place]) == pytest.approx(slope, rel=1e-9, abs=1e-9)
    assert float(metrics["cov_fraction"]) == pytest.approx(len(held) / max(len(spread), 1))


@settings(max_examples=25, deadline=None)
@given(batch=batches)
def test_clip_cov_leaves_out_tokens_whose_covariance_lies_between_the_bounds(batch: Batch) -> None:
    spread = covariance_loop(batch)
    leaf = batch.log_probs.clone().requires_grad_()
    options = {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 1.0, "clip_low": 0.2, "clip_high": 0.3}
    loss, metrics = losses.compute("clip_cov", leaf, batch.old_log_probs, batch.advantages, batch.mask, options)
    loss.sum().backward()
    assert leaf.grad is not None
    left_out = 0
    candidates = set()
    for place, covariance in spread.items():
        a, new, old = (float(x[place]) for x in (batch.advantages, batch.log_probs, batch.old_log_probs))
        value, slope = ppo_token(a, new, old)
        if 0.05 < covariance < 1.0 and value == pytest.approx(-a * math.exp(new - old)):
            candidates.add(place)
        if float(loss.detach()[place]) == 0 != value:
            assert place in candidates and float(leaf.grad[place]) == 0
            left_out += 1
        else:
            assert float(loss.detach()[place]) == pytest.approx(value, rel=1e-9, abs=1e-9)
            assert float(leaf.grad[place]) == pytest.approx(slope, rel=1e-9, abs=1e-9)
    assert left_out == min(max(int(0.3 * len(spread)), 1), len(candidates))
    assert float(metrics["cov_fraction"]) == pytest.approx(left_out / max(len(spread), 1))


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_tokens_chosen_for_a_whole_step_are_those_that_the_loss_chooses_on_policy(name: str) -> None:
    b = make_batch(8, 6, 40, 2)
    options = {"clip_cov_ratio": 0.05, "clip_cov_lb": 0.1} if name == "clip_cov" else {"kl_cov_ratio": 0.05}
    chosen = losses.prepare(name, b.old_log_probs, b.advantages, b.mask, options, torch.Generator().manual_seed(3))
    given, _ = losses.compute(name, b.old_log_probs, b.old_log_probs, b.advantages, b.mask, options, **chosen)
    torch.manual_seed(3)
    alone, _ = losses.compute(name, b.old_log_probs, b.old_log_probs, b.advantages, b.mask, options)
    torch.testing.assert_close(given, alone)
    assert int(chosen["cov_tokens"].sum()) == int(0.05 * int(b.mask.sum()))
    assert losses.prepare("ppo", b.old_log_probs, b.advantages, b.mask) == {}


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
