import pytest

from roll.envs import env_seed


def test_seeds_differ_by_run_tag_group_and_episode():
    seeds = [
        env_seed(run, tag, group, episode)
        for run in range(3)
        for tag in ("SimpleSokoban", "FrozenLake")
        for group in range(20)
        for episode in range(5)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seed_is_the_same_for_ever():
    assert env_seed(42, "SimpleSokoban", 0, 0) == 5712820523324399342


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError, match="group is -1"):
        env_seed(0, "SimpleSokoban", -1, 0)
