"""The required properties, for every estimator and loss that is registered, by name: a new one is covered at once."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from roll.algorithms import advantages, losses
from roll.algorithms.aggregation import MODES, aggregate, count_sequences, count_tokens
from roll.algorithms.registry import registry

from .batches import Batch, batches, make_batch, pad

ESTIMATORS = registry("advantage").names()
LOSSES = registry("loss").names()

pytestmark = pytest.mark.filterwarnings("ignore::roll.algorithms.groups.AlgorithmWarning")
quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def estimate(name: str, batch: Batch) -> torch.Tensor:
    output = advantages.compute(name, batch.inputs())
    if output.returns is None:
        return output.advantages
    return torch.stack([output.advantages, output.returns], -1)


def loss_of(name: str, batch: Batch, log_probs: torch.Tensor) -> torch.Tensor:
    return losses.compute(name, log_probs, batch.old_log_probs, batch.advantages, batch.mask, **further(batch))[0]


def further(batch: Batch) -> dict[str, torch.Tensor]:
    """What losses read beside log-probs, advantages and mask."""
    names = {name for loss in LOSSES for name in registry("loss").get(loss).needs | registry("loss").get(loss).uses}
    return {name: getattr(batch, name) for name in names}


def gradient(name: str, batch: Batch, mode: str, pieces: list[Batch]) -> torch.Tensor:
    """Sum the gradients of micro-batches under global totals, for each row of the whole batch."""
    totals = {"total_tokens": count_tokens(batch.mask), "total_sequences": count_sequences(batch.mask)}
    parts = []
    for piece in pieces:
        leaf = piece.log_probs.clone().requires_grad_()
        aggregate(loss_of(name, piece, leaf), piece.mask, mode, max_length=11, **totals).backward()
        assert leaf.grad is not None
        parts.append(leaf.grad)
    return torch.cat(parts)


def test_the_names_of_the_specification_are_registered() -> None:
    assert {"gae", "reinforce", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax"} <= set(
        ESTIMATORS
    )
    assert {"opo", "gigpo", "step_wise_grpo", "opmd", "step_reinforce"} <= set(ESTIMATORS)
    assert {"ppo", "gspo", "cispo", "topr", "tis", "kimi15", "vanilla", "sapo", "gmpo", "opmd", "mix", "sft"} <= set(
        LOSSES
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ESTIMATORS)
@quick
@given(batches, st.integers(0, 4), st.integers(0, 4), st.sampled_from([1e4, -7.0]))
def test_estimators_ignore_what_the_mask_hides(name: str, batch: Batch, left: int, right: int, garbage: float) -> None:
    plain = estimate(name, pad(batch, 0, 0, 0.0))
    padded = estimate(name, pad(batch, left, right, garbage))
    torch.testing.assert_close(padded[:, left : left + plain.shape[1]], plain, rtol=1e-9, atol=1e-9)
    outside = ~torch.nn.functional.pad(batch.mask, (left, right), value=False)
    assert (padded[outside] == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ESTIMATORS)
@quick
@given(batches, st.randoms(use_true_random=False))
def test_estimators_do_not_depend_on_the_order_of_samples(name: str, batch: Batch, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(batch.mask.shape[0]))
    random.shuffle(order)
    expected = estimate(name, batch)[torch.tensor(order)]
    torch.testing.assert_close(estimate(name, batch.rows(order)), expected, rtol=1e-9, atol=1e-9)


def by_turn(batch: Batch) -> tuple[Batch, list[int]]:
    """Cut every row into one piece per turn, and return the row of each piece; a row without a turn stays whole."""
    rows, masks = [], []
    for row in range(batch.mask.shape[0]):
        turns = batch.turn_ids[row][batch.mask[row]].unique().tolist()
        for turn in turns or [-1]:
            rows.append(row)
            masks.append(batch.mask[row] & (batch.turn_ids[row] == turn))
    return replace(batch.rows(rows), mask=torch.stack(masks)), rows


COMPARING = [name for name in ESTIMATORS if {"group_ids", "baselines"} & registry("advantage").get(name).needs]


@pytest.mark.long
@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("scored", [True, False])
@quick
@given(batch=batches)
def test_the_pieces_of_a_trajectory_count_once(name: str, scored: bool, batch: Batch) -> None:
    pieces, rows = by_turn(batch)
    given = [each.inputs() if scored else replace(each.inputs(), scores=None) for each in (batch, pieces)]
    whole, apart = (advantages.compute(name, inputs).advantages for inputs in given)
    together = torch.zeros_like(whole).index_add_(0, torch.tensor(rows), apart)
    torch.testing.assert_close(together, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_stay_finite_at_the_edges(name: str) -> None:
    for case in ("empty rows", "empty batch mask", "one token", "one sample", "groups of one", "equal"):
        for dtype in (torch.float32, torch.float64):
            assert_estimate_is_finite(name, case, dtype)


def assert_estimate_is_finite(name: str, case: str, dtype: torch.dtype) -> None:
    batch = make_batch(3, rows=1 if case == "one sample" else 6, width=1 if case == "one token" else 5, groups=2)
    if case == "empty rows":
        batch.mask[::2] = False
    elif case == "empty batch mask":
        batch.mask[:] = False
    elif case == "groups of one":
        batch.group_ids = [str(i) for i in range(6)]
    elif case == "equal":
        batch = replace(
            batch,
            scores=torch.full((6,), 0.1),
            token_rewards=torch.full((6, 5), 0.1),
            group_ids=["g"] * 6,
        )
    inputs = batch.inputs()
    cast = {
        key: value.to(dtype)
        for key in ("token_rewards", "scores", "values", "baselines")
        if (value := getattr(inputs, key)) is not None
    }
    output = advantages.compute(name, replace(inputs, **cast))
    assert output.advantages.dtype == dtype
    assert torch.isfinite(output.advantages).all()
    assert all(math.isfinite(value) for value in output.metrics.values())
    compared = {"grpo", "grpo_passk", "gpg", "rloo", "opo", "opmd", "reinforce_plus_plus_baseline"}
    if case in ("groups of one", "equal") and name in compared:
        assert (output.advantages == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSES)
@quick
@given(batches, st.integers(0, 4), st.integers(0, 4), st.sampled_from([1e4, -7.0]))
def test_losses_ignore_what_the_mask_hides(name: str, batch: Batch, left: int, right: int, garbage: float) -> None:
    base, noisy = pad(batch, 0, 0, 0.0), pad(batch, left, right, garbage)
    plain = loss_of(name, base, base.log_probs)
    padded = loss_of(name, noisy, noisy.log_probs)
    torch.testing.assert_close(padded[:, left : left + plain.shape[1]], plain, rtol=1e-10, atol=1e-10)
    assert (padded[~noisy.mask] == 0).all()
    for mode in MODES:
        torch.testing.assert_close(
            gradient(name, noisy, mode, [noisy])[noisy.mask],
            gradient(name, base, mode, [base])[base.mask],
            rtol=1e-10,
            atol=1e-10,
        )


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=6, deadline=None)
@given(batch=batches, sizes=st.lists(st.integers(1, 3), min_size=7, max_size=7))
def test_the_gradient_does_not_depend_on_micro_batches(name: str, mode: str, batch: Batch, sizes: list[int]) -> None:
    if "groups" in registry("loss").get(name).needs:
        # What such a loss compares is computed in one pass.
        batch = batch.rows(batch.groups.argsort(stable=True).tolist())
        sizes = batch.groups.unique(return_counts=True)[1].tolist()
    rows = batch.mask.shape[0]
    assume(rows > 1)
    pieces, start = [], 0
    for size in sizes:
        if start < rows:
            pieces.append(batch.rows(list(range(start, min(start + size, rows)))))
            start += size
    whole = gradient(name, batch, mode, [batch])
    torch.testing.assert_close(gradient(name, batch, mode, pieces), whole, rtol=1e-6, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSES)
@quick
@given(batches, st.randoms(use_true_random=False))
def test_losses_do_not_depend_on_the_order_of_samples(name: str, batch: Batch, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(batch.mask.shape[0]))
    random.shuffle(order)
    shuffled = batch.rows(order)
    expected = loss_of(name, batch, batch.log_probs)[torch.tensor(order)]
    torch.testing.assert_close(loss_of(name, shuffled, shuffled.log_probs), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_stay_finite_at_the_edges(name: str) -> None:
    for case in ("plain", "empty rows", "empty batch mask", "one token", "infinite outside"):
        for shift in (0.0, 1e3, -1e3):
            assert_loss_is_finite(name, case, shift)


def assert_loss_is_finite(name: str, case: str, shift: float) -> None:
    batch = make_batch(5, rows=4, width=1 if case == "one token" else 5, groups=2)
    if case == "empty rows":
        batch.mask[::2] = False
    elif case == "empty batch mask":
        batch.mask[:] = False
    batch.old_log_probs = batch.old_log_probs.float() + shift
    batch.log_probs = batch.log_probs.float()
    if case == "infinite outside":
        batch.log_probs[~batch.mask] = -math.inf
        batch.old_log_probs[~batch.mask] = math.nan
        batch.advantages[~batch.mask] = math.inf
    leaf = batch.log_probs.clone().requires_grad_()
    loss, metrics = losses.compute(
        name, leaf, batch.old_log_probs, batch.advantages.float(), batch.mask, **further(batch)
    )
    aggregate(loss, batch.mask, "seq-mean-token-mean").backward()
    assert torch.isfinite(loss).all()
    assert leaf.grad is not None and torch.isfinite(leaf.grad).all()
    assert all(math.isfinite(float(value)) for value in metrics.values())
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in metrics.values())


def test_a_newly_registered_estimator_is_among_those_tested() -> None:
    from roll.algorithms.registry import ADVANTAGES, register_advantage

    @register_advantage("only_for_this_test", needs=("scores",))
    def mine(inputs: advantages.AdvantageInputs) -> torch.Tensor:
        assert inputs.scores is not None
        return inputs.scores

    try:
        assert "only_for_this_test" in registry("advantage").names()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            batch = make_batch(0, 3, 4, 1)
            assert estimate("only_for_this_test", batch).shape == (3, 4)
    finally:
        ADVANTAGES.remove("only_for_this_test")
