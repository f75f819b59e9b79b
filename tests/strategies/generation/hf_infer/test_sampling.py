from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.generation import SamplingParams, fold_seed
from roll.strategies.generation.hf_infer.sampling import sample, uniforms
from roll.strategies.generation.serving import check_sampling


def draw(logits: torch.Tensor, noise, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    n = logits.shape[0]
    return sample(
        logits,
        np.full(n, temperature),
        np.full(n, top_k, dtype=np.int64),
        np.full(n, top_p),
        np.asarray(noise, dtype=np.float64),
        np.full(n, min_p),
    )


def reference_distribution(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> np.ndarray:
    """Written token by token from the definition, in float64."""
    scaled = logits.astype(np.float64) / temperature
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    order = [token for token in order if np.exp(scaled[token] - scaled.max()) >= min_p]
    if top_k > 0:
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order].max())
    weights /= weights.sum()
    kept, reached = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        kept.append(token)
        reached += weight
        if reached >= top_p:
            break
    probabilities = np.zeros(len(scaled))
    probabilities[kept] = weights[: len(kept)]
    return probabilities / probabilities.sum()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.6]),
    top_k=st.sampled_from([-1, 0, 1, 3, 7, 50]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.4, 1.0]),
)
def test_log_prob_is_that_of_the_restricted_distribution(seed, temperature, top_k, top_p, min_p):
    logits = np.random.default_rng(seed).normal(size=11).astype(np.float32) * 2
    noise = (np.arange(64) + 0.5) / 64
    tokens, logprobs = draw(torch.from_numpy(np.tile(logits, (64, 1))), noise, temperature, top_k, top_p, min_p)
    expected = reference_distribution(logits, temperature, top_k, top_p, min_p)
    assert all(expected[token] > 0 for token in tokens)
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), atol=2e-5)


def test_counts_follow_the_distribution_chi_square():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5, -0.5])
    n = 60_000
    noise = uniforms(np.arange(n, dtype=np.uint64), np.full(n, 3, dtype=np.uint64))
    tokens, _ = draw(logits.expand(n, -1), noise, temperature=0.8)
    expected = reference_distribution(logits.numpy(), 0.8, 0, 1.0) * n
    observed = np.bincount(tokens, minlength=6)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < 20.5  # 99.9 % quantile of chi-square with 5 degrees of freedom


def test_successive_numbers_of_neighbouring_seeds_are_uniform_and_uncorrelated():
    seeds, counters = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(200, dtype=np.uint64), indexing="ij")
    values = uniforms(seeds.ravel(), counters.ravel()).reshape(300, 200)
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert float(((counts - 3000) ** 2 / 3000).sum()) < 43.8  # 99.9 %, 19 degrees of freedom
    for left, right in ((values[:, :-1], values[:, 1:]), (values[:-1], values[1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.015
    assert len(np.unique(values)) == values.size


def test_different_parameters_per_row_do_not_mix():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    noise = np.array([0.1, 0.9, 0.4, 0.7])
    temperature, top_k, top_p = np.array([1.0, 0.0, 0.5, 2.0]), np.array([0, 0, 2, 0]), np.array([1.0, 1.0, 1.0, 0.6])
    together = sample(logits, temperature, top_k, top_p, noise)
    for i in range(4):
        one = slice(i, i + 1)
        alone = sample(logits[one], temperature[one], top_k[one], top_p[one], noise[one])
        assert together[0][i] == alone[0][0]
        assert together[1][i] == pytest.approx(alone[1][0], abs=1e-6)


def test_greedy_takes_the_most_likely_token_with_its_untempered_log_prob():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    tokens, logprobs = draw(logits, [0.999], temperature=0.0, top_k=1, top_p=0.1)
    assert tokens == [1]
    assert logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[0, 1]), abs=1e-6)


@pytest.mark.parametrize("noise", [0.0, 1 - 2.0**-53])
def test_impossible_tokens_are_never_drawn_at_the_ends_of_the_noise(noise):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    assert draw(logits, [noise])[0][0] in (1, 2)


def test_nan_logits_are_an_error():
    with pytest.raises(RuntimeError, match="NaN"):
        draw(torch.tensor([[float("nan"), 0.0]]), [0.5])


def test_seeds_outside_64_bits_stay_distinct():
    seeds = [0, 1, -1, 2**64, 2**64 + 1, -(2**64), 2**200]
    assert len({fold_seed(seed) for seed in seeds}) == len(seeds)
    assert all(0 <= fold_seed(seed) < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_new_tokens=0),
        SamplingParams(temperature=-1.0),
        SamplingParams(temperature=float("nan")),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=1.5),
    ],
)
def test_meaningless_parameters_are_refused(params):
    with pytest.raises(ValueError, match="sampling"):
        check_sampling(params)
