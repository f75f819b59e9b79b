"""KL, aggregation, rewards, sampler correction, filters and registry: one behaviour per test."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from roll.algorithms import advantages, filters, losses, off_policy, reward_shaping
from roll.algorithms.aggregation import aggregate
from roll.algorithms.groups import AlgorithmWarning
from roll.algorithms.masking import marked_rows
from roll.algorithms.registry import (
    ADVANTAGES,
    LOSSES,
    register_advantage,
    register_loss,
    unused_options,
    used_options,
)
from roll.common.registry import UnknownNameError

F64 = torch.float64


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 6) / 3),
        ("seq-mean-token-sum", (3 + 6) / 2),
        ("seq-mean-token-mean", (1.5 + 6) / 2),
        ("seq-mean-token-sum-norm", (3 / 4 + 6 / 4) / 2),
    ],
)
def test_aggregation_modes(mode: str, expected: float) -> None:
    loss = torch.tensor([[1.0, 2.0, 50.0], [50.0, 6.0, 50.0], [50.0] * 3])
    mask = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    assert float(aggregate(loss, mask, mode, max_length=4)) == pytest.approx(expected)
    assert float(aggregate(loss, torch.zeros(3, 3), mode, max_length=4)) == 0.0


def test_aggregation_refuses_what_it_cannot_know() -> None:
    with pytest.raises(ValueError, match="max_length"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean")


@pytest.mark.parametrize("grouping", ["state", "traj_group_id", "inductive", "tags", "batch"])
@pytest.mark.parametrize("method", ["identity", "mean", "mean_std"])
def test_normalize_equals_a_loop(grouping: str, method: str) -> None:
    scores = torch.tensor([1.0, 2.0, 4.0, 4.0, 8.0, 0.0], dtype=F64)
    groups, tags = ["a", "b", "a", "c", "b", "c"], ["x", "x", "x", "y", "x", "y"]
    key = {"state": groups, "traj_group_id": groups, "batch": ["_"] * 6}.get(grouping, tags)
    expected = []
    for i in range(6):
        peers = torch.stack([scores[j] for j in range(6) if key[j] == key[i]])
        centred = scores[i] - peers.mean()
        expected.append({"identity": scores[i], "mean": centred, "mean_std": centred / (peers.std() + 1e-6)}[method])
    torch.testing.assert_close(
        reward_shaping.normalize(scores, groups, tags, grouping=grouping, method=method), torch.stack(expected)
    )


def test_normalize_without_variance_gives_zeros_and_names_what_is_missing() -> None:
    assert (reward_shaping.normalize(torch.full((3,), 0.1), grouping="batch", method="mean_std") == 0).all()
    with pytest.raises(ValueError, match="needs tags"):
        reward_shaping.normalize(torch.ones(2), grouping="inductive", method="mean")
    with pytest.raises(ValueError, match="asym_clip"):
        reward_shaping.normalize(torch.ones(2), method="std")


def test_score_shaping_keys() -> None:
    s = torch.tensor([0.0, 2.0, 10.0], dtype=F64)
    clipped = torch.tensor([0.0, 2.0, 4.0], dtype=F64)
    shape = reward_shaping.shape_scores
    torch.testing.assert_close(shape(s, reward_clip=4.0), clipped)
    torch.testing.assert_close(shape(s, reward_norm="batch", reward_clip=4.0), (clipped - 2) / (2 + 1e-6))
    torch.testing.assert_close(shape(s, reward_norm="batch", reward_shift=True), s - 4)
    torch.testing.assert_close(shape(s, reward_norm="batch", reward_scale=True), s / (s.std() + 1e-6))
    torch.testing.assert_close(shape(s, ["a", "a", "b"], reward_norm="group", reward_shift=True)[2:], s[2:] - 10)
    moments = reward_shaping.RunningMoments()
    torch.testing.assert_close(shape(s, use_reward_scaling=True, running=moments), s / (s.std() + 1e-6))
    with pytest.raises(ValueError, match="exclude each other"):
        shape(s, reward_norm="batch", reward_shift=True, reward_scale=True)


def test_running_scaling_ignores_the_halves_of_reward_norm() -> None:
    s = torch.tensor([0.0, 2.0, 10.0], dtype=F64)
    scaled = reward_shaping.shape_scores(
        s, use_reward_scaling=True, reward_shift=True, running=reward_shaping.RunningMoments()
    )
    torch.testing.assert_close(scaled, s / (s.std() + 1e-6))


@pytest.mark.parametrize(
    ("name", "scores", "groups", "mask", "cause"),
    [
        ("grpo", [0.0, 0.0, 0.0, 0.0], "aabb", 1, "every score is 0: tasks too easy or too hard"),
        ("grpo", [1.0, 1.0, 0.0, 0.0], "aabb", 1, "the scores of every group are equal"),
        ("rloo", [1.0, 2.0, 3.0, 4.0], "abcd", 1, "every group has one sample"),
        ("grpo", [1.0, 2.0, 3.0, 4.0], "aabb", 0, "no token is trained"),
        ("remax", [1.0, 2.0, 3.0, 4.0], "aabb", 1, "the rewards are all zero or equal"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*groups have one sample")
def test_a_batch_without_advantages_names_the_likely_cause(
    name: str, scores: list[float], groups: str, mask: int, cause: str
) -> None:
    tensor = torch.tensor(scores)
    inputs = advantages.AdvantageInputs(
        torch.full((4, 2), mask), scores=tensor, group_ids=groups, baselines=tensor.clone()
    )
    with pytest.warns(AlgorithmWarning, match=f"{name}: every advantage of the batch is zero.*{cause}"):
        advantages.compute(name, inputs)


def test_pieces_of_a_trajectory_count_once_in_the_group_of_reinforce_plus_plus() -> None:
    scores, mask = torch.tensor([4.0, 4.0, 4.0, 1.0], dtype=F64), torch.ones(4, 1)
    pieces = advantages.token.reinforce_plus_plus_baseline(scores, "gggg", mask, "aaab")
    centred = torch.tensor([1.5, 1.5, 1.5, -1.5], dtype=F64)
    torch.testing.assert_close(pieces[:, 0], (centred - centred.mean()) / centred.std())


def test_overlong_penalty_grows_over_the_buffer() -> None:
    lengths = torch.tensor([10, 80, 90, 100, 120])
    assert reward_shaping.overlong_penalty(lengths, 100, 20, 2.0).tolist() == [0, 0, -1, -2, -2]


def test_scores_go_to_the_last_trained_token() -> None:
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    placed = reward_shaping.place_on_last_token(torch.tensor([5.0, 6.0, 7.0]), mask)
    assert placed.tolist() == [[0, 0, 5, 0], [0, 0, 0, 0], [7, 0, 0, 0]]


def test_length_reward_and_sample_weights() -> None:
    right = torch.tensor([True, False, False, True])
    result = reward_shaping.length_reward(torch.tensor([10, 20, 10, 7]), right, "aaab")
    assert result.tolist() == [0.5, -0.5, 0.0, 0.0]
    weights = reward_shaping.sample_weights(difficulty=torch.tensor([0.0, 1.0]), lengths=torch.tensor([5, 5]))
    assert weights.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("level", ["token", "segment", "sequence", "geometric"])
@pytest.mark.parametrize("mode", [None, "tis", "mask", "geometric_sequence"])
def test_sampler_correction_equals_a_loop(level: str, mode: str | None) -> None:
    noise = torch.Generator().manual_seed(1)
    old, sampler = -torch.rand(2, 5, 8, generator=noise, dtype=F64)
    mask, turn_ids = torch.rand(5, 8, generator=noise) > 0.3, torch.arange(8).expand(5, 8) // 3
    weights, metrics = off_policy.correction(
        old, sampler, mask, mode=mode, level=level, cap=1.2, low=0.8, high=1.3, turn_ids=turn_ids
    )
    used = "geometric" if mode == "geometric_sequence" else level
    touched = 0
    for i, t in mask.nonzero().tolist():
        peers = [u for u in range(8) if mask[i, u] and (used != "segment" or turn_ids[i, u] == turn_ids[i, t])]
        peers = [t] if used == "token" else peers
        log = math.fsum(float(old[i, u] - sampler[i, u]) for u in peers) / (len(peers) if used == "geometric" else 1)
        r = math.exp(log)
        outside = r > 1.2 if mode == "tis" else not 0.8 <= r <= 1.3
        touched += mode is not None and outside
        expected = 1.0 if mode is None else min(r, 1.2) if mode == "tis" else float(not outside)
        assert float(weights[i, t]) == pytest.approx(expected)
    assert (weights[~mask] == 0).all()
    assert float(metrics["sampler/corrected_fraction"]) == pytest.approx(touched / int(mask.sum()))
    assert float(metrics["sampler/ratio_mean"]) == pytest.approx(float((old - sampler).exp()[mask].mean()))


def test_masks_by_length_and_difficulty() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    kept = filters.max_length_mask(mask, 3, finished=torch.tensor([False, False, True]))
    assert kept.sum(1).tolist() == [0, 2, 3]
    assert filters.difficulty_mask(mask, torch.tensor([0.1, 0.5, 0.9]), 0.2, 0.8).sum(1).tolist() == [0, 2, 0]


def test_group_filters_count_what_must_be_refilled() -> None:
    scores = torch.tensor([0.1, 1.0, 0.1, 0.0, 0.1, 1.0])
    found = filters.zero_variance_filter(scores, ["a", "b", "a", "b", "a", "c"])
    assert found.keep.tolist() == [False, True, False, True, False, False]
    assert (found.groups, found.kept, found.refill(), found.refill(1)) == (3, 1, 2, 0)
    easy = filters.mean_std_filter(scores, ["a", "b", "a", "b", "a", "c"], maximum_mean=0.9)
    assert easy.keep.tolist() == [True] * 5 + [False]


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    inputs = advantages.AdvantageInputs(torch.ones(1, 1))
    with pytest.raises(UnknownNameError, match="Did you mean 'grpo'.*gigpo, gpg, grpo"):
        advantages.compute("grop", inputs)
    with pytest.raises(ValueError, match="'grpo' needs group_ids, scores"):
        advantages.compute("grpo", inputs)
    with pytest.raises(ValueError, match="rloo does not read gamma"):
        advantages.compute("rloo", inputs, {"gamma": 1.0})


def test_ignored_options_are_reported() -> None:
    given = {"gamma": 0.9, "lambd": 0.8, "scale": "std"}
    assert unused_options("gae", given) == ["scale"]
    assert used_options("gae", given) == {"gamma": 0.9, "lambd": 0.8}
    assert unused_options("vanilla", ["clip_low"], kind="loss") == ["clip_low"]


def test_a_user_adds_a_loss_with_a_tensor_of_their_own() -> None:
    @register_loss("weighted_for_test", needs=("weights",))
    def weighted(log_probs, old_log_probs, advantages, mask, weights, *, strength=1.0):  # type: ignore[no-untyped-def]
        return -strength * weights * log_probs, {}

    ones = torch.ones(1, 2)
    try:
        assert LOSSES.get("weighted_for_test").options == {"strength": 1.0}
        loss, _ = losses.compute("weighted_for_test", ones, ones, ones, ones, {"strength": 2.0}, weights=3 * ones)
        assert loss.tolist() == [[-6.0, -6.0]]
        with pytest.raises(ValueError, match="needs weights"):
            losses.compute("weighted_for_test", ones, ones, ones, ones)
        with pytest.raises(ValueError, match="already registered"):
            register_loss("ppo")(weighted)
    finally:
        LOSSES.remove("weighted_for_test")


MODULE = """
from roll.algorithms.registry import register_advantage

