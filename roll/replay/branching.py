"""Goes on from turns of a stored episode, many times: what could have become of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from roll.config import ConfigError, PlayingConfig, Problem, RunError
from roll.generation import Completion
from roll.pipelines.run.interrupts import runner
from roll.pipelines.run.terminal import quiet_transformers
from roll.replay.choosing import Chosen, choose, name_of
from roll.replay.differences import differences
from roll.replay.engine import Script, request_id, stored_answers, stored_completion
from roll.replay.fans import Branches, Fan
from roll.replay.stage import (
    Replayable,
    expected_seed,
    is_answer,
    levels_play,
    load_run,
    number_of,
    open_stage,
    play_again,
    where_it_ran,
)
from roll.replay.weights import absolute, find_weights, require_tokens, version_of
from roll.runs.layout import FANS, branches_of
from roll.runs.stored import StoredRun
from roll.schedulers.levels import Level
from roll.schedulers.tasks import Task
from roll.trajectories.model import Trajectory
from roll.trajectories.store import Phase, write_trajectories

_AT_PROMPT = ("observation", "frame", "prompt", "fork", "seed")


def branch(
    run: StoredRun,
    name: str,
    turns: Sequence[int] | None = None,
    *,
    n: int = 64,
    step: int | None = None,
    phase: Phase | None = None,
    policy: str | None = None,
    temperature: float | None = None,
    seed: int = 0,
) -> Branches:
    """Go on from turns of an episode with responses that are sampled anew, and store what came of it.

    The state of a turn is reached by playing the stored responses, so the environment must follow from its seed.

    Args:
        run: The run.
        name: The episode, ``train-0000012/3``.
        turns: Before which turns, counted from 0; ``None`` for each of them.
        n: Continuations from each.
        step: Of this step or evaluation; ``None`` for the newest that has the episode.
        phase: ``train`` or ``val``.
        policy: Who goes on; ``None`` for the weights that sampled the episode, or the nearest before them.
        temperature: Of sampling; ``None`` for that of the run.
        seed: Keys the noise: the same seed gives the same continuations.

    Raises:
        ConfigError: There is no such episode or turn, or it is an answer to a prompt.
        RunError: The episode does not come out the same when it is played again.
    """
    run, policy = StoredRun(run.folder.absolute()), absolute(policy)
    chosen = choose(run, name, step, phase)
    if len(chosen.episodes) != 1:
        members = ", ".join(map(name_of, chosen.episodes[:8]))
        raise ConfigError([Problem("trajectory", "this is a group.", f"name one of {members}.", name)])
    [stored] = chosen.episodes
    require_tokens([stored])
    wanted = list(range(len(stored.turns))) if turns is None else list(turns)
    _check_turns(stored, wanted)
    weights = find_weights(run, version_of([stored], min(wanted)), policy)
    with where_it_ran(run), quiet_transformers():
        config = load_run(run, weights)
        _check_same(config, chosen, stored, max(wanted))
        script = Script(_prefixes(stored, wanted, n), goes_on=True, temperature=temperature)
        played = runner()(_go_on(config, chosen, stored, wanted, n, script, seed))
    fans = [Fan.of(turn, [one for one in played if one.group_id == _group(stored, turn)]) for turn in wanted]
    found = Branches(chosen, stored, weights, n, temperature, seed, fans)
    _store(found, played)
    return found


def _group(stored: Trajectory, turn: int) -> str:
    """Return the name of the continuations from a turn, which people count from 1."""
    return f"{name_of(stored)}@{turn + 1}"


def _prefixes(stored: Trajectory, turns: Sequence[int], n: int) -> dict[str, Completion]:
    """Return what was stored before each turn, as the answers of each of its continuations."""
    return {
        request_id(f"{_group(stored, turn)}/{member}", index, is_answer=False): stored_completion(stored, index)
        for turn in turns
        for member in range(n)
        for index in range(turn)
    }


async def _go_on(
    config: Replayable, chosen: Chosen, stored: Trajectory, turns: Sequence[int], n: int, script: Script, seed: int
) -> list[Trajectory]:
    """Play the continuations, all at the same time."""
    assert isinstance(config, PlayingConfig)
    async with open_stage(config, script) as sampler:
        play = await levels_play(config, sampler, chosen.origin.phase, seed)
        number = number_of(stored)
        tasks = [Task(Level(stored.seed), stored.tag, _group(stored, turn), n, number) for turn in turns]
        return list(await asyncio.gather(*(play(task, member, False) for task in tasks for member in range(n))))


def _check_turns(stored: Trajectory, turns: Sequence[int]) -> None:
    length = len(stored.turns)
    if not turns or not all(0 <= turn < length for turn in turns):
        fix = f"it has the turns 1 to {length}." if length else "choose one that has turns."
        asked = ", ".join(str(turn + 1) for turn in turns)
        raise ConfigError([Problem("turn", f"{name_of(stored)} has no such turn.", fix, asked)])


def _check_same(config: Replayable, chosen: Chosen, stored: Trajectory, before: int) -> None:
    """Check that an episode of an environment comes out the same up to the prompt of a turn.

    Raises:
        ConfigError: It is an answer to a prompt.
        RunError: It differs; says where.
    """
    if is_answer(config, stored):
        fix = "choose an episode of an environment; roll eval samples prompts again."
        message = "this is an answer to a prompt, which has no turns to go on from."
        raise ConfigError([Problem("trajectory", message, fix, name_of(stored))])
    [again] = runner()(play_again(config, chosen, Script(stored_answers([stored], is_answer=False))))
    for one in differences(stored, again, expected_seed(config, stored, chosen.origin.phase)):
        if one.turn < before or (one.turn == before and one.what in _AT_PROMPT):
            raise RunError(
                f"{name_of(stored)} cannot go on from turn {before + 1}, because it does not come out the same when it "
                f"is played again: {one.part}, {one.where}, {one.what}: stored {one.stored}, now {one.again}. "
                f"{one.meaning[0].upper()}{one.meaning[1:]}"
            )


def _store(found: Branches, played: Sequence[Trajectory]) -> None:
    """Write continuations, a file for each turn, and their figures, in a folder of their own beside the run."""
    origin = found.chosen.origin
    for fan in found.fans:
        members = [one for one in played if one.group_id == _group(found.stored, fan.turn)]
        path = folder_of(found) / f"turn={fan.turn + 1:03d}_step={origin.step:06d}.parquet"
        write_trajectories(path, members, step=origin.step, phase=origin.phase, run=origin.run)
    text = json.dumps(found.record(), indent=2)
    (folder_of(found) / FANS).write_text(f"{text}\n", encoding="utf-8")


def folder_of(found: Branches) -> Path:
    """Return where continuations are stored: ``branches/step=000008/train-0000012-3`` in the run's folder."""
    origin, stored = found.chosen.origin, found.stored
    return branches_of(found.chosen.run.folder, origin.phase, origin.step, stored.group_id, stored.episode)
