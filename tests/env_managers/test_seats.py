"""Games with several seats: what each seat is told, trained on and paid, whoever has the others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manager_fakes import CharacterRenderer, says, spec, turn_of

from roll.common.threads import CallThreads
from roll.common.unavailable import UnavailableError
from roll.config.tool_use import ToolUse
from roll.env_managers import EnvManagerLimits, Timeouts
from roll.env_managers.seats import Opponent, SeatsEnvManager
from roll.envs.errors import EnvConfigError
from roll.envs.seated import SeatedEnv
from roll.envs.tool_using import ToolUsingEnv
from roll.generation import Activity, Completion, GenerationRequest, SamplingParams
from roll.tools import Tool, Toolbox
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import samples_from

Answer = Callable[[GenerationRequest], Awaitable[Completion]]


class Countdown:
    """Players take 1 or 2 of what is there, or what is left; who takes the last wins."""

    def __init__(self, players: int = 2, most: int = 7) -> None:
        self.seats = tuple("abc"[:players])
        self.most = most

    def begin(self, luck: np.random.Generator) -> None:
        self.left = int(luck.integers(3, self.most + 1))
        self.mover, self.winner = 0, None
        self.said = [[f"{self.left} are there"] for _ in self.seats]

    @property
    def turn(self) -> int | None:
        return None if self.winner is not None else self.mover

    def told(self, seat: int) -> str:
        assert seat == self.turn, "only who is to move is told"
        said, self.said[seat] = self.said[seat], []
        return "; ".join(said)

    def move(self, seat: int, action: str) -> bool:
        assert seat == self.turn
        self.left -= min(int(action), self.left)
        for other in set(range(len(self.seats))) - {seat}:
            self.said[other].append(f"{self.seats[seat]} takes {action}, {self.left} are there")
        self.winner = None if self.left else seat
        self.mover = (seat + 1) % len(self.seats)
        return True

    def earned(self, seat: int) -> float:
        return 0.0 if self.winner is None else 1.0 if seat == self.winner else -1.0

    def ending(self, seat: int) -> str:
        return f"{self.seats[self.winner or 0]} took the last"


def countdown(*seats: Any, shuffle: bool = False, **options: Any) -> SeatedEnv:
    game = Countdown(len(seats), options.pop("most", 7))
    return SeatedEnv(game, seats, shuffle, actions=["1", "2"], action_pattern="", max_steps=9, **options)


def one(told: str, luck: np.random.Generator) -> str:
    return "1"


def gone(told: str, luck: np.random.Generator) -> str:
    raise UnavailableError("the server is gone")


def quits(told: str, luck: np.random.Generator) -> str:
    raise SystemExit("out of moves")


def answers(choose: Callable[[GenerationRequest], str], asked: list[GenerationRequest] | None = None) -> Answer:
    async def generate(request: GenerationRequest) -> Completion:
        if asked is not None:
            asked.append(request)
        await asyncio.sleep(0)
        return says(choose(request))

    return generate


def drawn(request: GenerationRequest) -> str:
    """One or two, as the seed of the request says; now and then no move at all."""
    return ("1", "2", "2", "1", "nothing")[request.seed % 5]


def seats_manager(generate: Answer, opponents: dict[str, Answer] | None = None, **options: Any) -> SeatsEnvManager:
    activity = options.setdefault("activity", Activity())
    options.setdefault("limits", EnvManagerLimits(max_steps=9, sequence_length=4000, max_new_tokens=20))
    options.setdefault("threads", CallThreads(2))
    options.setdefault("renderer", CharacterRenderer())
    made = SeatsEnvManager(generate=generate, **options)
    made.released = []  # type: ignore[attr-defined]

    async def release(session: str) -> None:
        made.released.append(session)  # type: ignore[attr-defined]

    made.release = release
    beside = activity.beside()
    made.opponents = {
        name: lambda _, answer=answer: Opponent(answer, release, SamplingParams(20), beside)
        for name, answer in (opponents or {}).items()
    }
    return made


def play(manager: SeatsEnvManager, *seats: Any, seed: int = 11, episode: int = 0, **options: Any) -> list[Trajectory]:
    async def played() -> Trajectory:
        given = spec(episode=episode, seed=seed)
        trajectory = await asyncio.wait_for(manager.run(given, lambda: countdown(*seats, **options)), 20)
        assert manager.activity.outside == 0
        return trajectory

    first = asyncio.run(played())
    return [first, *first.beside]


def test_a_game_against_itself_has_a_trajectory_for_each_seat() -> None:
    first, second = play(seats_manager(answers(lambda _: "2")), "policy", "policy", most=5, seed=3)
    assert (first.seat, second.seat) == ("a", "b") and (first.group_id, second.group_id) == ("seat0-g", "seat1-g")
    assert first.status is second.status is Status.COMPLETED
    assert {first.score, second.score} == {1.0, -1.0}
    assert first.success != second.success
    assert "takes 2" in second.turns[0].observation and "takes" not in first.turns[0].observation
    assert first.final_observation == second.final_observation == f"{'a' if first.success else 'b'} took the last"


@given(st.integers(0, 10_000), st.booleans())
def test_every_token_that_was_sampled_is_trained_once_in_the_sample_of_its_own_seat(seed: int, shuffle: bool) -> None:
    asked: list[GenerationRequest] = []
    manager = seats_manager(answers(drawn, asked), threads=None)
    played = play(manager, "policy", "policy", "policy", seed=seed, shuffle=shuffle, most=9)
    renderer = CharacterRenderer()
    trained = 0
    for trajectory in played:
        own = [request for request in asked if request.session == f"{trajectory.group_id}/0"]
        assert len(own) == len(trajectory.turns)
        for sample in samples_from(trajectory) if trajectory.turns else ():
            said = [token for token, mask in zip(sample.token_ids, sample.response_mask, strict=True) if mask]
            assert said == [token for turn in trajectory.turns for token in turn.completion_ids]
            trained += len(said)
            # What is not trained is what this seat was told, and of others only what the game says of them.
            told = [token for token, mask in zip(sample.token_ids, sample.response_mask, strict=True) if not mask]
            assert set(re.findall(r"(\w) takes", renderer.decode(told))) <= set("abc") - {trajectory.seat}
    assert trained == sum(len(drawn(request)) + 1 for request in asked)
    assert {request.session for request in asked} <= set(manager.released)


def test_a_seat_is_told_what_the_game_is() -> None:
    asked: list[GenerationRequest] = []
    play(seats_manager(answers(drawn, asked)), "policy", "policy")
    told = {CharacterRenderer().decode(request.prompt_ids).splitlines()[0] for request in asked}
    (first,) = {line.strip("\x01") for line in told}
    assert first.endswith("A game for several, seen from one of the seats that the policy has.")


def test_an_opponent_of_the_run_plays_and_is_not_trained() -> None:
    asked: list[GenerationRequest] = []
    theirs: list[GenerationRequest] = []
    manager = seats_manager(answers(lambda _: "1", asked), {"start": answers(lambda _: "2", theirs)})
    (only,) = play(manager, "policy", "start", seed=3)
    assert only.group_id == "g" and only.seat == "a" and only.status is Status.COMPLETED
    assert [turn.response for turn in only.turns] == ["1"] * len(asked) and theirs
    assert "takes 2" in only.turns[1].observation
    assert {request.session for request in theirs} == {"seat1-g/0"} and "seat1-g/0" in manager.released
    # Whatever the policy's sampling, an opponent has its own.
    assert theirs[0].sampling.max_new_tokens == 20


def test_programs_have_seats_beside_models() -> None:
    manager = seats_manager(answers(lambda _: "2"), {"start": answers(lambda _: "1")})
    (only,) = play(manager, f"{__name__}:one", "policy", "start", seed=3, most=9)
    assert only.seat == "b" and "a takes 1" in only.turns[0].observation and "c takes 1" in only.turns[1].observation


def test_the_seed_draws_the_seats() -> None:
    manager = seats_manager(answers(lambda _: "1"), {"start": answers(lambda _: "1")})
    seats = [play(manager, "policy", "start", seed=seed, shuffle=True)[0].seat for seed in range(12)]
    assert set(seats) == {"a", "b"}
    assert seats == [play(manager, "policy", "start", seed=seed, shuffle=True)[0].seat for seed in range(12)]


def test_members_of_a_group_begin_alike_in_each_seat_whatever_the_others_do() -> None:
    games = [play(seats_manager(answers(drawn)), "policy", "policy", seed=5, episode=n) for n in range(8)]
    for seat in (0, 1):
        assert len({game[seat].initial_hash for game in games}) == 1
    assert games[0][0].initial_hash != games[0][1].initial_hash
    assert len({game[1].turns[0].observation for game in games if game[1].turns}) > 1


@pytest.mark.parametrize("seats", [("policy", f"{__name__}:gone"), (f"{__name__}:gone", "policy", "policy")])
def test_what_is_not_there_breaks_the_game_for_all_and_may_be_tried_again(seats: tuple[str, ...]) -> None:
    played = play(seats_manager(answers(lambda _: "1")), *seats)
    assert {each.status for each in played} == {Status.ERROR_UNAVAILABLE}
    assert all(each.score is None and "the server is gone" in str(each.error) for each in played)


@pytest.mark.parametrize("seats", [("policy", f"{__name__}:quits"), (f"{__name__}:quits", "policy")])
def test_a_program_that_exits_breaks_the_game_and_is_named_with_its_line(seats: tuple[str, ...]) -> None:
    (only,) = play(seats_manager(answers(lambda _: "1")), *seats)
    assert only.status is Status.ERROR_ENV and only.score is None
    seat = "ab"[seats.index(f"{__name__}:quits")]
    assert f"the program of seat {seat}: SystemExit: out of moves" in str(only.error)
    assert re.search(r"test_seats\.py:\d+ in quits", str(only.error))


def test_an_opponent_whose_engine_fails_breaks_the_game_and_is_named() -> None:
    async def fails(request: GenerationRequest) -> Completion:
        raise UnavailableError("the engine of opponents.start failed")

    (only,) = play(seats_manager(answers(lambda _: "1"), {"start": fails}), "policy", "start")
    assert only.status is Status.ERROR_UNAVAILABLE and only.score is None
    assert str(only.error).startswith("seat b, start: ") and "opponents.start failed" in str(only.error)


def test_a_seat_that_an_engine_lets_down_breaks_the_game_for_all() -> None:
    async def never(request: GenerationRequest) -> Completion:
        await asyncio.sleep(60)
        raise AssertionError

    manager = seats_manager(answers(lambda _: "1"), {"start": never}, timeouts=Timeouts(reset=5, step=5, generate=0.05))
    (only,) = play(manager, "policy", "start", seed=3)
    assert only.status is Status.ERROR_TIMEOUT and only.score is None and "generate" in str(only.error)


def test_an_engine_that_raises_ends_the_run_and_leaves_nobody_waiting() -> None:
    async def broken(request: GenerationRequest) -> Completion:
        raise ZeroDivisionError("the engine")

    async def run() -> None:
        manager = seats_manager(broken)
        with pytest.raises(ZeroDivisionError):
            await manager.run(spec(), lambda: countdown("policy", "policy"))
        assert manager.activity.outside == 0 and len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_a_game_that_is_cancelled_leaves_nobody_waiting() -> None:
    async def slow(request: GenerationRequest) -> Completion:
        await asyncio.sleep(60)
        raise AssertionError

    async def run() -> None:
        manager = seats_manager(slow)
        game = asyncio.ensure_future(manager.run(spec(), lambda: countdown("policy", "policy")))
        await asyncio.sleep(0.1)
        game.cancel()
        with pytest.raises(asyncio.CancelledError):
            await game
        assert manager.activity.outside == 0 and len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_a_seat_that_is_cut_off_ends_the_game_for_the_others() -> None:
    short = EnvManagerLimits(max_steps=1, sequence_length=4000, max_new_tokens=20)
    first, second = play(seats_manager(answers(lambda _: "1"), limits=short), "policy", "policy", most=7, seed=3)
    assert first.status is second.status is Status.TRUNCATED_TURNS and (first.score, second.score) == (0.0, 0.0)


def test_a_seat_whose_turn_never_came_has_nothing_to_learn_and_is_not_broken() -> None:
    class AtOnce(Countdown):
        def begin(self, luck: np.random.Generator) -> None:
            super().begin(luck)
            self.left = 1

    env = SeatedEnv(AtOnce(), ("policy", "policy"), False, actions=["1", "2"], action_pattern="")
    first = asyncio.run(seats_manager(answers(lambda _: "1")).run(spec(), lambda: env))
    (second,) = first.beside
    assert first.score == 1.0 and not second.turns and second.score == -1.0
    assert first.status is second.status is Status.COMPLETED and second.error is None


class Talk:
    """Two seats: one asks its tool as often as it likes, then says something to the other, who ends the talk."""

    seats = ("clerk", "guest")

    def begin(self, luck: np.random.Generator) -> None:
        self.turn: int | None = 1
        self.heard = [[], [{"role": "user", "content": "hello"}]]
        self.boxes = [Toolbox([Tool("time", "Tell the time.", {"type": "object"}, lambda _: "noon")], ToolUse()), None]

    def told(self, seat: int) -> str:
        return "; ".join(each["content"] for each in self.heard[seat])

    def move(self, seat: int, action: str) -> bool:
        box = self.boxes[seat]
        calls = [] if box is None else box.find(action)
        if box is not None and calls:
            self.heard[seat] = [{"role": "tool", "content": each} for each in box.answer(calls).results]
            return True
        self.turn = None if "bye" in action else 1 - seat
        self.heard[1 - seat] = [{"role": "user", "content": action}]
        return True

    def earned(self, seat: int) -> float:
        return float(self.turn is None)

    def ending(self, seat: int) -> str:
        return "over"

    def instruction(self, seat: int) -> str:
        return f"You are the {self.seats[seat]}."

    def toolbox(self, seat: int) -> Toolbox | None:
        return self.boxes[seat]

    def messages(self, seat: int) -> list[dict[str, str]]:
        return self.heard[seat]


class DescribesTools(CharacterRenderer):
    def with_tools(self, schemas: Any) -> None:
        """A template that does not know of tools: they are described in words."""

    def role_problem(self, role: str) -> None:
        """It has all roles."""


CALL = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'


def guest(told: str, luck: np.random.Generator) -> str:
    return f"bye, {told}" if "noon" in told else f"I was told [{told}]"


def test_seats_of_a_spoken_game_have_instructions_tools_and_messages_of_their_own() -> None:
    said = {"clerk": [CALL, "it is noon"], "guest": ["the time?", "bye"]}

    def choose(request: GenerationRequest) -> str:
        prompt = CharacterRenderer().decode(request.prompt_ids)
        return said["clerk" if "the clerk" in prompt else "guest"][turn_of(request)]

    env = SeatedEnv(Talk(), ("policy", "policy"), False, action_pattern="", worst_reward=0.0, max_steps=9)
    clerk = asyncio.run(seats_manager(answers(choose), renderer=DescribesTools()).run(spec(), lambda: env))
    (guest,) = clerk.beside
    assert [(each["role"], each["content"]) for each in clerk.conversation[1:]] == [
        ("user", "the time?"),
        ("assistant", CALL),
        ("tool", "noon"),
        ("assistant", "it is noon"),
    ]
    system = clerk.conversation[0]["content"]
    assert system.startswith("You are the clerk.") and '"name": "time"' in system
    assert [each["content"] for each in guest.conversation] == [
        "You are the guest.",
        "hello",
        "the time?",
        "it is noon",
        "bye",
    ]
    assert clerk.status is guest.status is Status.COMPLETED and (clerk.score, guest.score) == (1.0, 1.0)


def test_a_tag_with_tools_gives_each_seat_of_a_model_its_own() -> None:
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "7-6"}}</tool_call>'
    wrong = '<tool_call>{"name": "calculator", "arguments": {}}</tool_call>'
    said = {"start": [call, "1", call, "2", "1", "2"], "policy": [wrong, "2", "2", "2"]}
    asked: dict[str, list[str]] = {"start": [], "policy": []}

    def speaks(who: str) -> Answer:
        def choose(request: GenerationRequest) -> str:
            asked[who].append(CharacterRenderer().decode(request.prompt_ids))
            return said[who][turn_of(request)]

        return answers(choose)

    def made() -> Any:
        return ToolUsingEnv(countdown("start", "policy"), ["calculator"], ToolUse())

    limits = EnvManagerLimits(max_steps=9, max_tool_turns=8, sequence_length=9000, max_new_tokens=200)
    manager = seats_manager(speaks("policy"), {"start": speaks("start")}, renderer=DescribesTools(), limits=limits)
    own = asyncio.run(asyncio.wait_for(manager.run(spec(seed=11), made), 20))
    assert own.status is Status.COMPLETED, own.error
    for prompts in asked.values():
        assert '"name": "calculator"' in prompts[0], "it is told of the tools"
    heard = [(each["role"], each["content"]) for each in own.conversation]
    answer = next(content for role, content in heard if role == "tool")
    assert "expression" in answer, "a wrong call says what to change"
    assert own.turns[0].reward == -0.1 and own.metrics["tool_calls"] == 1 == own.metrics["tool_calls_wrong"]
    opening = next(content for role, content in heard if role == "user")
    assert "a takes 1" in opening and "7-6" not in opening, "a call is no move, and nobody else hears of it"
    assert asked["start"][1].endswith("t1\x01"), "what its tool says, it hears"


def test_a_program_in_a_spoken_game_is_told_its_part_once() -> None:
    def choose(request: GenerationRequest) -> str:
        return "it is noon" if turn_of(request) else "hm?"

    env = SeatedEnv(Talk(), ("policy", f"{__name__}:guest"), False, action_pattern="", worst_reward=0.0)
    only = asyncio.run(seats_manager(answers(choose), renderer=DescribesTools()).run(spec(), lambda: env))
    assert [turn.observation for turn in only.turns] == [
        "I was told [You are the guest.\n\nhello]",
        "I was told [hm?]",
    ]
    assert only.score == 1.0


def test_outside_of_a_run_programs_have_the_seats_of_others() -> None:
    env = countdown("policy", "start")
    observation, _ = env.reset(seed=3)
    assert observation == f"{env.game.left} are there"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seats", "told"),
    [(("start", "random"), "must be 'policy'"), (("policy", "no_such_module:f"), "no_such_module")],
)
def test_seats_that_cannot_be_are_told(seats: tuple[str, ...], told: str) -> None:
    with pytest.raises(EnvConfigError, match=told):
        countdown(*seats)


def test_other_numbers_of_seats_than_the_games_are_told() -> None:
    with pytest.raises(EnvConfigError, match="the game has 2: a, b"):
        SeatedEnv(Countdown(2), ("policy",), False)
