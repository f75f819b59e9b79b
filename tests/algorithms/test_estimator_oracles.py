"""Every built-in estimator against a plain loop in float64, written from the formula."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings

from roll.algorithms import advantages
from roll.algorithms.registry import ADVANTAGES

from .batches import Batch, batches, make_batch

pytestmark = pytest.mark.filterwarnings("ignore::roll.algorithms.groups.AlgorithmWarning")
GAMMA, LAM = 0.9, 0.8
Rows = list[list[float]]


def members(batch: Batch) -> dict[str, list[int]]:
    found = defaultdict(list)
    for row, group in enumerate(batch.group_ids):
        found[group].append(row)
    return found


def spread(batch: Batch, per_row: list[float]) -> Rows:
    return [[per_row[i] if m else 0.0 for m in row] for i, row in enumerate(batch.mask.tolist())]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: list[float], ddof: int = 1) -> float:
    if len(values) <= ddof:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - ddof))


def whiten(batch: Batch, values: Rows) -> Rows:
    mask = batch.mask.tolist()
    kept = [v for row, ms in zip(values, mask, strict=True) for v, m in zip(row, ms, strict=True) if m]
    if len(kept) <= 1:
        return values
    centre, variance = mean(kept), std(kept) ** 2
    scale = 1 / math.sqrt(variance + 1e-8)
    return [
        [(v - centre) * scale if m else 0.0 for v, m in zip(row, ms, strict=True)]
        for row, ms in zip(values, mask, strict=True)
    ]


def returns_loop(batch: Batch) -> Rows:
    out = []
    for rewards, mask in zip(batch.token_rewards.tolist(), batch.mask.tolist(), strict=True):
        row, following = [0.0] * len(mask), 0.0
        for t in reversed(range(len(mask))):
            if mask[t]:
                following = rewards[t] + GAMMA * following
                row[t] = following
        out.append(row)
    return out


def gae_loop(batch: Batch) -> Rows:
    out = []
    for r, v, m in zip(batch.token_rewards.tolist(), batch.values.tolist(), batch.mask.tolist(), strict=True):
        row, next_value, next_advantage = [0.0] * len(m), 0.0, 0.0
        for t in reversed(range(len(m))):
            if m[t]:
                next_advantage = r[t] + GAMMA * next_value - v[t] + GAMMA * LAM * next_advantage
                next_value = v[t]
                row[t] = next_advantage
        out.append(row)
    return out


def per_group(batch: Batch, formula: Callable[[list[float], list[int]], list[float]]) -> list[float]:
    scores, result = batch.scores.tolist(), [0.0] * len(batch.group_ids)
    for rows in members(batch).values():
        for row, value in zip(rows, formula([scores[i] for i in rows], rows), strict=True):
            result[row] = value
    return result


def grpo_values(s: list[float]) -> list[float]:
    return [(x - mean(s)) / (std(s) + 1e-6) for x in s]


def opo_loop(batch: Batch) -> list[float]:
    lengths = [sum(row) for row in batch.mask.tolist()]

    def formula(s: list[float], rows: list[int]) -> list[float]:
        total = sum(lengths[i] for i in rows)
        baseline = sum(lengths[i] * x for i, x in zip(rows, s, strict=True)) / total if total else mean(s)
        return [x - baseline for x in s]

    return per_group(batch, formula)


def turns(batch: Batch) -> dict[tuple[int, int], float]:
    """Reward of every (row, turn)."""
    found: dict[tuple[int, int], float] = {}
    for i, row in enumerate(batch.turn_ids.tolist()):
        for t, turn in enumerate(row):
            if batch.mask[i, t]:
                found[i, turn] = found.get((i, turn), 0.0) + float(batch.token_rewards[i, t])
    return found


def turn_returns(batch: Batch, gamma: float) -> dict[tuple[int, int], float]:
    found = turns(batch)
    return {
        (i, k): math.fsum(gamma ** (j - k) * r for (row, j), r in found.items() if row == i and j >= k)
        for i, k in found
    }


def on_tokens(batch: Batch, values: dict[tuple[int, int], float]) -> Rows:
    return [
        [values[i, turn] if m else 0.0 for turn, m in zip(row, ms, strict=True)]
        for i, (row, ms) in enumerate(zip(batch.turn_ids.tolist(), batch.mask.tolist(), strict=True))
    ]


def step_reinforce_loop(batch: Batch) -> Rows:
    gains, out = turn_returns(batch, GAMMA), {}
    for (i, k), gain in gains.items():
        group = [key for key in gains if batch.group_ids[key[0]] == batch.group_ids[i]]
        same = [gains[key] for key in group if key[1] == k]
        if len({row for row, _ in group}) == 1:
            out[i, k] = 0.0
        elif len(same) == 1:
            out[i, k] = gain - mean([gains[key] for key in group])
        else:
            out[i, k] = gain - mean(same)
    return on_tokens(batch, out)


def last_step_loop(batch: Batch) -> Rows:
    acting = sorted({i for i, _ in turns(batch)})
    out = {}
    for i, k in turns(batch):
        peers = [j for j in acting if batch.group_ids[j] == batch.group_ids[i]]
        scores = [float(batch.scores[j]) for j in peers]
        out[i, k] = grpo_values(scores)[peers.index(i)]
    return on_tokens(batch, out)


def gigpo_loop(batch: Batch) -> Rows:
    rewards, gains, out = turns(batch), turn_returns(batch, 0.95), {}
    acting = sorted({i for i, _ in rewards})
    episode = {i: math.fsum(r for (row, _), r in rewards.items() if row == i) for i in acting}
    for i, k in rewards:
        peers = [j for j in acting if batch.group_ids[j] == batch.group_ids[i]]
        first = grpo_values([episode[j] for j in peers])[peers.index(i)]
        same = [key for key in gains if batch.group_ids[key[0]] == batch.group_ids[i] and key[1] % 3 == k % 3]
        second = grpo_values([gains[key] for key in same])[same.index((i, k))]
        out[i, k] = first + second
    return on_tokens(batch, out)


def passk_values(s: list[float]) -> list[float]:
    ranked = sorted(s, reverse=True)
    if len(s) < 2:
        return [0.0] * len(s)
    best = s.index(ranked[0])
    margin = (ranked[0] - ranked[1]) / (std(s) + 1e-6)
    return [margin if i == best else 0.0 for i in range(len(s))]


def gpg_loop(batch: Batch) -> list[float]:
    scores = batch.scores.tolist()
    factor = len(scores) / max(sum(s != 0 for s in scores), 1)
    return per_group(batch, lambda s, _: [factor * (x - mean(s)) / 2.0 for x in s])


def rec_values(scores: list[float]) -> list[float]:
    """Of the members below the mean no more than the others count, the first ones."""
    if len(scores) == 1:
        return [0.0]
    level = mean(scores)
    successes, failures, kept = sum(x >= level for x in scores), 0, []
    for i, x in enumerate(scores):
        failures += x < level
        if x >= level or failures <= successes:
            kept.append(i)
    chosen = [scores[i] for i in kept]
    return [(x - mean(chosen)) / (std(chosen, 0) + 1e-6) if i in kept else 0.0 for i, x in enumerate(scores)]


ORACLES: dict[str, Callable[[Batch], Rows]] = {
    "gae": gae_loop,
    "reinforce": returns_loop,
    "reinforce_plus_plus": lambda b: whiten(b, returns_loop(b)),
    "reinforce_plus_plus_baseline": lambda b: whiten(b, spread(b, per_group(b, lambda s, _: [x - mean(s) for x in s]))),
    "grpo": lambda b: spread(b, per_group(b, lambda s, _: grpo_values(s))),
    "grpo_passk": lambda b: spread(b, per_group(b, lambda s, _: passk_values(s))),
    "gpg": lambda b: spread(b, gpg_loop(b)),
    "rloo": lambda b: spread(
        b,
        per_group(b, lambda s, _: [x - (sum(s) - x) / (len(s) - 1) if len(s) > 1 else 0.0 for x in s]),
    ),
    "remax": lambda b: spread(b, [float(s - g) for s, g in zip(b.scores, b.baselines, strict=True)]),
    "opo": lambda b: spread(b, opo_loop(b)),
    "opmd": lambda b: spread(b, per_group(b, lambda s, _: [x - mean(s) for x in s])),
    "asymre": lambda b: spread(b, per_group(b, lambda s, _: [x - mean(s) + 0.3 if len(s) > 1 else 0.0 for x in s])),
    "rec": lambda b: spread(b, per_group(b, lambda s, _: rec_values(s))),
    "agentic_reinforce": lambda b: on_tokens(b, turn_returns(b, GAMMA)),
    "step_reinforce": step_reinforce_loop,
    "step_wise_grpo": last_step_loop,
    "gigpo": gigpo_loop,
}
OPTIONS = {
    "gae": {"gamma": GAMMA, "lambd": LAM},
    "reinforce": {"gamma": GAMMA},
    "reinforce_plus_plus": {"gamma": GAMMA},
    "gpg": {"f_norm": 2.0},
    "asymre": {"baseline_shift": -0.3},
    "rec": {"drop": "balance", "scale": "std"},
    "agentic_reinforce": {"gamma": GAMMA},
    "step_reinforce": {"gamma": GAMMA},
}


def test_every_built_in_estimator_has_an_oracle() -> None:
    built_in = {n for n in ADVANTAGES.names() if ADVANTAGES.get(n).function.__module__.startswith("roll.")}
    assert built_in == set(ORACLES)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(ORACLES))
@settings(max_examples=25, deadline=None)
@given(batch=batches)
def test_estimator_equals_the_loop(name: str, batch: Batch) -> None:
    result = advantages.compute(name, batch.inputs(), OPTIONS.get(name)).advantages
    expected = torch.tensor(ORACLES[name](batch), dtype=torch.float64).view(result.shape)
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize(
    ("gamma", "lam"),
    [
        pytest.param(1.0, 1.0, marks=pytest.mark.exhaustive),
        (0.99, 0.95),
        pytest.param(0.5, 0.0, marks=pytest.mark.exhaustive),
        pytest.param(0.0, 0.5, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_gae_in_float32_is_exact_to_five_digits_over_8192_tokens(gamma: float, lam: float, gaps: bool) -> None:
    noise = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(3, 8192, generator=noise) for _ in range(2))
    mask = torch.ones(3, 8192, dtype=torch.bool)
    mask[1, :1000], mask[2, 5000:] = False, False
    if gaps:
        mask &= torch.rand(3, 8192, generator=noise) > 0.3
    result, returns = advantages.gae(rewards, values, mask, gamma, lam)
    expected = torch.zeros(3, 8192, dtype=torch.float64)
    next_value, following = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(8192)):
        step = rewards[:, t].double() + gamma * next_value - values[:, t].double() + gamma * lam * following
        following = torch.where(mask[:, t], step, following)
        next_value = torch.where(mask[:, t], values[:, t].double(), next_value)
        expected[:, t] = torch.where(mask[:, t], following, 0.0)
    scale = expected.abs().max().clamp_min(1.0)
    assert float((result - expected).abs().max() / scale) < 1e-5
    torch.testing.assert_close(returns, torch.where(mask, result + values, 0.0))


def test_opmd_log_sum_exp_baseline() -> None:
    scores, tau = torch.tensor([0.0, 1.0, 3.0, 500.0, 501.0], dtype=torch.float64), 0.5
    result = advantages.opmd(scores, ["a", "a", "a", "b", "b"], tau, "logsumexp")
    first = tau * (math.log(sum(math.exp(s / tau) for s in (0.0, 1.0, 3.0))) - math.log(3))
    second = 500 + tau * (math.log(1 + math.exp(1 / tau)) - math.log(2))
    expected = scores - torch.tensor([first] * 3 + [second] * 2, dtype=torch.float64)
    torch.testing.assert_close(result, expected)


def test_only_the_single_best_of_a_group_has_an_advantage_for_pass_at_k() -> None:
    scores = torch.tensor([1.0, 0.0, 0.25, 1.0, 1.0, 0.0, 7.0, 0.0, 0.0], dtype=torch.float64)
    result = advantages.grpo_passk(scores, "aaabbbcdd", scale="none")
    assert result.tolist() == [0.75, 0, 0, 0, 0, 0, 0, 0, 0], "two best answers, or one answer, teach nothing"


def test_failures_that_outnumber_successes_are_left_out() -> None:
    scores = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    assert advantages.rec(scores, "aaaabbb").tolist()[:4] == [-0.25, 0.75, -0.25, -0.25]
    balanced = advantages.rec(scores, "aaaabbb", drop="balance")
    torch.testing.assert_close(balanced, torch.tensor([-0.5, 0.5, 0, 0, 1 / 3, 1 / 3, -2 / 3], dtype=torch.float64))
    with pytest.raises(ValueError, match="drop must be"):
        advantages.rec(scores, "aaaabbb", drop="all")  # type: ignore[arg-type]


def test_gpg_makes_up_for_samples_without_a_score() -> None:
    scores = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert advantages.gpg(scores, "aabb").tolist() == [2.0, -2.0, 0.0, 0.0]
    assert advantages.gpg(torch.zeros(4), "aabb").tolist() == [0.0] * 4


def test_agentic_reinforce_gives_the_numbers_of_roll() -> None:
    """What ``compute_agentic_reinforce_return`` of github.com/alibaba/ROLL at 8eb27cc2 returns for gamma 0.9."""
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 1, 1, 0, 1]])
    token_rewards = torch.tensor([[0, 0, 0.5, 0, 0, 0, 0, -0.25, 0, 1.0]])
    turn_ids = torch.tensor([[-1, 0, 0, -1, -1, 1, 1, 1, -1, 2]])
    inputs = advantages.AdvantageInputs(mask, token_rewards=token_rewards, turn_ids=turn_ids)
    result = advantages.compute("agentic_reinforce", inputs, {"gamma": 0.9}).advantages
    expected = torch.tensor([[0, 1.0850000381469727, 1.0850000381469727, 0, 0, *[0.6499999761581421] * 3, 0, 1.0]])
    torch.testing.assert_close(result, expected)


def test_dr_grpo_and_population_deviation() -> None:
    scores = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
    centred = scores - 5 / 3
    torch.testing.assert_close(advantages.grpo(scores, "aaa", scale="none"), centred)
    population = advantages.grpo(scores, "aaa", ddof=0, eps=0.5)
    torch.testing.assert_close(population, centred / (std([1.0, 0.0, 4.0], 0) + 0.5))


def test_steps_in_rows_of_their_own_equal_turns_of_one_row() -> None:
    batch = make_batch(11, rows=6, width=8, groups=2)
    whole = advantages.compute("step_reinforce", batch.inputs(), {"gamma": 0.9}).advantages
    order, masks, keep = [], [], []
    for i in range(6):
        for turn in sorted({t for t, m in zip(batch.turn_ids[i].tolist(), batch.mask[i].tolist(), strict=True) if m}):
            order.append(i)
            masks.append(batch.mask[i] & (batch.turn_ids[i] == turn))
            keep.append((i, masks[-1]))
    steps = batch.rows(order)
    steps.mask = torch.stack(masks)
    apart = advantages.compute("step_reinforce", steps.inputs(), {"gamma": 0.9}).advantages
    assert len(order) > 6
    for row, (i, mask) in enumerate(keep):
        torch.testing.assert_close(apart[row][mask], whole[i][mask])


def test_step_reinforce_options_for_a_turn_only_one_trajectory_reached() -> None:
    rewards, index = torch.tensor([0.0, 1.0, 0.0, 0.0, 2.0]), torch.tensor([0, 1, 0, 1, 2])
    call = [rewards, index, "aabbb", "ggggg", 1.0]
    assert advantages.step_reinforce(*call).tolist() == pytest.approx([-0.5, -0.5, 0.5, 0.5, 2 - 1.6])  # type: ignore[arg-type]
    assert advantages.step_reinforce(*call, single="zero").tolist()[4] == 0.0  # type: ignore[arg-type]
    assert advantages.step_reinforce(*call, baseline="none").tolist() == [1, 1, 2, 2, 2]  # type: ignore[arg-type]


def test_step_wise_grpo_can_divide_by_the_number_of_steps() -> None:
    scores, index = torch.tensor([9.0, 1.0, 0.0]), torch.tensor([0, 1, 0])
    result = advantages.step_wise_grpo(scores, "ggg", "aab", index, scale="none", divide_by_steps=True)
    assert result.tolist() == [0.25, 0.25, -0.5]
