"""Divergences from a teacher: loops written from the paper, TRL's loss, and what must hold on any distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roll.algorithms.distillation import Divergence, buckets, sampled_reverse_kl, top_k, with_others
from roll.algorithms.kl import kl_penalty

F64 = torch.float64
CHOICES = [Divergence("reverse_kl"), Divergence("forward_kl"), Divergence("jsd", 0.1), Divergence("jsd", 0.5)]


def logits(seed: int, *shape: int) -> Tensor:
    return 2.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def distributions(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    return logits(seed, *shape).log_softmax(-1), logits(seed + 1000, *shape).log_softmax(-1)


def by_hand(choice: Divergence, student: list[float], teacher: list[float]) -> float:
    """Sum over outcomes, of probabilities."""
    total = 0.0
    for s, t in zip(student, teacher, strict=True):
        if choice.kind == "reverse_kl":
            total += s * math.log(s / t) if s else 0.0
        elif choice.kind == "forward_kl":
            total += t * math.log(t / s) if t else 0.0
        else:
            m = choice.beta * t + (1 - choice.beta) * s
            total += choice.beta * t * math.log(t / m) if t else 0.0
            total += (1 - choice.beta) * s * math.log(s / m) if s else 0.0
    return total


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_divergences_are_those_of_a_plain_loop(choice: Divergence) -> None:
    student, teacher = distributions(1, 20, 7)
    wanted = [by_hand(choice, *rows) for rows in zip(student.exp().tolist(), teacher.exp().tolist(), strict=True)]
    assert choice(student, teacher).tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_last_bucket_holds_all_that_is_left(choice: Divergence) -> None:
    student, teacher = distributions(2, 20, 9)
    ids, named = top_k(teacher, 3)
    got = choice(buckets(student, ids), named)
    for row in range(20):
        s, t = student[row].exp().tolist(), teacher[row].exp().tolist()
        chosen = sorted(range(9), key=lambda token: -t[token])[:3]
        assert ids[row].tolist() == chosen
        rows = [[p[token] for token in chosen] for p in (s, t)]
        coarse = [[*row, sum(p) - sum(row)] for row, p in zip(rows, (s, t), strict=True)]
        assert float(got[row]) == pytest.approx(by_hand(choice, *coarse), rel=1e-9)


def test_the_reverse_one_is_the_full_penalty_of_reinforcement_learning() -> None:
    student, teacher = logits(3, 4, 5, 11), logits(4, 4, 5, 11)
    ours = Divergence("reverse_kl")(student.log_softmax(-1), teacher.log_softmax(-1))
    torch.testing.assert_close(ours, kl_penalty(student, teacher, "full"))


@pytest.mark.long
@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 500),
    size=st.integers(2, 12),
    scale=st.sampled_from([0.1, 1.0, 40.0]),
    choice=st.sampled_from(CHOICES),
)
def test_naming_more_tokens_comes_nearer_to_the_whole_and_never_beyond(
    seed: int, size: int, scale: float, choice: Divergence
) -> None:
    student, teacher = ((scale * each).log_softmax(-1) for each in (logits(seed, 5, size), logits(seed + 1, 5, size)))
    whole = choice(student, teacher)
    assert bool((whole >= -1e-12).all()) and not choice(student, student).abs().max() > 1e-12
    if choice.kind == "jsd":
        assert bool((whole <= math.log(2) + 1e-12).all())
    before = torch.zeros(5, dtype=F64)
    for k in range(1, size):
        ids, named = top_k(teacher, k)
        part = choice(buckets(student, ids), named)
        assert bool((part >= before - 1e-9).all()) and bool((part <= whole + 1e-9).all())
        before = part


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_impossible_tokens_and_empty_tails_make_no_nan(choice: Divergence) -> None:
    student = logits(5, 3, 6).requires_grad_()
    impossible = logits(6, 3, 6)
    impossible[:, 0] = float("-inf")
    if choice.kind != "reverse_kl":  # where the student says what the teacher never would, that one is infinite
        choice(student.log_softmax(-1), impossible.log_softmax(-1)).sum().backward()
        assert student.grad is not None and bool(student.grad.isfinite().all())
    certain = torch.tensor([[200.0, 0, 0, 0, 0, 0]], dtype=F64)
    ids, named = top_k(certain.log_softmax(-1), 2)
    student.grad = None
    choice(buckets(student[:1].log_softmax(-1), ids), named).sum().backward()
    assert student.grad is not None and bool(student.grad.isfinite().all())


@pytest.mark.long
@pytest.mark.parametrize("choice", [*CHOICES, Divergence("jsd", 0.9)], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_trl(choice: Divergence, temperature: float) -> None:
    gkd = pytest.importorskip("trl.experimental.gkd.gkd_trainer")
    theirs, teacher = logits(7, 4, 6, 13).requires_grad_(), logits(8, 4, 6, 13)
    ours = theirs.detach().clone().requires_grad_()
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(9)) < 0.6
    labels = torch.where(mask, 1, -100)
    beta = {"forward_kl": 0, "reverse_kl": 1}.get(choice.kind, choice.beta)
    wanted = gkd.GKDTrainer.generalized_jsd_loss(theirs, teacher, labels, beta=beta, temperature=temperature)
    wanted.backward()
    per_token = choice((ours / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1))
    loss = (per_token * mask).sum() / mask.sum()
    loss.backward()
    # TRL's mixture is computed with a weight in the precision of the logits, so nothing is rounded on either side.
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-9)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(seed=st.integers(0, 500), size=st.integers(1, 12), scale=st.sampled_from([0.1, 1.0, 12.0]))
def test_what_is_left_is_known_from_the_likeliest_alone(seed: int, size: int, scale: float) -> None:
    whole = (scale * logits(seed, 5, size)).log_softmax(-1)
    for k in range(1, size + 1):
        _, summed = top_k(whole, k)
        told = with_others(summed[:, :-1].float(), size - k)
        assert told.dtype == F64 and told.shape == summed.shape
        torch.testing.assert_close(told[:, :-1], summed[:, :-1], rtol=1e-6, atol=1e-6)
        # Of probabilities: single precision knows them so far, and the rest is no more than that of the last one named.
        torch.testing.assert_close(told[:, -1].exp(), summed[:, -1].exp(), rtol=0, atol=1e-6)
        most = summed[:, -2] + math.log(size - k) if size > k else torch.full((5,), float("-inf"), dtype=F64)
        assert bool((told[:, -1] <= most + 1e-5).all())
        # Nothing that is possible becomes impossible: a student that says it would be infinitely far away.
        assert bool(told.isfinite()[:, -1].all()) == (k < size)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(seed=st.integers(0, 500), size=st.integers(2, 9), on_policy=st.booleans())
def test_the_estimate_from_sampled_tokens_is_the_reverse_divergence_in_expectation(
    seed: int, size: int, on_policy: bool
) -> None:
    scores, teacher = logits(seed, 4, size).requires_grad_(), logits(seed + 1, 4, size).log_softmax(-1)
    student = scores.log_softmax(-1)
    sampler = student.detach() if on_policy else logits(seed + 2, 4, size).log_softmax(-1)
    exact = Divergence("reverse_kl")(student, teacher)
    (wanted,) = torch.autograd.grad(exact.sum(), scores, retain_graph=True)

    # Every token could have been sampled, with the probability that it was sampled with.
    estimates = sampled_reverse_kl(student, teacher, sampler, torch.ones(4, size))
    expected = (sampler.exp() * estimates).sum(-1)
    (got,) = torch.autograd.grad(expected.sum(), scores)

    torch.testing.assert_close(expected, exact, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


def test_what_was_not_sampled_is_no_estimate() -> None:
    told = torch.tensor([[float("nan"), -1.0, -2.0]])
    found = sampled_reverse_kl(told, torch.full((1, 3), -1.5), told, torch.tensor([[0, 1, 1]]))
    assert found.tolist() == [[0.0, 0.5, -0.5]]


def test_what_is_no_divergence_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown 'hellinger'"):
        Divergence("hellinger")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="The ends are the two KLs"):
        Divergence("jsd", 1.0)
    with pytest.raises(ValueError, match="kd_temperature=0"):
        Divergence(temperature=0.0)
