from __future__ import annotations

from roll.pipelines.reporting.silence import WINDOW, SilenceWatch


def steps(count: int, reward: float, valid: float, success: float = 0.0) -> list[dict[str, float]]:
    step = {"rollout/reward": reward, "rollout/success": success, "rollout/env/action_is_valid": valid}
    return [step] * count


def warnings(*runs: list[dict[str, float]]) -> list[str]:
    watch = SilenceWatch()
    said = [watch.step(step) for run in runs for step in run]
    return [text for text in said if text is not None]


def test_a_policy_that_earns_by_not_answering_is_warned_about_once() -> None:
    found = warnings(steps(WINDOW, -0.5, 0.9), steps(3 * WINDOW, 0.0, 0.1))
    assert len(found) == 1
    assert "worst_reward" in found[0] and "-0.5 → 0" in found[0] and "90% → 10%" in found[0]


def test_a_policy_that_solves_something_or_answers_more_or_earns_less_is_not() -> None:
    assert not warnings(steps(WINDOW, -0.5, 0.9), steps(1, 0.5, 0.1, success=0.1), steps(WINDOW, 0.0, 0.1))
    assert not warnings(steps(WINDOW, -0.5, 0.1), steps(2 * WINDOW, 0.0, 0.9))
    assert not warnings(steps(WINDOW, 0.0, 0.9), steps(2 * WINDOW, -0.5, 0.1))
    assert not warnings([{"rollout/reward": float(step)} for step in range(4 * WINDOW)])
