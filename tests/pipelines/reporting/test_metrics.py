from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from roll.pipelines.reporting.metrics import batch_metrics, generation_metrics, prefixed, rollout_metrics
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn
from tests.lines import lines_run


def episode(
    score: float | None, status: Status, turns: list[tuple[int, int]], tag: str = "A", **metrics: float
) -> Trajectory:
    """``turns``: prompt and completion tokens of each."""
    made = [Turn([1] * prompt, [2] * completion, [-0.1] * completion) for prompt, completion in turns]
    return Trajectory(tag, "g", 0, 1, turns=made, status=status, score=score, metrics=metrics)


def solved() -> Trajectory:
    return episode(1.0, Status.COMPLETED, [(10, 3), (4, 5)], success=1.0, boxes=2.0)


def failed() -> Trajectory:
    return episode(-0.5, Status.TRUNCATED_TURNS, [(10, 2)], success=0.0)


def broken() -> Trajectory:
    return episode(None, Status.ERROR_ENV, [(10, 9)], success=1.0, boxes=100.0)


def test_three_trajectories_by_hand() -> None:
    metrics = rollout_metrics([TrajectoryGroup("g", "A", [solved(), failed(), broken()])])
    assert metrics == pytest.approx(
        {
            "status/completed": 1 / 3,
            "status/truncated_turns": 1 / 3,
            "status/truncated_length": 0.0,
            "status/error_env": 1 / 3,
            "status/error_timeout": 0.0,
            "status/error_unavailable": 0.0,
            "status/error_reward": 0.0,
            "status/aborted": 0.0,
            "errors": 1.0,
            "retries": 0.0,
            # The broken episode counts above only: nothing is known of its outcome.
            "success": 0.5,
            "reward": 0.25,
            "reward_std": 0.75,
            "turns": 1.5,
            "response_tokens": 5.0,
            "prompt_tokens": 12.0,
            "env/success": 0.5,
            "env/boxes": 2.0,
            "zero_variance_groups": 0.0,
        }
    )


def test_groups_without_variance_are_counted_among_those_that_can_be_compared() -> None:
    groups = [
        TrajectoryGroup("a", "A", [solved(), solved()]),
        TrajectoryGroup("b", "A", [solved(), failed()]),
        TrajectoryGroup("c", "A", [failed(), failed(), broken()]),
        TrajectoryGroup("d", "A", [solved()]),
        TrajectoryGroup("e", "A", [solved(), broken()]),
    ]
    assert rollout_metrics(groups)["zero_variance_groups"] == pytest.approx(2 / 3)


def test_several_tags_are_told_apart() -> None:
    other = episode(0.0, Status.COMPLETED, [(5, 5)], tag="B")
    groups = [TrajectoryGroup("a", "A", [solved(), failed()]), TrajectoryGroup("b", "B", [other])]
    metrics = rollout_metrics(groups)
    assert (metrics["A/success"], metrics["A/reward"]) == (0.5, 0.25)
    assert (metrics["B/success"], metrics["B/reward"]) == (0.0, 0.0)
    assert "A/success" not in rollout_metrics(groups[:1])


def test_a_rollout_in_which_everything_broke_has_no_success_rate() -> None:
    metrics = rollout_metrics([TrajectoryGroup("g", "A", [broken()])])
    assert metrics["errors"] == metrics["status/error_env"] == 1.0
    assert "success" not in metrics and "reward" not in metrics


def test_the_shape_of_a_batch() -> None:
    batch = TensorDict(
        {"lengths": torch.tensor([3, 5]), "response_mask": torch.tensor([[0, 1, 1, 0, 0], [0, 1, 0, 0, 1]]).bool()},
        batch_size=[2],
    )
    assert batch_metrics(batch) == {
        "batch/samples": 2.0,
        "batch/tokens": 8.0,
        "batch/response_tokens": 4.0,
        "batch/longest": 5.0,
    }


def test_prefixes() -> None:
    assert prefixed({"a": 1.0, "b/c": 2.0}, "val") == {"val/a": 1.0, "val/b/c": 2.0}


def test_reports_of_several_schedulers_become_one() -> None:
    first = {"requests": 3.0, "queue": 1.0, "replicas_up": 2.0, "latency_mean": 1.0, "latency_max": 4.0}
    second = {"requests": 1.0, "queue": 2.0, "replicas_up": 1.0, "latency_mean": 5.0, "latency_max": 5.0}
    idle = {"requests": 0.0, "queue": 0.0, "replicas_up": 2.0}
    assert generation_metrics([first, second, idle]) == {
        "generation/requests": 4.0,
        "generation/queue": 3.0,
        "generation/replicas_up": 1.0,
        "generation/latency_mean": 2.0,
        "generation/latency_max": 5.0,
    }


def test_what_reports_cost_does_not_grow_with_the_square_of_their_number() -> None:
    """Counted in lines of Python that run, which are the same on every machine."""

    def cost(size: int) -> int:
        reports = [{"requests": 4.0, f"replica_{n}/running": 1.0, f"replica_{n}/served": 4.0} for n in range(size)]
        with lines_run() as lines:
            merged = generation_metrics(reports)
        assert merged["generation/requests"] == 4.0 * size and len(merged) == 1 + 2 * size
        return lines.counted

    assert cost(512) < 10 * cost(64)


def test_the_share_of_a_status_is_exact() -> None:
    groups = [TrajectoryGroup("a", "A", [solved() for _ in range(384)])]
    assert [value for name, value in rollout_metrics(groups).items() if name.startswith("status/") and value] == [1.0]
