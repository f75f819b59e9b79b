import gymnasium
import pytest

import roll.envs
from roll.envs.adapters.gymnasium_text import GymnasiumTextEnv
from roll.envs.errors import EnvConfigError

TOY_TEXT = ["Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "FrozenLake-v1"]


@pytest.mark.parametrize("game", TOY_TEXT)
def test_every_step_is_the_games_own(game):
    """The same seed and the same actions in the game itself earn the same, and end at the same step."""
    ours = GymnasiumTextEnv(game, action_pattern="", reward_scale=0.5, max_steps=200)
    itself = gymnasium.make(game, max_episode_steps=200)
    for seed in range(10):
        ours.reset(seed=seed)
        ours.np_random, probe = gymnasium.utils.seeding.np_random(seed)[0], gymnasium.utils.seeding.np_random(seed)[0]
        itself.reset(seed=int(probe.integers(1 << 31)))
        over = False
        while not over:
            number = int(probe.integers(itself.action_space.n))
            _, paid, terminated, truncated, _ = itself.step(number)
            _, reward, *ended, _ = ours.step(ours.actions[number])
            assert reward == pytest.approx(0.5 * paid)
            assert ended == [terminated, truncated]
            over = terminated or truncated


@pytest.mark.parametrize("tag", ["Taxi", "CliffWalking"])
def test_its_solution_wins(tag):
    env = roll.envs.make(tag, action_pattern="")
    for seed in range(20):
        env.reset(seed=seed)
        for action in env.solution():
            _, _, terminated, _, info = env.step(action)
        assert terminated and info["metrics"]["success"] == 1.0


def test_taxi_tells_in_words_what_the_game_tells_in_colours():
    env = roll.envs.make("Taxi", action_pattern="")
    seen = env.reset(seed=0)[0]
    assert "\x1b" not in seen and "passenger is at B and wants to go to R" in seen
    assert "row 1, column 3" in seen
    for action in env.solution():
        seen = env.step(action)[0]
        if "in the taxi" in seen:
            break
    assert "row 4, column 3, at B." in seen


def test_cards_are_told_in_words():
    env = roll.envs.make("Blackjack", action_pattern="")
    told = {env.reset(seed=seed)[0] for seed in range(100)}
    assert any("with an ace that counts 11" in each for each in told)
    assert any("The dealer shows an ace" in each for each in told)


def test_what_a_game_colours_is_in_brackets():
    env = GymnasiumTextEnv("FrozenLake-v1", {"is_slippery": False}, action_pattern="")
    assert env.reset(seed=0)[0].startswith("[S]FFF")
    assert env.step("Right")[0].splitlines()[1:] == ["S[F]FF", "FHFH", "FFFH", "HFFG"]


def test_members_of_a_group_may_have_luck_of_their_own():
    def totals(own_luck: bool) -> set[str]:
        env = roll.envs.make("Blackjack", action_pattern="", own_luck=own_luck)
        seen = set()
        for member in range(12):
            env.reset(seed=2, options={"member": member} if own_luck else None)
            seen.add(env.step("Hit")[0])
        return seen

    assert len(totals(False)) == 1 < len(totals(True))


def test_any_other_game_with_numbered_actions_can_be_played():
    env = GymnasiumTextEnv("CartPole-v1", actions=["Left", "Right"], action_pattern="")
    assert env.reset(seed=0)[0].startswith("Observation: [")
    assert env.step("left")[1] == 1.0
    assert "pole" in env.instruction


def test_an_episode_starts_only_where_it_may():
    env = roll.envs.make("Taxi", starts="at (R|G) and wants")
    told = [env.reset(seed=seed)[0] for seed in range(60)]
    assert {each.split("is at ")[1][0] for each in told} == {"R", "G"}
    assert told == [env.reset(seed=seed)[0] for seed in range(60)]
    with pytest.raises(EnvConfigError, match="matches none of 1000 starts; the last is"):
        roll.envs.make("Taxi", starts="at X").reset(seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "Taxii-v4"}, "Did you mean: `Taxi`"),
        ({"game": "no_such_module:Taxi"}, "No module named 'no_such_module'"),
        ({"game": "Taxi", "game_options": {"rain": True}}, "unexpected keyword argument 'rain'"),
        ({"game": "Pendulum-v1"}, "only numbers from 0 on can have names"),
        ({"game": "Taxi", "actions": ["Go"]}, "Taxi has 6 actions, so give 6 names"),
        ({"game": "Taxi", "reward_scale": 0}, "must be more than 0"),
        ({"game": "Taxi", "starts": "(at R"}, "unterminated subpattern"),
    ],
)
def test_what_cannot_work_is_told(options, message):
    with pytest.raises(EnvConfigError, match=message):
        GymnasiumTextEnv(**options)


def test_thousands_of_games_share_their_tables():
    games = [roll.envs.make("Taxi").game for _ in range(3)]
    assert games[0].P is games[1].P is games[2].P
    games[0].reset(seed=1), games[1].reset(seed=2)
    assert games[0].s != games[1].s
