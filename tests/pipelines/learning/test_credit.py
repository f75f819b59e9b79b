"""Credit assignment against loops over trajectories and turns, on batches made by hand."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.kl import AdaptiveKLController, FixedKLController
from roll.common.registry import UnknownNameError
from roll.config import AgenticConfig
from roll.pipelines.learning.credit import CreditState, assign_credit
from roll.trajectories.batch import collate
from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.samples import Sample, samples_from


def episode(group: str, number: int, rewards: list[float], tag: str = "A", forks: tuple[int, ...] = ()) -> Trajectory:
    turns = [
        Turn(
            prompt_ids=[1] * (2 + k % 2),
            completion_ids=[5] * (1 + (number + k) % 3),
            logprobs=[-0.5] * (1 + (number + k) % 3),
            reward=reward,
            starts_sample=k in forks,
        )
        for k, reward in enumerate(rewards)
    ]
    return Trajectory(tag, group, number, seed=1, turns=turns, status=Status.COMPLETED, score=sum(rewards))


def play() -> list[Trajectory]:
    """Two groups of different tags; trajectories of one to four turns, one of them cut in two by a new rendering."""
    return [
        episode("g1", 0, [0.5]),
        episode("g2", 0, [-0.1, 1.0], tag="B", forks=(1,)),
        episode("g1", 1, [-0.1, -0.2, 1.3]),
        episode("g2", 1, [0.2, -0.1, -0.4, 0.7], tag="B"),
        episode("g1", 2, [-0.3, 0.6]),
        episode("g2", 2, [-0.5], tag="B"),
    ]


def make_batch(
    trajectories: list[Trajectory], mode: Any = "trajectory"
) -> tuple[TensorDict, list[Sample], list[float]]:
    pairs = [(sample, t.score or 0.0) for t in trajectories for sample in samples_from(t, mode)]
    samples = [sample for sample, _ in pairs]
    batch = collate(samples, 0)
    noise = torch.Generator().manual_seed(4)
    mask = batch["response_mask"]
    batch["old_log_probs"] = -torch.rand(mask.shape, generator=noise) * mask
    batch["ref_log_probs"] = -torch.rand(mask.shape, generator=noise) * mask
    return batch, samples, [score for _, score in pairs]


def config(estimator: str, grouping: str = "state", method: str = "identity", **options: Any) -> AgenticConfig:
    return AgenticConfig(
        adv_estimator=estimator, reward_normalization={"grouping": grouping, "method": method}, **options
    )


def credit(settings: AgenticConfig, mode: str = "trajectory", trajectories: list[Trajectory] | None = None):
    batch, samples, scores = make_batch(trajectories or play(), mode)
    metrics = assign_credit(batch, samples, scores, settings, CreditState.from_config(settings))
    return batch, samples, metrics


def expect(batch: TensorDict, samples: list[Sample], per_turn: dict[tuple[str, int], float]) -> None:
    """Every trained token has its turn's advantage, every other token none."""
    expected = torch.zeros(batch["advantages"].shape)
    for row, sample in enumerate(samples):
        for position, turn in enumerate(sample.turn_index):
            if turn >= 0:
                expected[row, position] = per_turn[sample.trajectory, turn]
    assert expected.count_nonzero() > 5
    torch.testing.assert_close(batch["advantages"], expected, atol=1e-6, rtol=1e-5)


def returns_of(trajectory: Trajectory, gamma: float) -> list[float]:
    rewards = [turn.reward for turn in trajectory.turns]
    return [sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))]


def name_of(trajectory: Trajectory) -> str:
    return f"{trajectory.group_id}/{trajectory.episode}"


@pytest.mark.parametrize("mode", ["trajectory", "step"])
def test_step_reinforce_is_the_return_of_the_turn_minus_the_groups_mean_at_that_turn(mode: str) -> None:
    expected: dict[tuple[str, int], float] = {}
    for group in ("g1", "g2"):
        members = [t for t in play() if t.group_id == group]
        returns = {name_of(t): returns_of(t, 0.8) for t in members}
        everything = [value for values in returns.values() for value in values]
        for name, values in returns.items():
            for turn, value in enumerate(values):
                peers = [other[turn] for other in returns.values() if len(other) > turn]
                # A turn that nobody else reached is compared with all turns of the group.
                expected[name, turn] = value - fmean(peers if len(peers) > 1 else everything)
    batch, samples, _ = credit(config("step_reinforce", step_reward_gamma=0.8, method="mean_std"), mode)
    assert len(samples) == (7 if mode == "trajectory" else 13)
    expect(batch, samples, expected)


