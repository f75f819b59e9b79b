"""Losses of own samples beside an expert's, and of mirror descent, against plain loops in float64 from the papers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from roll.algorithms import losses
from roll.algorithms.aggregation import aggregate

from .batches import Batch, batches, make_batch

F64 = torch.float64
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
Value = Callable[[int, int], float]  # of row and token


def mean_of(batch: Batch, written: bool, value: Value, mode: str) -> float:
    """The mean over the expert's rows, or one's own, as the mode defines it."""
    rows: dict[int, list[float]] = defaultdict(list)
    for i, t in batch.mask.nonzero().tolist():
        if bool(batch.expert[i]) is written:
            rows[i].append(value(i, t))
    everything = [v for row in rows.values() for v in row]
    return {
        "token-mean": math.fsum(everything) / max(len(everything), 1),
        "seq-mean-token-mean": math.fsum(math.fsum(r) / len(r) for r in rows.values()) / max(len(rows), 1),
        "seq-mean-token-sum": math.fsum(everything) / max(len(rows), 1),
    }[mode]


def ppo_value(batch: Batch, low: float = 0.2, high: float = 0.2) -> Value:
    def value(i: int, t: int) -> float:
        a, r = float(batch.advantages[i, t]), math.exp(float(batch.log_probs[i, t] - batch.old_log_probs[i, t]))
        return max(-a * r, -a * min(max(r, 1 - low), 1 + high))

    return value


def cosine(step: int, warmup: int, decay: int, peak: float, valley: float) -> float:
    if step < warmup:
        return peak * step / warmup
    if step >= warmup + decay:
        return valley
    return valley + (peak - valley) / 2 * (1 + math.cos(math.pi * (step - warmup) / decay))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [5, 6])
def test_mix_is_the_mean_over_own_tokens_beside_the_mean_over_the_experts(mode: str, seed: int) -> None:
    b = make_batch(seed, 6, 7, 2)
    mixture = losses.expert_mixture(b.expert, b.mask, mode)
    loss, _ = losses.mix(b.log_probs, b.old_log_probs, b.advantages, b.mask, b.expert, mixture, 0.3)
    assert b.mask[b.expert].any() and b.mask[~b.expert].any()
    own = mean_of(b, False, ppo_value(b), mode)
    imitated = mean_of(b, True, lambda i, t: -float(b.log_probs[i, t]), mode)
    assert float(aggregate(loss, b.mask, mode)) == pytest.approx(0.7 * own + 0.3 * imitated)


def test_the_expert_keeps_its_weight_however_many_answers_of_ones_own_there_are() -> None:
    def slope(own: int) -> float:
        leaf, mask = torch.zeros(own + 1, 2, dtype=F64, requires_grad=True), torch.ones(own + 1, 2)
        expert = torch.tensor([True] + [False] * own)
        loss, _ = losses.mix(leaf, leaf.detach(), torch.ones(own + 1, dtype=F64), mask, expert, mu=0.4)
        aggregate(loss, mask, "token-mean").backward()
        assert leaf.grad is not None
        return float(leaf.grad[0].sum())

    assert slope(1) == pytest.approx(-0.4) and slope(100) == pytest.approx(-0.4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phi", [True, False])
@settings(max_examples=15, deadline=None)
@given(batch=batches)
def test_chord_weighs_kinds_by_the_step_and_the_experts_tokens_by_what_is_known(
    mode: str, phi: bool, batch: Batch
) -> None:
    schedule = {"mu_warmup_steps": 2, "mu_decay_steps": 4, "mu_peak": 0.8, "mu_valley": 0.2}
    mu = cosine(3, 2, 4, 0.8, 0.2)
    mixture = losses.expert_mixture(batch.expert, batch.mask, mode)
    leaf = batch.log_probs.clone().requires_grad_()
    loss, metrics = losses.compute(
        "chord",
        leaf,
        batch.old_log_probs,
        batch.advantages,
        batch.mask,
        {**schedule, "enable_phi_function": phi, "clip_high": 0.3},
        expert=batch.expert,
        step=batch.step,
        mixture=mixture,
    )
    value = aggregate(loss, batch.mask, mode)
    value.backward()

    def weight(i: int, t: int) -> float:
        p = math.exp(float(batch.log_probs[i, t]))
        return p * (1 - p) if phi else 1.0

    own = mean_of(batch, False, ppo_value(batch, 0.2, 0.3), mode)
    imitated = mean_of(batch, True, lambda i, t: -weight(i, t) * float(batch.log_probs[i, t]), mode)
    assert float(value.detach()) == pytest.approx((1 - mu) * own + mu * imitated, rel=1e-9, abs=1e-12)
    assert float(metrics["mu"]) == pytest.approx(mu)
    # The weight of a token has no gradient: dL/dlog p is -mu * weight over the number of its kind.
    assert leaf.grad is not None
    kind = batch.mask & batch.expert.unsqueeze(1)
    for i, t in kind.nonzero().tolist():
        count = {
            "token-mean": int(kind.sum()),
            "seq-mean-token-mean": int(kind.any(1).sum()) * int(kind[i].sum()),
            "seq-mean-token-sum": int(kind.any(1).sum()),
        }[mode]
        assert float(leaf.grad[i, t]) == pytest.approx(-mu * weight(i, t) / count, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "warmup, decay, peak, valley", [(0, 0, 0.1, 0.1), (0, 5, 0.9, 0.05), (3, 4, 0.5, 0.02), (4, 0, 1, 0)]
)
def test_the_weight_of_imitation_rises_in_a_line_and_falls_in_a_cosine(
    warmup: int, decay: int, peak: float, valley: float
) -> None:
    steps = torch.arange(0, 12)
    found = losses.mu_schedule(steps, warmup, decay, peak, valley).tolist()
    assert found == pytest.approx([cosine(step, warmup, decay, peak, valley) for step in range(12)])


@settings(max_examples=25, deadline=None)
@given(batch=batches)
def test_luffy_shapes_the_probability_of_the_experts_tokens(batch: Batch) -> None:
    leaf = batch.log_probs.clone().requires_grad_()
    loss, _ = losses.compute(
        "luffy", leaf, batch.old_log_probs, batch.advantages, batch.mask, {"shaping": 0.2}, expert=batch.expert
    )
    loss.sum().backward()
    assert leaf.grad is not None
    own = ppo_value(batch)
    for i, t in batch.mask.nonzero().tolist():
        a, p = float(batch.advantages[i, t]), math.exp(float(batch.log_probs[i, t]))
        if batch.expert[i]:
            assert float(loss.detach()[i, t]) == pytest.approx(-a * p / (p + 0.2), rel=1e-9, abs=1e-12)
            assert float(leaf.grad[i, t]) == pytest.approx(-a * p * 0.2 / (p + 0.2) ** 2, rel=1e-9, abs=1e-12)
        else:
            assert float(loss.detach()[i, t]) == pytest.approx(own(i, t), rel=1e-9, abs=1e-12)


def difference_of(batch: Batch, i: int) -> float:
    """log pi(y) - log pi_old(y) of a whole answer."""
    return math.fsum(
        float(batch.log_probs[i, t] - batch.old_log_probs[i, t]) for t in range(batch.mask.shape[1]) if batch.mask[i, t]
    )


@pytest.mark.parametrize("tau", [0.0, 0.6, 2.5])
@settings(max_examples=15, deadline=None)
@given(batch=batches)
def test_opmd_in_the_form_of_kimi_has_the_square_of_whole_answers(tau: float, batch: Batch) -> None:
    leaf = batch.log_probs.clone().requires_grad_()
    loss, _ = losses.opmd_kimi(leaf, batch.old_log_probs, batch.advantages, batch.mask, tau)
    loss.sum().backward()
    assert leaf.grad is not None
    expected = 0.0
    for i in range(len(batch.mask)):
        inside = [t for t in range(batch.mask.shape[1]) if batch.mask[i, t]]
        d = difference_of(batch, i)
        expected += math.fsum(-float(batch.advantages[i, t] * batch.log_probs[i, t]) for t in inside) + tau / 2 * d * d
        for t in inside:
            slope = (-float(batch.advantages[i, t]) + tau * d) / max(1.0, tau)
            assert float(leaf.grad[i, t]) == pytest.approx(slope, rel=1e-9, abs=1e-9)
    assert float(loss.detach().sum()) == pytest.approx(expected / max(1.0, tau), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("tau", [0.4, 2.0])
@settings(max_examples=20, deadline=None)
@given(batch=batches)
def test_opmd_in_pairs_compares_every_two_answers_of_a_group(tau: float, batch: Batch) -> None:
    scores = batch.advantages[:, 0]
    leaf = batch.log_probs.clone().requires_grad_()
    loss, _ = losses.opmd_pairwise(leaf, batch.old_log_probs, scores, batch.mask, batch.groups, tau)
    loss.sum().backward()
    assert leaf.grad is not None
    members: dict[int, list[int]] = defaultdict(list)
    for i in range(len(batch.mask)):
        if batch.mask[i].any():
            members[int(batch.groups[i])].append(i)
    expected, slopes = 0.0, dict.fromkeys(range(len(batch.mask)), 0.0)
    for group in members.values():
        a = {i: float(scores[i]) - tau * difference_of(batch, i) for i in group}
        factor = 1 / (2 * tau * (1 + tau) * len(group))
        for i in group:
            for j in group:
                if i < j:
                    expected += factor * (a[i] - a[j]) ** 2
                    slopes[i] -= factor * 2 * tau * (a[i] - a[j])
                    slopes[j] += factor * 2 * tau * (a[i] - a[j])
    assert float(loss.detach().sum()) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    for i, t in batch.mask.nonzero().tolist():
        assert float(leaf.grad[i, t]) == pytest.approx(slopes[i], rel=1e-8, abs=1e-9)


def test_opmd_in_pairs_is_opmd_where_the_policy_is_still_the_old_one() -> None:
    batch = make_batch(9, 6, 5, 2)
    batch.mask[:] = True
    scores = batch.scores - torch.stack([batch.scores[batch.groups == g].mean() for g in batch.groups])
    gradients = []
    for name in ("opmd", "opmd_pairwise"):
        leaf = batch.old_log_probs.clone().requires_grad_()
        options = {"tau": 0.7}
        loss, _ = losses.compute(name, leaf, batch.old_log_probs, scores, batch.mask, options, groups=batch.groups)
        aggregate(loss, batch.mask, "token-mean").backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "name, options",
    [
        ("mix", {"mu": 1.5}),
        ("chord", {"mu_peak": -0.1}),
        ("chord", {"mu_decay_steps": -1}),
        ("luffy", {"shaping": 0.0}),
        ("opmd_kimi", {"tau": -1.0}),
        ("opmd_pairwise", {"tau": 0.0}),
        ("sppo", {"epsilon": 0.0}),
        ("rec", {"clip_mode": "both"}),
        ("rec", {"temp": 0.0}),
    ],
)
def test_options_that_cannot_be_are_refused(name: str, options: dict[str, Any]) -> None:
    b = make_batch(1, 3, 3, 2)
    with pytest.raises(ValueError, match=name):
        losses.compute(
            name,
            b.log_probs,
            b.old_log_probs,
            b.advantages,
            b.mask,
            options,
            expert=b.expert,
            step=b.step,
            groups=b.groups,
        )
