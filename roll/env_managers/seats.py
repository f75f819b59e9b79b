"""The env manager of games with several seats: an episode for each seat that a model has, at one table."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from roll.common.threads import CallThreads, CallTimeoutError
from roll.common.unavailable import UnavailableError
from roll.env_managers.records import EpisodeSpec, Timeouts
from roll.env_managers.session import EnvFailure, blamed
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs.base import Outcome
from roll.envs.seated import POLICY, SeatedEnv, outcome
from roll.envs.seats import SpokenGame, Table
from roll.envs.tool_using import ToolUsingEnv
from roll.envs.waiting import AsyncTextEnv
from roll.generation import Activity, Generate, SamplingParams
from roll.tools import Toolbox
from roll.trajectories.model import Status, Trajectory, seat_group

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opponent:
    """A model that has seats and is not trained.

    Attributes:
        generate: Samples from it.
        release: Forgets what is kept for a session.
        sampling: How its tokens are drawn, whoever it plays against.
        activity: Told when a seat of it works outside its engine.
    """

    generate: Generate
    release: Callable[[str], Awaitable[None]]
    sampling: SamplingParams
    activity: Activity


class SeatsEnvManager(TrajectoryEnvManager):
    """Plays games with several seats (:class:`roll.envs.seated.SeatedEnv`).

    Each seat of a policy, or of an opponent of the run, is an ordinary episode of one player: it has its own
    conversation, tokens and reward, and what the others did is part of what it observes. An episode that waits for its
    turn does not count as work. A game in which one seat breaks is broken for all of them.

    Attributes:
        opponents: Models that are not trained, by name: who has their seats in an episode. Whoever makes the manager
            sets them.
        release: Forgets what the policy's engine keeps for a session; set likewise.
    """

    opponents: Mapping[str, Callable[[EpisodeSpec], Opponent]]
    release: Callable[[str], Awaitable[None]]

    async def run(self, spec: EpisodeSpec, make_env: Callable[[], Any]) -> Trajectory:
        """Play one game to its end; see :meth:`TrajectoryEnvManager.run`.

        Returns:
            The trajectory of the first seat of a policy; those of other policies are ``beside`` it.
        """
        game: _Game | None = None
        with self.activity.outside_engine():
            try:
                env = await self._in_thread(make_env, "making the environment", self.timeouts.reset)
                await self._in_thread(partial(env.deal, spec.seed), "reset()", self.timeouts.reset)
                game = _Game(self, env)
            except EnvFailure as failure:
                status = Status.ERROR_UNAVAILABLE if failure.is_unavailable else Status.ERROR_ENV
                error = f"{spec.tag} ({spec.trajectory_id}, seed {spec.seed}): {failure}"
                return Trajectory(spec.tag, spec.group_id, spec.episode, spec.seed, status=status, error=error)
            try:
                trajectories = await _all_of(self._episodes(game, env, spec), self.activity)
            finally:
                await self._cleared(env, spec)
        return _of_policies(trajectories, game)

    def _episodes(self, game: _Game, env: SeatedEnv, spec: EpisodeSpec) -> list[Coroutine[Any, Any, Trajectory]]:
        """Return the episode of every seat that a model has."""
        several = env.players.count(POLICY) > 1
        episodes = []
        for seat, player in enumerate(env.players):
            if seat in game.programs:
                continue
            apart = several or player != POLICY
            own = replace(spec, group_id=seat_group(spec.group_id, seat)) if apart else spec
            episodes.append(self._of(str(player), spec).run_seat(own, partial(_seat_of, game, seat)))
        return episodes

    def _of(self, player: str, spec: EpisodeSpec) -> SeatsEnvManager:
        """Return what plays the episodes of a player: waiting for a turn takes as long as the others take."""
        playing = copy(self)
        playing.timeouts = Timeouts(None, None, self.timeouts.generate)
        playing.threads = None
        if player != POLICY:
            opponent = self.opponents[player](spec)
            playing.generate, playing.activity = opponent.generate, opponent.activity
            playing.sampling = opponent.sampling.within(self.limits.max_response_length, self.renderer.stop_token_ids)
        return playing

    async def run_seat(self, spec: EpisodeSpec, make_env: Callable[[], Any]) -> Trajectory:
        """Play the episode of one seat."""
        return await super().run(spec, make_env)

    async def _cleared(self, env: SeatedEnv, spec: EpisodeSpec) -> None:
        """Let go of the game, and of what engines keep of it."""
        for seat, player in enumerate(env.players):
            session = replace(spec, group_id=seat_group(spec.group_id, seat)).trajectory_id
            if player == POLICY:
                await self.release(session)
            elif isinstance(player, str) and player in self.opponents:
                await self.opponents[player](spec).release(session)
        with contextlib.suppress(EnvFailure):
            await self._in_thread(env.close, "close()", self.timeouts.step)

    async def _in_thread(self, function: Callable[[], T], phase: str, timeout: float | None) -> T:
        """Call user code where it may block."""

        def called() -> T:
            with blamed(phase):
                return function()

        if not isinstance(self.threads, CallThreads):
            return called()
        try:
            return (await self.threads.call(called, timeout))[0]
        except CallTimeoutError as error:
            raise EnvFailure(f"{phase} took longer than {timeout:g} s", is_unavailable=True) from error

    async def moved(self, function: Callable[[], T]) -> T:
        """Make a move, to which programs may answer.

        Raises:
            UnavailableError: Something is not there, or takes too long.
        """
        try:
            return await self._in_thread(function, "a move", self.timeouts.step)
        except EnvFailure as failure:
            if failure.is_unavailable:
                raise UnavailableError(str(failure)) from failure
            raise


@dataclass(eq=False)
class _Game:
    """A game as its seats share it: whose turn it is, and who waits for that."""

    manager: SeatsEnvManager
    env: SeatedEnv
    failure: BaseException | None = None
    is_left: bool = False
    opening: str | None = None
    unplayed: set[int] = field(default_factory=set)
    waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return self.env.table

    @property
    def programs(self) -> set[int]:
        """The seats that programs have."""
        return self.table.programs

    async def reach(self, seat: int) -> None:
        """Wait until it is a seat's turn, or the game ends, or somebody leaves it.

        Raises:
            BaseException: What broke the game.
        """
        if not self._is_up(seat):
            # Whoever ends the wait enters for the one that waited, so that no engine believes that all is quiet.
            self.waiting[seat] = asyncio.get_running_loop().create_future()
            self.manager.activity.leave_env()
            try:
                await self.waiting[seat]
            except asyncio.CancelledError:
                if seat in self.waiting:
                    del self.waiting[seat]
                    self.manager.activity.enter_env()
                raise
        if self.failure is not None:
            raise self.failure

    async def move(self, seat: int, action: str) -> bool:
        """Make a move; whoever is then to move goes on."""
        try:
            return await self.manager.moved(partial(self.table.move, seat, action))
        except BaseException as failure:
            self.failure = failure
            raise
        finally:
            self._wake()

    def leave(self) -> None:
        """A seat is done: if the game is not over, it goes on for nobody."""
        self.is_left = True
        self._wake()

    def _is_up(self, seat: int) -> bool:
        return self.is_left or self.failure is not None or self.table.game.turn in (seat, None)

    def _wake(self) -> None:
        for seat in [seat for seat in self.waiting if self._is_up(seat)]:
            self.manager.activity.enter_env()
            self.waiting.pop(seat).set_result(None)


class _SeatEnv(AsyncTextEnv):
    """One seat of a game: an environment whose steps end when it is the seat's turn again."""

    def __init__(self, game: _Game, seat: int, **text: Any) -> None:
        super().__init__(**text)
        self._game, self._seat = game, seat
        self.toolbox: Toolbox | None = None

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Wait for the first turn; in a conversation the seat has an instruction and tools of its own."""
        told, info = await super().reset(seed=seed, options=options)
        game = self._game.table.game
        if not isinstance(game, SpokenGame):
            return told, info
        self._instruction, self.toolbox = game.instruction(self._seat), game.toolbox(self._seat)
        begun = [{"role": "system", "content": self._instruction}, *game.messages(self._seat)]
        return told, {**info, "messages": begun}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """Make a move, and wait for the next turn."""
        told, reward, terminated, truncated, info = await super().step(action)
        game = self._game.table.game
        if isinstance(game, SpokenGame) and not terminated:
            info["messages"] = game.messages(self._seat)
        return told, reward, terminated, truncated, info

    async def start(self) -> str:  # type: ignore[override]
        """Wait for the first turn, and return what is told then."""
        await self._game.reach(self._seat)
        game = self._game.table.game
        if game.turn != self._seat:
            self._game.unplayed.add(self._seat)
            raise RuntimeError(f"the game was over before seat {game.seats[self._seat]} moved")
        told = game.told(self._seat)
        if self._game.opening is None:
            self._game.opening = told
        return told

    async def act(self, action: str) -> Outcome:  # type: ignore[override]
        """Make a move, and wait for the next turn."""
        game = self._game.table.game
        before = game.earned(self._seat)
        taken = await self._game.move(self._seat, action)
        await self._game.reach(self._seat)
        if game.turn is not None and game.turn != self._seat:
            return Outcome("Somebody left the game.", {"game": 0.0}, terminated=True, effective=taken)
        return outcome(game, self._seat, taken, before)

    def close(self) -> None:
        """Leave the game."""
        self._game.leave()


def _seat_of(game: _Game, seat: int) -> AsyncTextEnv | ToolUsingEnv:
    """Return the environment of a seat, told what the game is; where its tag has tools, each seat has its own."""
    own = _SeatEnv(game, seat, **{**game.env.text, "env_instruction": game.env.instruction})
    return game.env.beside(own) if isinstance(game.env, ToolUsingEnv) else own


async def _all_of(episodes: Sequence[Coroutine[Any, Any, T]], activity: Activity) -> list[T]:
    """Await episodes that count their own work, while this one has none; if one raises, there are no others."""
    tasks = [asyncio.ensure_future(episode) for episode in episodes]
    await asyncio.sleep(0)  # they begin, and are counted
    activity.leave_env()
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        activity.enter_env()


def _of_policies(trajectories: list[Trajectory], game: _Game) -> Trajectory:
    """Return the trajectory of the first policy, with those of the others; if one seat broke, all did."""
    env, played = game.env, game.env.game
    seats = [seat for seat in range(len(env.players)) if seat not in game.programs]
    for seat in game.unplayed:
        # Somebody lost before it was this one's turn: it has nothing to learn from, and did nothing wrong.
        trajectory = trajectories[seats.index(seat)]
        trajectory.status, trajectory.error, trajectory.score = Status.COMPLETED, None, played.earned(seat)
    broken = next((number for number, each in enumerate(trajectories) if each.status.is_error), None)
    policies = []
    for seat, trajectory in zip(seats, trajectories, strict=True):
        if env.players[seat] != POLICY:
            continue
        trajectory.seat = played.seats[seat]
        # What members of a group have in common is the deal: a later seat has seen moves of an earlier one.
        opening = f"{seat}\0{game.opening}".encode()
        trajectory.initial_hash = "" if game.opening is None else hashlib.blake2b(opening, digest_size=8).hexdigest()
        if broken is not None and not trajectory.status.is_error:
            trajectory.status, trajectory.score = trajectories[broken].status, None
            trajectory.error = _why(trajectories[broken].error, seats[broken], game)
        elif played.turn is not None and trajectory.status is Status.COMPLETED:
            trajectory.status = Status.TRUNCATED_TURNS  # another seat left the game
        policies.append(trajectory)
    policies[0].beside = policies[1:]
    return policies[0]


def _why(error: str | None, seat: int, game: _Game) -> str | None:
    """Return what broke a game, with the seat in which it happened; a move that failed says itself whose it was."""
    who = f"seat {game.table.game.seats[seat]}, {game.env.players[seat]}"
    return error if game.failure is not None else f"{who}: {error}"