def normalised(grouping: str, method: str) -> dict[str, float]:
    """The normalisation from its definition, one score per trajectory."""
    trajectories = play()
    result = {}
    for trajectory in trajectories:
        peers = [
            t.score or 0.0
            for t in trajectories
            if grouping == "batch"
            or (grouping == "state" and t.group_id == trajectory.group_id)
            or (grouping == "inductive" and t.tag == trajectory.tag)
        ]
        value = trajectory.score or 0.0
        if method != "identity":
            value -= fmean(peers)
        if method in ("mean_std", "asym_clip"):
            value /= stdev(peers) + 1e-6
        if method == "asym_clip":
            value = min(max(value, -1.0), 3.0)
        result[name_of(trajectory)] = value
    return result


GROUPINGS = ["state", "batch", "inductive"]
METHODS = ["identity", "mean", "mean_std", "asym_clip"]


@pytest.mark.parametrize("mode", ["trajectory", "step"])
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("method", METHODS)
def test_grpo_compares_the_normalised_scores_of_the_trajectories_of_a_group(
    grouping: str, method: str, mode: str
) -> None:
    scores = normalised(grouping, method)
    expected = {}
    for trajectory in play():
        peers = [scores[name_of(t)] for t in play() if t.group_id == trajectory.group_id]
        value = (scores[name_of(trajectory)] - fmean(peers)) / (stdev(peers) + 1e-6)
        expected.update({(name_of(trajectory), turn): value for turn in range(4)})
    batch, samples, _ = credit(config("grpo", grouping, method), mode)
    expect(batch, samples, expected)
    assert batch["positive"].tolist() == [scores[sample.trajectory] > 0 for sample in samples]


@pytest.mark.parametrize("mode", ["trajectory", "step"])
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("method", METHODS)
def test_reinforce_gives_every_turn_what_follows_it_or_the_normalised_score(
    grouping: str, method: str, mode: str
) -> None:
    scores = normalised(grouping, method)
    expected = {}
    for trajectory in play():
        for turn, value in enumerate(returns_of(trajectory, 1.0)):
            expected[name_of(trajectory), turn] = value if method == "identity" else scores[name_of(trajectory)]
    batch, samples, _ = credit(config("reinforce", grouping, method), mode)
    expect(batch, samples, expected)


@pytest.mark.parametrize("mode", ["trajectory", "step"])
@pytest.mark.parametrize("method", ["identity", "mean_std"])
def test_agentic_reinforce_discounts_what_follows_a_turn_or_the_normalised_score_by_turns(
    mode: str, method: str
) -> None:
    scores, expected = normalised("state", method), {}
    for trajectory in play():
        turns = len(trajectory.turns)
        if method == "identity":
            gains = returns_of(trajectory, 0.8)
        else:
            gains = [0.8 ** (turns - 1 - k) * scores[name_of(trajectory)] for k in range(turns)]
        expected |= {(name_of(trajectory), k): gain for k, gain in enumerate(gains)}
    batch, samples, _ = credit(config("agentic_reinforce", gamma=0.8, method=method), mode)
    expect(batch, samples, expected)


def test_discounted_returns_run_over_trained_tokens() -> None:
    batch, _, _ = credit(config("reinforce", gamma=0.5), trajectories=[episode("g", 0, [1.0, 2.0])])
    # Completions of one and of two tokens, behind prompts of two and three.
    assert batch["response_mask"].tolist() == [[False] * 2 + [True] + [False] * 3 + [True] * 2]
    assert batch["advantages"].tolist() == [[0.0, 0.0, 1.0 + 0.25 * 2.0, 0.0, 0.0, 0.0, 1.0, 2.0]]


def masked_tokens(batch: TensorDict, row: int) -> list[int]:
    return [t for t in range(batch["response_mask"].shape[1]) if batch["response_mask"][row, t]]


def divergence(batch: TensorDict, row: int) -> list[float]:
    """k1 per trained token of a row."""
    d = (batch["old_log_probs"] - batch["ref_log_probs"])[row]
    return [float(d[t]) for t in masked_tokens(batch, row)]


