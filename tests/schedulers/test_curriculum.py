"""The tags of groups follow from their numbers and from recorded success alone, also after a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pytest

from roll.schedulers.curriculum import Choice, TagCurriculum
from roll.schedulers.levels import chosen_source, level_tasks
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup

TAGS = ("easy", "middle", "hard")
PER_STEP = 40


def curriculum(choose: Choice = "in_order", seed: int = 3) -> TagCurriculum:
    return TagCurriculum(TAGS, choose, mastered_at=0.8, others=0.25, seed=seed)


def group(tag: str, rate: float, broken: int = 0, domain: str = "") -> TrajectoryGroup:
    """A group of ten, of which a share succeeded; broken members count for nothing."""
    members = [
        Trajectory(tag, "g", number, 1, status=Status.COMPLETED, metrics={"success": float(number < 10 * rate)})
        for number in range(10)
    ]
    members += [Trajectory(tag, "g", 10, 1, status=Status.ERROR_ENV)] * broken
    return TrajectoryGroup("g", tag, members, domain)


def play(chooser: TagCurriculum, first: int, last: int, rates: Mapping[str, float]) -> list[str]:
    """Play the groups of some steps, each tag with its rate."""
    played = []
    for step in range(first, last):
        tags = [chooser.tag_at(number) for number in range(step * PER_STEP, (step + 1) * PER_STEP)]
        chooser.learned([group(tag, rates[tag], broken=1) for tag in tags])
        played += tags
    return played


def test_the_first_tag_that_is_not_mastered_is_played_and_some_of_those_before() -> None:
    chooser = curriculum()
    assert set(play(chooser, 0, 3, {"easy": 0.4})) == {"easy"}
    assert chooser.stage == 0
    play(chooser, 3, 8, {"easy": 1.0, "middle": 0.0})
    assert chooser.stage == 1
    counts = Counter(play(chooser, 8, 33, {"easy": 1.0, "middle": 0.5}))
    assert set(counts) == {"easy", "middle"} and 0.2 < counts["easy"] / 1000 < 0.3
    play(chooser, 33, 40, {"easy": 1.0, "middle": 0.9, "hard": 1.0})
    counts = Counter(play(chooser, 40, 65, {"easy": 1.0, "middle": 0.9, "hard": 1.0}))
    assert chooser.stage == 2 and 0.09 < counts["easy"] / 1000 < 0.16 and 0.09 < counts["middle"] / 1000 < 0.16
    play(chooser, 65, 70, {"easy": 0.2, "middle": 0.9, "hard": 1.0})
    assert chooser.stage == 0, "what was forgotten is played again"


def test_by_progress_tags_are_played_whose_success_changes_and_no_tag_is_left_out() -> None:
    chooser, rate, counts = curriculum("learning_progress"), 0.0, Counter[str]()
    for step in range(25):
        counts.update(play(chooser, step, step + 1, {"easy": 1.0, "middle": rate, "hard": 0.0}))
        rate = min(1.0, rate + 0.1)
    assert counts["middle"] > 3 * counts["easy"] > 0 and counts["hard"] > 40


@pytest.mark.parametrize("choose", ["in_order", "learning_progress"])
def test_a_run_that_goes_on_has_the_same_tags_also_of_groups_that_were_begun(choose: Choice) -> None:
    rates = {"easy": 0.9, "middle": 0.6, "hard": 0.1}
    whole, first = curriculum(choose), curriculum(choose)
    expected = play(whole, 0, 12, rates)
    assert play(first, 0, 6, rates) == expected[: 6 * PER_STEP]
    begun = [first.tag_at(number) for number in range(6 * PER_STEP, 6 * PER_STEP + 5)]
    state = json.loads(json.dumps(first.state_dict(6 * PER_STEP)))
    assert len(state["chosen"]) == 5
    second = curriculum(choose)
    second.load_state_dict(state)
    first.learned([group("easy", 0.0)])
    assert [second.tag_at(number) for number in range(6 * PER_STEP, 6 * PER_STEP + 5)] == begun
    assert play(second, 6, 12, rates) == expected[6 * PER_STEP :]
    other = TagCurriculum(TAGS[:2], choose, 0.8, 0.25, 3)
    other.load_state_dict(state)
    assert other.learned([]) == {"curriculum/stage": 0.0}, "other tags: nothing is known of them"


def test_answers_to_prompts_and_broken_episodes_teach_nothing() -> None:
    chooser = curriculum()
    broken = TrajectoryGroup("g", "easy", [Trajectory("easy", "g", 0, 1, status=Status.ERROR_ENV)])
    assert chooser.learned([group("easy", 1.0, domain="math"), broken]) == {"curriculum/stage": 0.0}
    assert chooser.learned([group("easy", 1.0)]) == {"curriculum/stage": 1.0, "curriculum/easy": 1.0}


def test_a_group_has_the_level_of_its_tag_and_number() -> None:
    source = chosen_source(lambda number: TAGS[number % 2], 4, 7, "train-")
    plain = level_tasks([("easy", 1), ("middle", 1), ("easy", 1)], 4, 7, "train-")
    assert [source(number) for number in range(3)] == plain
