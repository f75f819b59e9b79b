"""Mistakes met in other implementations, each ruled out by one test."""

from __future__ import annotations

import warnings

import pytest
import torch

from roll.algorithms import advantages, losses, masking, reward_shaping
from roll.algorithms.aggregation import aggregate
from roll.algorithms.groups import AlgorithmWarning


def test_token_mean_masks_the_numerator() -> None:
    loss, mask = torch.tensor([[1.0, 100.0], [3.0, float("nan")]]), torch.tensor([[1, 0], [1, 0]])
    assert float(aggregate(loss, mask, "token-mean", total_tokens=4)) == 1.0


def test_gae_does_not_bootstrap_from_masked_values() -> None:
    rewards_, mask = torch.tensor([[0.0, 0.0, 1.0, 0.0]]), torch.tensor([[1, 0, 1, 0]])
    values = torch.tensor([[0.5, 77.0, 0.25, 99.0]])
    result, returns = advantages.gae(rewards_, values, mask, 1.0, 0.0)
    assert result.tolist() == [[0.25 - 0.5, 0.0, 1.0 - 0.25, 0.0]]
    assert returns.tolist() == [[0.25, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("estimator", ["reinforce", "gae", "reinforce_plus_plus"])
def test_reward_after_observation_reaches_earlier_tokens(estimator: str) -> None:
    mask = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 0, 0, 1]])
    token_rewards = torch.zeros(2, 5)
    token_rewards[0, 4] = 1.0
    inputs = advantages.AdvantageInputs(mask, token_rewards=token_rewards, values=torch.zeros(2, 5))
    options = {"gamma": 0.5, "lambd": 1.0} if estimator == "gae" else {"gamma": 0.5}
    result = advantages.compute(estimator, inputs, options).advantages
    assert (result[0, :2] > result[1, :2]).all()
    if estimator != "reinforce_plus_plus":
        assert result[0].tolist() == [0.25, 0.5, 0.0, 0.0, 1.0]


def test_a_discount_counts_trained_tokens_and_not_observation_tokens() -> None:
    mask = torch.tensor([[1, 0, 0, 0, 1]])
    assert advantages.reinforce(torch.tensor([[0.0, 0, 0, 0, 1]]), mask, 0.5)[0, 0] == 0.5


def test_asym_clip_clips_to_minus_one_and_three() -> None:
    scores = torch.tensor([10.0] + [0.0] * 19)
    result = reward_shaping.normalize(scores, grouping="batch", method="asym_clip")
    assert float(result[0]) == 3.0 < float(reward_shaping.normalize(scores, grouping="batch", method="mean_std")[0])
    assert float(reward_shaping.normalize(-scores, grouping="batch", method="asym_clip")[0]) == -1.0


def test_running_normalisation_runs_and_resumes() -> None:
    parts = [torch.randn(size, generator=torch.Generator().manual_seed(size)).double() + 5 for size in (1, 4, 7)]
    moments = reward_shaping.RunningMoments()
    for part in parts[:2]:
        reward_shaping.shape_scores(part, reward_norm="running", running=moments)
    resumed = reward_shaping.RunningMoments()
    resumed.load_state_dict(moments.state_dict())
    result = reward_shaping.shape_scores(parts[2], reward_norm="running", running=resumed)
    seen = torch.cat(parts)
    assert resumed.mean == pytest.approx(float(seen.mean())) and resumed.std == pytest.approx(float(seen.std()))
    torch.testing.assert_close(result, (parts[2] - seen.mean()) / (seen.std() + 1e-6))


def test_group_ids_are_never_coerced() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert advantages.grpo(scores, ["1", "01", "1", "01"], scale="none").tolist() == [-1, -1, 1, 1]
    mixed = advantages.grpo(scores, [("a", 1), None, ("a", 1), None], scale="none")
    assert mixed.tolist() == [-1, -1, 1, 1]
    assert advantages.grpo(scores, torch.tensor([7, -2, 7, -2]), scale="none").tolist() == [-1, -1, 1, 1]


@pytest.mark.parametrize("size", [3, 7, 8])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e4 / 3])
def test_equal_scores_give_exactly_zero(size: int, value: float) -> None:
    scores, mask = torch.full((size,), value), torch.ones(size, 999)
    assert (advantages.grpo(scores, ["g"] * size) == 0).all()
    assert (advantages.reinforce_plus_plus_baseline(scores, ["g"] * size, mask) == 0).all()
    assert advantages.masked_whiten(scores[:, None].expand(size, 999), mask).abs().max() < 1e-3


def test_equal_large_returns_whiten_to_nothing() -> None:
    x = torch.full((64, 513), 100.1)
    assert (advantages.masked_whiten(x, torch.ones_like(x)) == 0).all()


def test_a_group_of_one_warns_and_gets_zero() -> None:
    for call in (advantages.grpo, advantages.rloo):
        with pytest.warns(AlgorithmWarning, match="1 of 2 groups have one sample"):
            assert call(torch.tensor([5.0, 1.0, 2.0]), ["a", "b", "b"])[0] == 0.0


def test_a_batch_without_any_advantage_says_why() -> None:
    mask = torch.ones(4, 2)
    equal = advantages.AdvantageInputs(mask, scores=torch.tensor([1.0, 1.0, 0.0, 0.0]), group_ids=["a", "a", "b", "b"])
    with pytest.warns(AlgorithmWarning, match="every advantage of the batch is zero.*scores of every group are equal"):
        assert advantages.compute("grpo", equal).metrics["advantages/zero_variance_groups"] == 1.0
    useful = advantages.AdvantageInputs(mask, scores=torch.tensor([1.0, 1.0, 0.0, 1.0]), group_ids=["a", "a", "b", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert advantages.compute("grpo", useful).metrics["advantages/zero_variance_groups"] == 0.5


def test_whitening_uses_bessels_correction_and_keeps_a_single_token() -> None:
    x, mask = torch.tensor([[1.0, 9.0, 3.0]], dtype=torch.float64), torch.tensor([[1, 0, 1]])
    assert advantages.masked_whiten(x, mask).tolist() == [[pytest.approx(-(0.5**0.5)), 0.0, pytest.approx(0.5**0.5)]]
    assert advantages.masked_whiten(x, mask, shift_mean=False)[0, 0] == pytest.approx(2 - 0.5**0.5)
    alone = torch.tensor([[0, 1, 0]])
    assert advantages.masked_whiten(x, alone) is x


def test_advantage_clip_comes_after_whitening() -> None:
    x = torch.tensor([[0.0] * 20 + [50.0]])
    result = advantages.finish(x, torch.ones_like(x), whiten=True, clip=2.0)
    assert float(result.max()) == 2.0 and float(result.min()) < 0


def test_results_do_not_depend_on_how_rows_are_split_into_cache_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.Generator().manual_seed(2)
    token_rewards, values = torch.randn(2, 7, 70, generator=noise, dtype=torch.float64)
    mask = torch.rand(7, 70, generator=noise) > 0.4
    mask[3], mask[4] = False, torch.arange(70) > 20

    def results() -> list[torch.Tensor]:
        gae = advantages.gae(token_rewards, values, mask, 0.9, 0.8)
        loss, metrics = losses.ppo(values, token_rewards, values, mask)
        return [*gae, advantages.reinforce_plus_plus(token_rewards, mask, 0.9), loss, *metrics.values()]

    whole = results()
    monkeypatch.setattr(masking, "_SLAB_ELEMENTS", 2 * 70)
    for split, expected in zip(results(), whole, strict=True):
        torch.testing.assert_close(split, expected, rtol=1e-12, atol=1e-12)
