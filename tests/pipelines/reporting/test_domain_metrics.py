"""Accuracies of graded responses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.pipelines.reporting.domain_metrics import domain_metrics, evaluation_metrics, pass_at_k
from roll.pipelines.reporting.metrics import success_in_environments
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=7), k=st.integers(1, 7))
def test_pass_at_k_is_the_share_of_all_subsets_of_k_responses_with_a_correct_one(outcomes: list[bool], k: int) -> None:
    if k > len(outcomes):
        with pytest.raises(ValueError, match=f"pass@{k}"):
            pass_at_k(len(outcomes), sum(outcomes), k)
        return
    subsets = list(itertools.combinations(outcomes, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(expected)


def group(tag: str, outcomes: list[bool | None], domain: str = "math") -> TrajectoryGroup:
    members = [
        Trajectory(
            tag,
            f"val-{tag}",
            episode,
            0,
            turns=[Turn([1], [2, 3], [-1.0, -1.0])],
            status=Status.ERROR_REWARD if outcome is None else Status.COMPLETED,
            score=None if outcome is None else float(outcome),
            metrics={} if outcome is None else {"success": float(outcome)},
        )
        for episode, outcome in enumerate(outcomes)
    ]
    return TrajectoryGroup(f"val-{tag}", tag, members, domain=domain)


def test_an_evaluation_has_accuracies_of_all_and_of_every_tag() -> None:
    metrics = evaluation_metrics([group("easy", [True] * 4), group("hard", [True, False, False, False])])
    assert metrics["mean@4"] == pytest.approx(5 / 8)
    assert metrics["easy/mean@4"] == 1.0 and metrics["hard/mean@4"] == 0.25
    assert metrics["hard/pass@1"] == 0.25 and metrics["hard/pass@2"] == 0.5 and metrics["hard/pass@4"] == 1.0
    assert metrics["success"] == pytest.approx(5 / 8) and metrics["hard/success"] == 0.25


def test_responses_that_could_not_be_graded_count_as_errors_and_not_as_wrong() -> None:
    metrics = evaluation_metrics([group("a", [True, None, True]), group("b", [True, True, False])])
    assert metrics["errors"] == 1 and metrics["a/success"] == 1.0
    assert metrics["mean@3"] == pytest.approx(2 / 3), "a name does not change when a grading fails"
    assert metrics["success"] == pytest.approx(4 / 5)


def test_failures_of_a_verifier_are_averaged_over_all_responses() -> None:
    broken = group("a", [True, None, None, True])
    for member in broken.trajectories:
        member.metrics["math/error"] = float(member.status is Status.ERROR_REWARD)
    assert evaluation_metrics([broken])["verifier/math/error"] == 0.5


def test_domains_are_reported_apart_where_there_are_several() -> None:
    assert domain_metrics([group("a", [True, False])]) == {}
    metrics = domain_metrics([group("a", [True, False]), group("b", [True] * 6, domain="code")])
    assert metrics["math/share"] == 0.25 and metrics["code/share"] == 0.75
    assert metrics["math/correct"] == 0.5 and metrics["code/score"] == 1.0
    assert metrics["code/response_tokens"] == 2 and metrics["code/truncated"] == 0


def test_games_beside_prompts_have_success_by_tag_and_prompts_accuracy_by_tag_and_domain() -> None:
    groups = [group("Sokoban", [True, False], domain=""), group("sums", [True, True, True, False], domain="math")]
    metrics = {**evaluation_metrics(groups), **domain_metrics(groups)}
    assert metrics["Sokoban/success"] == 0.5 and metrics["sums/success"] == 0.75
    assert metrics["mean@4"] == metrics["sums/mean@4"] == metrics["math/correct"] == 0.75
    assert metrics["math/share"] == pytest.approx(4 / 6)
    assert metrics["env/success"] == 0.5 and metrics["verifier/success"] == 0.75
    assert not any(name.startswith("/") or name.startswith("Sokoban/mean") for name in metrics)
    assert success_in_environments(groups) == 0.5 and success_in_environments(groups[1:]) is None