def whole_trajectories() -> list[Trajectory]:
    return [t for t in play() if not any(turn.starts_sample for turn in t.turns)]


@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_divergence_is_charged_at_each_token_or_at_the_last(per_token: bool, gamma: float) -> None:
    batch, samples, scores = make_batch(whole_trajectories())
    settings = config("reinforce", init_kl_coef=0.3, add_token_level_kl=per_token, gamma=gamma)
    assign_credit(batch, samples, scores, settings, CreditState(kl_controller=FixedKLController(0.3)))
    for row, sample in enumerate(samples):
        positions, kl = masked_tokens(batch, row), divergence(batch, row)
        rewards = [sample.rewards[t] for t in positions]
        for k in range(len(positions)):
            if per_token:
                rewards[k] -= 0.3 * kl[k]
        if not per_token:
            rewards[-1] -= 0.3 * sum(kl)
        for k, position in enumerate(positions):
            expected = sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards)))
            assert float(batch["advantages"][row, position]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("mode", ["trajectory", "step"])
def test_the_divergence_counts_in_the_scores_that_groups_compare(per_token: bool, mode: str) -> None:
    batch, samples, scores = make_batch(play(), mode)
    settings = config("rloo", init_kl_coef=0.3, add_token_level_kl=per_token)
    assign_credit(batch, samples, scores, settings, CreditState(kl_controller=FixedKLController(0.3)))
    charged = {sample.trajectory: score for sample, score in zip(samples, scores, strict=True)}
    for row, sample in enumerate(samples):
        charged[sample.trajectory] -= 0.3 * sum(divergence(batch, row))
    expected = {}
    for name, value in charged.items():
        others = [other for peer, other in charged.items() if peer[:2] == name[:2] and peer != name]
        expected.update({(name, turn): value - fmean(others) for turn in range(4)})
    expect(batch, samples, expected)
    assert batch["positive"].tolist() == [score > 0 for score in scores]


def test_the_divergence_counts_in_the_rewards_of_turns() -> None:
    batch, samples, scores = make_batch(whole_trajectories())
    settings = config("step_reinforce", init_kl_coef=0.3, add_token_level_kl=True, step_reward_gamma=0.0)
    assign_credit(batch, samples, scores, settings, CreditState(kl_controller=FixedKLController(0.3)))
    charged: dict[tuple[str, int], float] = {}
    for row, sample in enumerate(samples):
        for position, kl in zip(masked_tokens(batch, row), divergence(batch, row), strict=True):
            key = (sample.trajectory, sample.turn_index[position])
            charged[key] = charged.get(key, 0.0) + sample.rewards[position] - 0.3 * kl
    expected = {}
    for (name, turn), value in charged.items():
        peers = [v for (peer, k), v in charged.items() if k == turn and peer[:2] == name[:2]]
        everything = [v for (peer, _), v in charged.items() if peer[:2] == name[:2]]
        expected[name, turn] = value - fmean(peers if len(peers) > 1 else everything)
    expect(batch, samples, expected)


def mean_divergence(batch: TensorDict) -> float:
    return fmean(fmean(divergence(batch, row)) for row in range(len(batch)))


def test_the_coefficient_of_a_batch_is_the_one_before_its_update() -> None:
    trajectories = whole_trajectories()
    controller = AdaptiveKLController(0.3, target=0.01, horizon=50)
    settings = config("reinforce", init_kl_coef=0.3)
    batch, samples, scores = make_batch(trajectories)
    metrics = assign_credit(batch, samples, scores, settings, CreditState(kl_controller=controller))
    fixed_batch, _, _ = make_batch(trajectories)
    assign_credit(fixed_batch, samples, scores, settings, CreditState(kl_controller=FixedKLController(0.3)))
    assert torch.equal(batch["advantages"], fixed_batch["advantages"])
    kl = mean_divergence(batch)
    assert metrics["kl/coefficient"] == 0.3 and metrics["kl/reference"] == pytest.approx(kl, rel=1e-5)
    error = min(max(kl / 0.01 - 1, -0.2), 0.2)
    assert controller.coefficient == pytest.approx(0.3 * (1 + error * len(samples) / 50))
    assert controller.coefficient != 0.3
    again = assign_credit(batch, samples, scores, settings, CreditState(kl_controller=controller))
    assert again["kl/coefficient"] == pytest.approx(0.3 * (1 + error * len(samples) / 50))
    fixed = FixedKLController(0.3)
    assign_credit(batch, samples, scores, settings, CreditState(kl_controller=fixed))
    assert fixed.coefficient == 0.3


def trained(batch: TensorDict) -> Tensor:
    return batch["advantages"][batch["response_mask"]]


def test_advantages_are_whitened_over_the_trained_tokens_and_then_clipped() -> None:
    plain, _, _ = credit(config("reinforce"))
    values = [float(v) for v in trained(plain)]
    mean, variance = fmean(values), stdev(values) ** 2
    white = [(v - mean) / math.sqrt(variance + 1e-8) for v in values]
    whitened, _, _ = credit(config("reinforce", whiten_advantages=True))
    torch.testing.assert_close(trained(whitened), torch.tensor(white), atol=1e-5, rtol=0)
    assert max(map(abs, white)) > 0.9
    clipped, _, _ = credit(config("reinforce", whiten_advantages=True, advantage_clip=0.9))
    bounded = [min(max(v, -0.9), 0.9) for v in white]
    torch.testing.assert_close(trained(clipped), torch.tensor(bounded), atol=1e-5, rtol=0)
    for batch in (plain, whitened, clipped):
        assert (batch["advantages"][~batch["response_mask"]] == 0).all()
        assert batch["advantages"].dtype == torch.float32


@pytest.mark.parametrize("mode", ["trajectory", "step"])
def test_a_trajectory_of_many_samples_counts_once_in_the_mean_of_its_group(mode: str) -> None:
    centred = {}
    for trajectory in play():
        peers = [t.score or 0.0 for t in play() if t.group_id == trajectory.group_id]
        centred[name_of(trajectory)] = (trajectory.score or 0.0) - fmean(peers)
    batch, samples, _ = credit(config("reinforce_plus_plus_baseline"), mode)
    tokens = [centred[s.trajectory] for s in samples for inside in s.response_mask if inside]
    mean, scale = fmean(tokens), math.sqrt(stdev(tokens) ** 2 + 1e-8)
    expect(batch, samples, {(name, turn): (v - mean) / scale for name, v in centred.items() for turn in range(4)})


@pytest.mark.parametrize("mode", ["trajectory", "step"])
def test_greedy_scores_are_subtracted_once_for_a_trajectory_of_many_samples(mode: str) -> None:
    batch, samples, scores = make_batch(play(), mode)
    greedy = {"g1": 0.25, "g2": -0.5}
    settings = config("remax")
    baselines = [greedy[sample.group_id] for sample in samples]
    assign_credit(batch, samples, scores, settings, CreditState(), baselines=baselines)
    expect(
        batch,
        samples,
        {(name_of(t), turn): (t.score or 0.0) - greedy[t.group_id] for t in play() for turn in range(4)},
    )


@pytest.mark.parametrize("estimator", ["reinforce", "grpo", "step_reinforce"])
@pytest.mark.parametrize("mode", ["trajectory", "step"])
def test_a_punishment_for_length_counts_once_for_a_trajectory_of_many_samples(mode: str, estimator: str) -> None:
    buffer = {"enable": True, "len": 8, "penalty_factor": 1.0}
    settings = config(estimator, response_length=8, step_reward_gamma=1.0, overlong_buffer=buffer)
    batch, samples, metrics = credit(settings, mode)
    punished = []
    for trajectory in play():
        punishment = -min(trajectory.completion_tokens / 8, 1.0)
        trajectory.turns[-1].reward += punishment
        trajectory.score = (trajectory.score or 0.0) + punishment
        punished.append(trajectory)
    expected, _, _ = credit(config(estimator, step_reward_gamma=1.0), mode, punished)
    torch.testing.assert_close(batch["advantages"], expected["advantages"], atol=1e-5, rtol=1e-5)
    assert metrics["reward/overlong_penalty"] < -0.3


def test_metrics_describe_the_advantages() -> None:
    batch, _, metrics = credit(config("reinforce"))
    assert metrics["advantages/mean"] == pytest.approx(float(trained(batch).mean()), rel=1e-5)
    assert metrics["advantages/max"] == pytest.approx(float(trained(batch).max()))


def test_an_unknown_estimator_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown advantage 'grpoo'. Did you mean 'grpo'"):
        credit(config("grpoo"))
