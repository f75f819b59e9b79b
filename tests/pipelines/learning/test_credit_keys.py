"""Every key that changes rewards, against numbers computed by hand: one sample per trajectory, two groups."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from roll.algorithms.groups import AlgorithmWarning
from roll.config import AgenticConfig, RLConfig, RLVRConfig
from roll.pipelines.learning.credit import CreditState, assign_credit
from roll.trajectories.batch import collate
from roll.trajectories.samples import Sample

SCORES = [1.0, 0.0, 3.0, -2.0, 0.5, 0.5]
LENGTHS = [2, 4, 3, 5, 6, 1]
GROUPS = ["g", "g", "g", "h", "h", "h"]
KINDS = [AgenticConfig, RLVRConfig]


def make(scores: list[float] = SCORES, lengths: list[int] = LENGTHS) -> tuple[TensorDict, list[Sample]]:
    """Single-turn samples behind a prompt of two tokens; the score is the reward of the last response token."""
    samples = []
    for number, (score, length) in enumerate(zip(scores, lengths, strict=True)):
        sample = Sample(f"{GROUPS[number]}/{number}", "A", GROUPS[number], 0, 0, (0, 0))
        sample.token_ids = [1, 1] + [5] * length
        sample.response_mask = [0, 0] + [1] * length
        sample.logprobs = [0.0, 0.0] + [-0.5] * length
        sample.rewards = [0.0] * (1 + length) + [score]
        sample.turn_index = [-1, -1] + [0] * length
        sample.state_hash = [0, 0] + [7] * length
        samples.append(sample)
    batch = collate(samples, 0)
    batch["old_log_probs"] = batch["sampler_log_probs"].clone()
    return batch, samples


def credit(config: RLConfig, state: CreditState | None = None, **given: Any) -> tuple[TensorDict, dict[str, float]]:
    scores = given.pop("scores", SCORES)
    batch, samples = make(scores, given.pop("lengths", LENGTHS))
    state = CreditState.from_config(config) if state is None else state
    return batch, assign_credit(batch, samples, scores, config, state, **given)


def at_last_token(batch: TensorDict) -> list[float]:
    """The advantage of the last response token; with ``reinforce`` the score that the estimator was given."""
    return [float(batch["advantages"][row, int(batch["lengths"][row]) - 1]) for row in range(len(batch))]


def expect(batch: TensorDict, values: list[float]) -> None:
    assert at_last_token(batch) == pytest.approx(values, abs=1e-5)
    first = [float(batch["advantages"][row, 2]) for row in range(len(batch))]
    assert first == pytest.approx(values, abs=1e-5)  # undiscounted: every token of the response gets the score
    assert (batch["advantages"][~batch["response_mask"]] == 0).all()


def of_group(number: int, values: list[float] = SCORES) -> list[float]:
    return [value for value, group in zip(values, GROUPS, strict=True) if group == GROUPS[number]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", ["both", "reward_shift", "reward_scale"])
@pytest.mark.parametrize("norm", ["batch", "group", "running"])
def test_scores_are_normalised_by_reward_norm(kind: type[RLConfig], norm: str, half: str) -> None:
    options: dict[str, Any] = {"reward_norm": norm, **({half: True} if half != "both" else {})}
    expected = []
    for number, score in enumerate(SCORES):
        peers = of_group(number) if norm == "group" else SCORES
        value = score if half == "reward_scale" else score - fmean(peers)
        expected.append(value if half == "reward_shift" else value / (stdev(peers) + 1e-6))
    batch, _ = credit(kind(adv_estimator="reinforce", **options))
    expect(batch, expected)
    assert batch["positive"].tolist() == [value > 0 for value in expected]


def test_running_moments_cover_every_batch_so_far_and_survive_a_checkpoint() -> None:
    config = RLVRConfig(adv_estimator="reinforce", use_reward_scaling=True, use_reward_norm=True)
    state = CreditState.from_config(config)
    credit(config, state)
    resumed = CreditState.from_config(config)
    resumed.load_state_dict(state.state_dict())
    later = [4.0, 8.0, 4.0, 8.0, 6.0, 6.0]
    everything = SCORES + later
    for each in (state, resumed):
        batch, _ = credit(config, each, scores=later)
        expect(batch, [(score - fmean(everything)) / (stdev(everything) + 1e-6) for score in later])


def test_use_reward_scaling_alone_divides_by_the_running_deviation() -> None:
    batch, _ = credit(AgenticConfig(adv_estimator="reinforce", use_reward_scaling=True))
    expect(batch, [score / (stdev(SCORES) + 1e-6) for score in SCORES])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_clipped_before_they_are_normalised(kind: type[RLConfig]) -> None:
    clipped = [min(max(score, -1.0), 1.0) for score in SCORES]
    batch, metrics = credit(kind(adv_estimator="reinforce", reward_clip=1.0))
    expect(batch, clipped)
    assert metrics["reward/clip_fraction"] == pytest.approx(2 / 6)
    batch, _ = credit(kind(adv_estimator="reinforce", reward_clip=1.0, reward_norm="batch"))
    expect(batch, [(value - fmean(clipped)) / (stdev(clipped) + 1e-6) for value in clipped])


def test_what_a_clip_takes_away_counts_at_the_last_token_of_a_turn_estimator() -> None:
    clipped = [min(max(score, -1.0), 1.0) for score in SCORES]
    batch, _ = credit(AgenticConfig(adv_estimator="step_reinforce", reward_clip=1.0))
    expect(batch, [value - fmean(of_group(number, clipped)) for number, value in enumerate(clipped)])


def length_bonus(number: int) -> float:
    lengths = of_group(number, [float(length) for length in LENGTHS])
    bonus = 0.5 - (LENGTHS[number] - min(lengths)) / (max(lengths) - min(lengths))
    return bonus if SCORES[number] > 0 else min(bonus, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_short_positive_responses_earn_a_bonus(kind: type[RLConfig]) -> None:
    bonus = [length_bonus(number) for number in range(6)]
    assert bonus == pytest.approx([0.5, -0.5, 0.0, -0.3, -0.5, 0.5])
    batch, metrics = credit(kind(adv_estimator="reinforce", add_len_reward=True))
    expect(batch, [score + extra for score, extra in zip(SCORES, bonus, strict=True)])
    assert metrics["reward/length_reward"] == pytest.approx(fmean(bonus))


def test_a_punished_response_is_still_a_positive_one_for_the_bonus() -> None:
    buffer = {"enable": True, "len": 4, "penalty_factor": 9.0}
    options: dict[str, Any] = {"adv_estimator": "reinforce", "response_length": 6, "overlong_buffer": buffer}
    short = [2, 6, 3, 5, 6, 4]  # the last is the shortest of its group, and punished below 0
    plain, _ = credit(AgenticConfig(**options), lengths=short)
    both, _ = credit(AgenticConfig(**options, add_len_reward=True), lengths=short)
    assert at_last_token(plain)[5] == pytest.approx(0.5 - 4.5)
    assert at_last_token(both)[5] == pytest.approx(0.5 - 4.5 + 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_responses_near_the_limit_are_punished(kind: type[RLConfig]) -> None:
    buffer = {"enable": True, "len": 4, "penalty_factor": 2.0}
    config = kind(adv_estimator="reinforce", response_length=6, sequence_length=20, overlong_buffer=buffer)
    punished = [min(-min(length - (6 - 4), 4) / 4 * 2.0, 0.0) for length in LENGTHS]
    assert punished == [0.0, -1.0, -0.5, -1.5, -2.0, 0.0]
    batch, metrics = credit(config)
    expect(batch, [score + penalty for score, penalty in zip(SCORES, punished, strict=True)])
    assert metrics["reward/overlong_penalty"] == pytest.approx(fmean(punished))
    off, _ = credit(kind(adv_estimator="reinforce", overlong_buffer={**buffer, "enable": False}))
    expect(off, SCORES)


def test_the_limit_of_one_response_is_also_the_samplers() -> None:
    options: dict[str, Any] = {
        "adv_estimator": "reinforce",
        "overlong_buffer": {"enable": True, "len": 4},
        "actor_infer": {"generating_args": {"max_new_tokens": 6}},
    }
    batch, _ = credit(RLVRConfig(**options))
    assert at_last_token(batch)[4] == pytest.approx(SCORES[4] - 1.0)
    batch, _ = credit(AgenticConfig(**options))  # of several turns, each may have six tokens
    assert at_last_token(batch)[4] == pytest.approx(SCORES[4])


def whiten(values: list[float]) -> list[float]:
    return [(value - fmean(values)) / (stdev(values) ** 2 + 1e-8) ** 0.5 for value in values]


@pytest.mark.parametrize("kind", KINDS)
def test_token_rewards_are_whitened_over_the_tokens(kind: type[RLConfig]) -> None:
    tokens = [r for score, length in zip(SCORES, LENGTHS, strict=True) for r in [0.0] * (length - 1) + [score]]
    white = iter(whiten(tokens))
    rows = [[next(white) for _ in range(length)] for length in LENGTHS]
    batch, _ = credit(kind(adv_estimator="reinforce", whiten_rewards=True))
    for row, values in enumerate(rows):
        returns = [sum(values[k:]) for k in range(len(values))]
        assert batch["advantages"][row, 2 : 2 + len(values)].tolist() == pytest.approx(returns, abs=1e-5)


def test_scores_are_whitened_where_the_estimator_reads_scores_and_turns_where_it_reads_turns() -> None:
    white = whiten(SCORES)
    for estimator in ("rloo", "step_reinforce"):
        batch, _ = credit(AgenticConfig(adv_estimator=estimator, whiten_rewards=True))
        factor = 3 / 2 if estimator == "rloo" else 1.0
        expect(batch, [factor * (value - fmean(of_group(number, white))) for number, value in enumerate(white)])


@pytest.mark.parametrize("estimator", ["grpo", "step_wise_grpo"])
def test_dr_grpo_only_subtracts_the_mean_of_the_group(estimator: str) -> None:
    batch, _ = credit(AgenticConfig(adv_estimator=estimator, norm_adv_by_std_in_grpo=False))
    expect(batch, [score - fmean(of_group(number)) for number, score in enumerate(SCORES)])


def test_options_of_the_estimator_are_passed_on() -> None:
    batch, _ = credit(RLVRConfig(adv_estimator="grpo", advantage_options={"ddof": 0, "eps": 0.5}))
    expected = []
    for number, score in enumerate(SCORES):
        peers = of_group(number)
        deviation = fmean((peer - fmean(peers)) ** 2 for peer in peers) ** 0.5
        expected.append((score - fmean(peers)) / (deviation + 0.5))
    expect(batch, expected)


def test_remax_subtracts_the_score_of_the_greedy_response() -> None:
    baselines = [0.5, 0.5, 0.5, -1.0, -1.0, -1.0]
    batch, _ = credit(RLVRConfig(adv_estimator="remax"), baselines=baselines)
    expect(batch, [score - greedy for score, greedy in zip(SCORES, baselines, strict=True)])
    batch, _ = credit(RLVRConfig(adv_estimator="remax", reward_clip=0.75), baselines=baselines)
    clipped = [[min(max(value, -0.75), 0.75) for value in values] for values in (SCORES, baselines)]
    expect(batch, [score - greedy for score, greedy in zip(*clipped, strict=True)])
    with pytest.raises(ValueError, match="'remax' needs baselines"):
        credit(RLVRConfig(adv_estimator="remax"))


def test_gae_reads_values_and_writes_returns() -> None:
    config = RLVRConfig(adv_estimator="gae", gamma=0.9, lambd=0.8)
    batch, samples = make()
    noise = torch.Generator().manual_seed(0)
    batch["values"] = torch.randn(batch["response_mask"].shape, generator=noise)
    assign_credit(batch, samples, SCORES, config, CreditState.from_config(config))
    for row, (score, length) in enumerate(zip(SCORES, LENGTHS, strict=True)):
        values = [float(v) for v in batch["values"][row, 2 : 2 + length]] + [0.0]
        rewards = [0.0] * (length - 1) + [score]
        advantage = 0.0
        for k in reversed(range(length)):
            advantage = rewards[k] + 0.9 * values[k + 1] - values[k] + 0.9 * 0.8 * advantage
            assert float(batch["advantages"][row, 2 + k]) == pytest.approx(advantage, abs=1e-5)
            assert float(batch["returns"][row, 2 + k]) == pytest.approx(advantage + values[k], abs=1e-5)
    assert (batch["returns"][~batch["response_mask"]] == 0).all()


def test_without_values_no_returns_are_written() -> None:
    batch, _ = credit(RLVRConfig(adv_estimator="reinforce"))
    assert "returns" not in batch.keys()  # noqa: SIM118 - a TensorDict iterates over rows


def test_the_share_of_groups_that_teach_nothing_is_reported() -> None:
    _, metrics = credit(RLVRConfig(adv_estimator="grpo"), scores=[1.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    assert metrics["reward/zero_variance_groups"] == 0.5


@pytest.mark.parametrize(
    ("scores", "cause"),
    [([0.0] * 6, "every score is 0: tasks too easy or too hard"), ([1.0] * 3 + [0.0] * 3, "no sampling noise")],
)
def test_a_batch_without_advantages_says_why(scores: list[float], cause: str) -> None:
    with pytest.warns(AlgorithmWarning, match=f"every advantage of the batch is zero.*{cause}"):
        credit(RLVRConfig(adv_estimator="grpo"), scores=scores)


def test_the_state_of_a_run_holds_the_kl_controller() -> None:
    config = RLVRConfig(init_kl_coef=0.1, target_kl=0.5, kl_horizon=10, reference={})
    state = CreditState.from_config(config)
    assert state.kl_controller is not None
    state.kl_controller.update(5.0, 5)
    resumed = CreditState.from_config(config)
    resumed.load_state_dict(state.state_dict())
    assert resumed.kl_controller is not None and resumed.kl_controller.coefficient == pytest.approx(0.1 * 1.1)
    assert CreditState.from_config(RLVRConfig()).kl_controller is None
