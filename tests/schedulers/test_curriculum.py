"""The tags of groups follow from their numbers and from recorded success alone, also after a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

import pytest

from roll.envs import env_seed
from roll.schedulers.curriculum import Choice, TagCurriculum
from roll.schedulers.difficulty import Bands, NoLevelError
from roll.schedulers.levels import chosen_source, level_tasks
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup

TAGS = ("easy", "middle", "hard")
PER_STEP = 40


def difficulty(tag: str, seed: int) -> float:
    """From 0 to 9, as many levels of each."""
    return float(seed % 10)


def curriculum(
    choose: Choice = "in_order", seed: int = 3, bounds: Mapping[str, list[float]] | None = None
) -> TagCurriculum:
    bands = Bands(bounds or {}, difficulty, seed)
    return TagCurriculum(TAGS, choose, mastered_at=0.8, others=0.25, seed=seed, bands=bands)


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
        tags = [chooser.level_at(number)[0] for number in range(step * PER_STEP, (step + 1) * PER_STEP)]
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
    begun = [first.level_at(number)[0] for number in range(6 * PER_STEP, 6 * PER_STEP + 5)]
    state = json.loads(json.dumps(first.state_dict(6 * PER_STEP)))
    assert len(state["chosen"]) == 5
    second = curriculum(choose)
    second.load_state_dict(state)
    first.learned([group("easy", 0.0)])
    assert [second.level_at(number)[0] for number in range(6 * PER_STEP, 6 * PER_STEP + 5)] == begun
    assert play(second, 6, 12, rates) == expected[6 * PER_STEP :]
    other = TagCurriculum(TAGS[:2], choose, 0.8, 0.25, 3, Bands({}, difficulty, 3))
    other.load_state_dict(state)
    assert other.learned([]) == {"curriculum/stage": 0.0}, "other tags: nothing is known of them"


def test_answers_to_prompts_and_broken_episodes_teach_nothing() -> None:
    chooser = curriculum()
    broken = TrajectoryGroup("g", "easy", [Trajectory("easy", "g", 0, 1, status=Status.ERROR_ENV)])
    assert chooser.learned([group("easy", 1.0, domain="math"), broken]) == {"curriculum/stage": 0.0}
    assert chooser.learned([group("easy", 1.0)]) == {"curriculum/stage": 1.0, "curriculum/easy": 1.0}


def test_a_group_has_the_level_of_its_tag_and_number() -> None:
    bands = Bands({}, difficulty, 7)
    source = chosen_source(lambda number: bands.level(TAGS[number % 2], number), 4, "train-")
    plain = level_tasks([("easy", 1), ("middle", 1), ("easy", 1)], 4, 7, "train-")
    assert [source(number) for number in range(3)] == plain


BOUNDS = {"middle": [2.0, 6.0]}
BANDS = {"middle/0": range(0, 3), "middle/1": range(3, 7), "middle/2": range(7, 10)}


def levels(chooser: TagCurriculum, first: int, last: int, most: int) -> list[tuple[str, int]]:
    """Play steps with a policy that masters "easy", and levels of the others up to a difficulty."""
    played = []
    for step in range(first, last):
        chosen = [chooser.level_at(number) for number in range(step * PER_STEP, (step + 1) * PER_STEP)]
        groups = [group(tag, float(tag == "easy" or difficulty(tag, seed) <= most)) for tag, seed in chosen]
        for each, (_, seed) in zip(groups, chosen, strict=True):
            each.trajectories[0].seed = seed
        chooser.learned(groups)
        played += chosen
    return played


def test_levels_of_one_tag_get_harder_as_tags_do() -> None:
    chooser = curriculum(bounds=BOUNDS)
    levels(chooser, 0, 1, most=2)
    assert chooser.stage == 1
    second = levels(chooser, 1, 2, most=2)
    assert {difficulty(tag, seed) for tag, seed in second if tag == "middle"} == {0, 1, 2} and chooser.stage == 2
    third = levels(chooser, 2, 20, most=2)
    counts = Counter(
        name for tag, seed in third for name, band in BANDS.items() if tag == "middle" and seed % 10 in band
    )
    assert (
        chooser.stage == 2 and set(counts) == {"middle/0", "middle/1"} and counts["middle/1"] > 4 * counts["middle/0"]
    )
    levels(chooser, 20, 30, most=9)
    assert chooser.stage == 4, "and then comes the next tag"
    assert chooser.learned([])["curriculum/middle/2"] == 1.0


@pytest.mark.parametrize("choose", ["in_order", "learning_progress"])
def test_a_run_that_goes_on_has_the_same_levels_of_each_difficulty(choose: Choice) -> None:
    whole, first, second = (curriculum(choose, bounds=BOUNDS) for _ in range(3))
    expected = levels(whole, 0, 10, most=5)
    assert levels(first, 0, 5, most=5) == expected[: 5 * PER_STEP]
    second.load_state_dict(json.loads(json.dumps(first.state_dict(5 * PER_STEP))))
    assert levels(second, 5, 10, most=5) == expected[5 * PER_STEP :]
    other = curriculum(choose, bounds={"middle": [4.0]})
    other.load_state_dict(first.state_dict(5 * PER_STEP))
    assert other.stage == 0, "other bands: nothing is known of them"


def test_a_level_of_a_band_is_the_first_that_seed_tag_and_number_give() -> None:
    bands = Bands(BOUNDS, difficulty, 7)
    for number in range(30):
        plain = env_seed(7, "middle", number, 0)
        own = next(name for name, band in BANDS.items() if plain % 10 in band)
        assert bands.level(own, number) == ("middle", plain)
        assert bands.level("hard", number) == ("hard", env_seed(7, "hard", number, 0))
        for name, band in BANDS.items():
            tag, seed = bands.level(name, number)
            assert tag == "middle" and seed % 10 in band
    with pytest.raises(NoLevelError, match="none of 50 levels of middle has a difficulty above 20"):
        Bands({"middle": [20.0]}, difficulty, 7).level("middle/1", 0, most_tried=50)
    with pytest.raises(NoLevelError, match="above 9 and of at most 20"):
        Bands({"middle": [9.0, 20.0]}, difficulty, 7).level("middle/1", 0, most_tried=50)