@register_advantage("twice_for_test", needs=("scores",))
def twice(inputs, *, factor=2.0):
    return factor * inputs.scores
"""


def run_file(path: Path, name: str) -> None:
    """Execute a file as a module called ``name``, as ``python`` does with a script and ``import`` with a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_script_that_is_imported_again_under_another_name_registers_once_more(tmp_path: Path) -> None:
    script, other = tmp_path / "mine.py", tmp_path / "other.py"
    script.write_text(MODULE)
    other.write_text(MODULE)
    try:
        run_file(script, "__main__of_test")
        run_file(script, "mine")
        assert ADVANTAGES.get("twice_for_test").function.__module__ == "mine"
        with pytest.raises(ValueError, match="'twice_for_test' is already registered by mine.twice"):
            run_file(other, "other")
    finally:
        ADVANTAGES.remove("twice_for_test")


def test_hidden_options_are_refused_at_registration() -> None:
    with pytest.raises(ValueError, match="spell the options out"):

        @register_advantage("hidden_for_test")
        def hidden(inputs, **options):  # type: ignore[no-untyped-def]
            return inputs.scores


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64])
@pytest.mark.parametrize("width", [0, 1, 37])
def test_rows_that_are_marked_are_those_with_any_mark(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    mask = (torch.rand(64, width, generator=generator) < 0.03).to(dtype)
    found = marked_rows(mask)
    assert found.dtype == torch.bool and found.tolist() == [any(row) for row in mask.tolist()]
