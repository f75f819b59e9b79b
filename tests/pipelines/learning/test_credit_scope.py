"""Which samples the policy loss sees and with what weight, against loops; and the objective that reads it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.groups import AlgorithmWarning
from roll.config import AgenticConfig, RLConfig, RLVRConfig
from roll.pipelines.learning.credit import CreditState, assign_credit
from roll.pipelines.learning.loss_scope import correct_sampler
from roll.pipelines.learning.objective import PolicyObjective
from roll.trajectories.batch import collate
from roll.trajectories.samples import Sample

F64 = torch.float64
SCORES = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 1.0, 2.0]
LENGTHS = [2, 4, 3, 5, 6, 1, 2, 2, 3]
GROUPS = ["middling"] * 3 + ["hard"] * 3 + ["easy"] * 3
TRUNCATED = [False, True, False, False, True, False, False, False, False]
KINDS = [AgenticConfig, RLVRConfig]


def make() -> tuple[TensorDict, list[Sample]]:
    samples = []
    for number, length in enumerate(LENGTHS):
        sample = Sample(f"{GROUPS[number]}/{number}", "A", GROUPS[number], 0, 0, (0, 0))
        sample.token_ids = [1] + [5] * length
        sample.response_mask = [0] + [1] * length
        sample.logprobs = [0.0] + [-0.5] * length
        sample.rewards = [0.0] * length + [SCORES[number]]
        sample.turn_index = [-1] + [k % 2 for k in range(length)]
        sample.state_hash = [0] * (1 + length)
        samples.append(sample)
    batch = collate(samples, 0)
    noise = torch.Generator().manual_seed(3)
    shift = 0.8 * torch.randn(batch["response_mask"].shape, generator=noise, dtype=F64)
    batch["old_log_probs"] = (batch["sampler_log_probs"].double() + shift) * batch["response_mask"]
    return batch, samples


def credit(config: RLConfig, truncated: list[bool] | None = TRUNCATED) -> tuple[TensorDict, dict[str, float]]:
    batch, samples = make()
    return batch, assign_credit(batch, samples, SCORES, config, CreditState.from_config(config), truncated=truncated)


def rows_of(mask: Tensor) -> list[int]:
    return [row for row in range(len(mask)) if mask[row].any()]


@pytest.mark.parametrize("kind", KINDS)
def test_responses_that_were_cut_off_leave_the_loss_and_stay_in_the_groups(kind: type[RLConfig]) -> None:
    batch, metrics = credit(kind(adv_estimator="rloo", max_len_mask=True))
    assert rows_of(batch["loss_mask"]) == [0, 2, 3, 5, 6, 7, 8]
    assert metrics["batch/masked_samples"] == pytest.approx(2 / 9)
    unmasked, _ = credit(kind(adv_estimator="rloo"))
    assert torch.equal(batch["advantages"], unmasked["advantages"])
    assert torch.equal(batch["response_mask"], unmasked["response_mask"])
    assert "loss_mask" not in unmasked.keys()  # noqa: SIM118 - a TensorDict iterates over rows


def test_a_mask_by_length_must_know_what_was_cut_off() -> None:
    with pytest.raises(ValueError, match="pass `truncated`"):
        credit(RLVRConfig(max_len_mask=True), truncated=None)


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [(0.1, 0.95, [0, 1, 2]), (0.0, 0.95, [0, 1, 2, 6, 7, 8]), (0.1, 1.0, [0, 1, 2, 3, 4, 5]), (0.0, 1.0, range(9))],
)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_outside_the_difficulty_thresholds_leave_the_loss(
    kind: type[RLConfig], low: float, high: float, kept: Any
) -> None:
    # Difficulty is 2/3 for "middling", 1 for "hard", 0 for "easy": scores above 1 count as 1.
    thresholds = {"difficulty_low_threshold": low, "difficulty_high_threshold": high}
    batch, _ = credit(kind(adv_estimator="reinforce", difficulty_mask=True, **thresholds))
    assert rows_of(batch["loss_mask"]) == list(kept)


def test_a_loss_without_any_sample_says_why() -> None:
    with pytest.warns(AlgorithmWarning, match="max_len_mask and difficulty_mask leave no sample"):
        credit(RLVRConfig(adv_estimator="reinforce", max_len_mask=True), truncated=[True] * 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("by_difficulty", "by_length"), [(True, False), (False, True), (True, True)])
def test_samples_are_weighed_by_difficulty_and_length(
    kind: type[RLConfig], by_difficulty: bool, by_length: bool
) -> None:
    hard = {"middling": 2 / 3, "hard": 1.0, "easy": 0.0}
    weights = []
    for group, length in zip(GROUPS, LENGTHS, strict=True):
        weight = 0.5 + hard[group] if by_difficulty else 1.0
        weights.append(weight * (1.5 - (length - 1) / 5 if by_length else 1.0))
    mean = sum(weights) / len(weights)
    batch, _ = credit(kind(difficulty_loss_weight=by_difficulty, length_loss_weight=by_length))
    assert batch["sample_weights"].tolist() == pytest.approx([weight / mean for weight in weights], rel=1e-6)


def corrected(batch: TensorDict, mode: str, level: str, cap: float, low: float, high: float) -> list[list[float]]:
    """The weights from their definition."""
    result = []
    for row in range(len(batch)):
        tokens = [t for t in range(batch["response_mask"].shape[1]) if batch["response_mask"][row, t]]
        log = {t: float(batch["old_log_probs"][row, t] - batch["sampler_log_probs"][row, t]) for t in tokens}
        weights = [0.0] * batch["response_mask"].shape[1]
        for t in tokens:
            turn = int(batch["turn_index"][row, t])
            peers = {
                "token": [t],
                "segment": [u for u in tokens if int(batch["turn_index"][row, u]) == turn],
            }.get(level, tokens)
            exponent = sum(log[u] for u in peers)
            if level == "geometric" or mode == "geometric_sequence":
                exponent = sum(log.values()) / len(tokens)
            ratio = math.exp(exponent)
            weights[t] = min(ratio, cap) if mode == "tis" else float(low <= ratio <= high)
        result.append(weights)
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", ["token", "segment", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["tis", "mask", "geometric_sequence"])
def test_the_sampler_is_corrected_by_mode_and_level(kind: type[RLConfig], mode: str, level: str) -> None:
    options = {"mode": mode, "level": level, "cap": 1.4, "low": 0.7, "high": 1.5}
    batch, _ = make()
    metrics = correct_sampler(batch, kind(sampler_correction=options))
    expected = torch.tensor(corrected(batch, mode, level, 1.4, 0.7, 1.5), dtype=F64)
    torch.testing.assert_close(batch["sampler_weights"], expected, rtol=1e-9, atol=1e-12)
    assert 0 < metrics["sampler/corrected_fraction"] < 1


def test_the_mismatch_is_reported_when_nothing_is_corrected() -> None:
    batch, _ = make()
    metrics = correct_sampler(batch, RLVRConfig())
    gap = (batch["old_log_probs"] - batch["sampler_log_probs"])[batch["response_mask"]]
    assert metrics["sampler/ratio_mean"] == pytest.approx(float(gap.exp().mean()))
    assert metrics["sampler/log_prob_difference_max"] == pytest.approx(float(gap.abs().max()))
    assert "sampler_weights" not in batch.keys()  # noqa: SIM118 - a TensorDict iterates over rows
    assert correct_sampler(batch, RLVRConfig(old_log_probs="sampler")) == {}


def loop_over_tokens(batch: TensorDict, log_probs: Tensor, mode: str) -> float:
    """PPO in float64, with the mask and both weights, aggregated by definition."""
    mask = batch["loss_mask"]
    tokens, sequences, total = int(mask.sum()), int(mask.any(1).sum()), 0.0
    for row in range(len(batch)):
        inside = [t for t in range(mask.shape[1]) if mask[row, t]]
        for t in inside:
            ratio = math.exp(float(log_probs[row, t] - batch["old_log_probs"][row, t]))
            advantage = float(batch["advantages"][row, t])
            loss = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.2))
            loss *= float(batch["sample_weights"][row]) * float(batch["sampler_weights"][row, t])
            total += loss / (tokens if mode == "token-mean" else len(inside) * sequences)
    return total


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_policy_term_obeys_mask_and_weights_however_the_batch_is_split(mode: str) -> None:
    config = RLVRConfig(
        adv_estimator="rloo",
        max_len_mask=True,
        difficulty_mask=True,
        difficulty_low_threshold=0.0,
        difficulty_loss_weight=True,
        length_loss_weight=True,
        sampler_correction={"mode": "tis", "cap": 1.3},
        loss_agg_mode=mode,
    )
    batch, _ = credit(config)
    correct_sampler(batch, config)
    assert rows_of(batch["loss_mask"]) == [0, 2, 6, 7, 8]
    noise = torch.Generator().manual_seed(9)
    log_probs = (
        batch["old_log_probs"] + 0.3 * torch.randn(batch["old_log_probs"].shape, generator=noise, dtype=F64)
    ).requires_grad_()
    objective = PolicyObjective.from_config(config)
    totals = objective.totals(batch)
    assert (totals.tokens, totals.sequences) == (12, 5)
    whole, metrics = objective(log_probs, torch.zeros_like(log_probs), batch, totals)
    assert float(whole.detach()) == pytest.approx(loop_over_tokens(batch, log_probs.detach(), mode), rel=1e-6)
    parts = [
        objective(log_probs[r], torch.zeros_like(log_probs[r]), batch[r], totals)[0] for r in (slice(0, 4), slice(4, 9))
    ]
    assert float(sum(parts).detach()) == pytest.approx(float(whole.detach()), rel=1e-12)
    whole.backward()
    assert log_probs.grad is not None and rows_of(log_probs.grad != 0) == [0, 2, 6, 7, 8]
    assert float(metrics["loss/policy"]) == pytest.approx(float(whole.detach()))


def test_rows_that_the_loss_does_not_see_are_not_computed() -> None:
    batch, _ = credit(RLVRConfig(adv_estimator="reinforce", max_len_mask=True))
    rows = PolicyObjective(entropy_weight=0.1).contributing_rows(batch)
    assert rows is not None and rows.tolist() == [not cut for cut in TRUNCATED]
    assert PolicyObjective(policy_loss="kimi15").contributing_rows(credit(RLVRConfig())[0]) is None


def test_weights_do_not_reach_the_other_terms() -> None:
    batch, _ = credit(RLVRConfig(adv_estimator="reinforce", length_loss_weight=True))
    batch["ref_log_probs"] = batch["old_log_probs"] - 0.1
    objective = PolicyObjective(
        policy_weight=0.0, entropy_weight=0.2, kl_weight=0.3, kl_kind="kl", supervised_weight=0.4
    )
    log_probs, entropy = batch["old_log_probs"] - 0.2, torch.full_like(batch["old_log_probs"], 0.7)
    value, _ = objective(log_probs, entropy, batch, objective.totals(batch))
    mask = batch["response_mask"]
    positive = mask & batch["positive"].unsqueeze(1)
    nll = float(-log_probs[positive].sum()) / int(mask.sum())
    assert float(value) == pytest.approx(-0.2 * 0.7 + 0.3 * -0.1 + 0.4 * nll, rel=1e-9)
