"""The games of the careless teacher: conversations of the environment's own boards."""

from roll.models.toy.sokoban_games import CarelessGames


def test_games_are_conversations_that_depend_on_their_seed_alone() -> None:
    games, again, others = (list(map(CarelessGames(games=4, seed=seed).__getitem__, range(4))) for seed in (1, 1, 2))

    assert games == again and games != others
    for game in games:
        roles = [message["role"] for message in game["messages"]]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
        assert game["messages"][1]["content"].count("#") > 8


def test_a_teacher_that_is_never_careless_needs_fewer_moves() -> None:
    careful, careless = (CarelessGames(games=30, carelessness=share, seed=3) for share in (0.0, 0.9))

    def solved(data: CarelessGames) -> int:
        return sum(len(data[number]["messages"]) <= 13 for number in range(30))

    assert solved(careful) > solved(careless)
