from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import MODES
from roll.config import AgenticConfig
from roll.pipelines.learning.value_objective import ValueObjective, critic_metrics, explained_variance
from roll.strategies.base import BatchTotals

ROWS, WIDTH, MAX_LENGTH = 4, 8, 11
F64 = torch.float64


def make_batch() -> tuple[Tensor, TensorDict]:
    noise = torch.Generator().manual_seed(3)

    def normal() -> Tensor:
        return torch.randn(ROWS, WIDTH, generator=noise, dtype=F64)

    mask = torch.rand(ROWS, WIDTH, generator=noise) < 0.6
    mask[3] = False
    old = normal()
    values = (old + 0.4 * normal()).requires_grad_()
    return values, TensorDict({"response_mask": mask, "values": old, "returns": normal()}, batch_size=[ROWS])


def squared(value: float, old: float, target: float, clip: float | None) -> float:
    plain = (value - target) ** 2
    if clip is None:
        return 0.5 * plain
    return 0.5 * max(plain, (min(max(value, old - clip), old + clip) - target) ** 2)


@pytest.mark.parametrize("clip", [0.2, None])
@pytest.mark.parametrize("mode", MODES)
def test_loss_and_metrics_by_hand(mode: str, clip: float | None) -> None:
    values, batch = make_batch()
    loss = ValueObjective(clip=clip, aggregation=mode, max_length=MAX_LENGTH)
    rows = [
        [
            (float(values[row, t].detach()), float(batch["values"][row, t]), float(batch["returns"][row, t]))
            for t in range(WIDTH)
            if batch["response_mask"][row, t]
        ]
        for row in range(ROWS)
    ]
    tokens = [token for row in rows for token in row]
    totals = loss.totals(batch)
    assert totals == BatchTotals(len(tokens), 3, measured_tokens=len(tokens))
    expected = 0.0
    for row in rows:
        total = sum(squared(*token, clip) for token in row)
        divisor = {
            "token-mean": len(tokens),
            "seq-mean-token-sum": 3,
            "seq-mean-token-mean": 3 * max(len(row), 1),
            "seq-mean-token-sum-norm": 3 * MAX_LENGTH,
        }[mode]
        expected += total / divisor
    result, metrics = loss(values, None, batch, totals)
    assert float(result.detach()) == pytest.approx(expected, rel=1e-12)
    assert float(metrics["critic/value_mean"]) == pytest.approx(sum(v for v, _, _ in tokens) / len(tokens), rel=1e-12)
    error = sum(abs(v - target) for v, _, target in tokens) / len(tokens)
    assert float(metrics["critic/value_error"]) == pytest.approx(error, rel=1e-12)
    if clip is None:
        assert "critic/value_clip_fraction" not in metrics
    else:
        clipped = sum(squared(*token, clip) > squared(*token, None) for token in tokens)
        assert 0 < clipped < len(tokens)
        assert float(metrics["critic/value_clip_fraction"]) == pytest.approx(clipped / len(tokens), rel=1e-6)
    assert not any(metric.requires_grad for metric in metrics.values())


@pytest.mark.parametrize("mode", MODES)
def test_shares_of_micro_batches_add_up(mode: str) -> None:
    values, batch = make_batch()
    loss = ValueObjective(aggregation=mode, max_length=MAX_LENGTH)
    totals = loss.totals(batch)
    whole, metrics = loss(values, None, batch, totals)
    parts = [loss(values[rows], None, batch[rows], totals) for rows in (slice(0, 1), slice(1, 3), slice(3, 4))]
    assert float(sum(part[0] for part in parts).detach()) == pytest.approx(float(whole.detach()), rel=1e-12)
    assert len(metrics) == 3
    for name, value in metrics.items():
        assert sum(float(part[1][name]) for part in parts) == pytest.approx(float(value), rel=1e-6), name


def test_values_outside_the_mask_do_not_matter() -> None:
    values, batch = make_batch()
    loss = ValueObjective()
    whole, metrics = loss(values, None, batch, loss.totals(batch))
    outside = ~batch["response_mask"]
    for name in ("values", "returns"):
        batch[name] = batch[name].masked_fill(outside, math.nan)
    changed, changed_metrics = loss(values.detach().masked_fill(outside, math.inf), None, batch, loss.totals(batch))
    assert float(changed) == float(whole.detach())
    assert {k: float(v) for k, v in changed_metrics.items()} == {k: float(v) for k, v in metrics.items()}


def test_rows_without_a_trained_token_are_not_computed() -> None:
    _, batch = make_batch()
    assert ValueObjective().contributing_rows(batch).tolist() == [True, True, True, False]


def test_the_configuration_is_read_key_by_key() -> None:
    config = AgenticConfig(value_clip=0.4, loss_agg_mode="seq-mean-token-sum-norm", sequence_length=777)
    expected = ValueObjective(clip=0.4, aggregation="seq-mean-token-sum-norm", max_length=777)
    assert ValueObjective.from_config(config) == expected
    assert ValueObjective.from_config(AgenticConfig(value_clip=None)).clip is None


def test_what_a_step_reports_stands_beside_the_metrics_of_the_policy() -> None:
    step = {"loss": 1.0, "critic/value_mean": 2.0, "grad_norm": 3.0, "loss/l2": 4.0}
    assert critic_metrics(step) == {
        "critic/loss": 1.0,
        "critic/value_mean": 2.0,
        "critic/grad_norm": 3.0,
        "critic/loss/l2": 4.0,
    }


def test_explained_variance_by_hand() -> None:
    mask = torch.tensor([[False, True, True], [True, True, False]])
    returns = torch.tensor([[9.0, 1.0, 2.0], [3.0, 6.0, 9.0]])
    # Returns 1, 2, 3, 6: mean 3, variance 3.5. Errors 0, -1, 0, 3: mean 0.5, variance 2.25.
    values = torch.tensor([[-5.0, 1.0, 3.0], [3.0, 3.0, 70.0]])
    assert explained_variance(values, returns, mask) == pytest.approx(1 - 2.25 / 3.5, rel=1e-12)
    assert explained_variance(returns - 0.7, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.full_like(returns, 4.0), returns, mask) == pytest.approx(0.0, abs=1e-12)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)


@pytest.mark.parametrize("trained", [0, 1, 3])
def test_where_returns_do_not_vary_there_is_nothing_to_explain(trained: int) -> None:
    mask = torch.arange(6).view(2, 3) < trained
    assert explained_variance(torch.randn(2, 3), torch.full((2, 3), 0.1, dtype=F64), mask) is None
