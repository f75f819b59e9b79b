"""Everything of a run but its training, set up again around a script of stored answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from roll.config import ConfigError, PlayingConfig, Problem, load
from roll.config.answering import AnsweringConfig
from roll.config.kinds import check_before
from roll.config.prompt_keys import PromptKeys
from roll.data.prompts import Prompt
from roll.distributed import WorkerSpec, open_cluster
from roll.envs import env_seed
from roll.pipelines.roles.core import Sampler, build_sampler
from roll.pipelines.run.process import settle_process
from roll.pipelines.sampling.grading import GradedPlay, graders_by_tag, start_graders
from roll.pipelines.sampling.levels import TRAIN, VAL, VALIDATION_OFFSET, start_environments
from roll.pipelines.sampling.prompt_data import eval_prompts, load_data
from roll.pipelines.sampling.prompt_play import prompt_play
from roll.replay.choosing import Chosen
from roll.replay.engine import Script, StoredEngine
from roll.replay.weights import Weights
from roll.rewards.groups import GroupRubric
from roll.runs.layout import CONFIG
from roll.runs.stored import StoredRun
from roll.schedulers.levels import Level, LevelPlay
from roll.schedulers.tasks import Play, Task
from roll.trajectories.model import Trajectory
from roll.trajectories.store import Phase
from roll.workers.loading import Text, load_text

Replayable = PlayingConfig | AnsweringConfig
"""Says what was sampled, whatever was learned from it: levels of environments, and prompts beside them, or prompts."""


def load_run(run: StoredRun, weights: Weights | None) -> Replayable:
    """Return the configuration of a run as something that samples in this process, and check it.

    Args:
        run: The run.
        weights: The policy; ``None`` where none is asked.

    Raises:
        ConfigError: It cannot be used here; the message says why.
    """
    own: dict[str, Any] = {
        "cluster": "local",
        "progress": "none",
        "resume_from_checkpoint": False,
        "actor_infer.device_mapping": None,
        "actor_infer.world_size": None,
    }
    if weights is not None and weights.folder is not None:
        own["actor_train.model_args.model_name_or_path"] = weights.folder
    if not samples_alike(run):
        own["actor_infer.strategy_args"] = {"strategy_name": "hf_infer", "strategy_config": {}}
    config = load(run.folder / CONFIG, overrides=own)
    if not isinstance(config, Replayable):
        fix = "choose a run that plays episodes or answers prompts."
        raise ConfigError([Problem("pipeline", "it samples nothing that could be played again.", fix, config.pipeline)])
    check_before(config)
    settle_process(config.system_envs)
    return config


def samples_alike(run: StoredRun) -> bool:
    """Whether the engine of a run draws the same tokens from the same request and weights, whatever runs beside it."""
    arguments = (run.config.get("actor_infer") or {}).get("strategy_args") or {}
    return arguments.get("strategy_name") == "hf_infer"


@contextlib.contextmanager
def where_it_ran(run: StoredRun) -> Iterator[None]:
    """Work in the folder in which a run was started, if it is there: its configuration names files as seen from it."""
    folder = Path(str(run.record.get("folder") or "."))
    with contextlib.chdir(folder) if folder.is_dir() else contextlib.nullcontext():
        yield


def is_one_request(config: Replayable, trajectory: Trajectory) -> bool:
    """Whether an episode is a response to a prompt without tools, whose request is named as the episode is."""
    return is_answer(config, trajectory) and not config.tools


def is_answer(config: Replayable, trajectory: Trajectory) -> bool:
    """Whether an episode of a run is a response to a prompt."""
    return not config.plays or trajectory.group_id.split("-")[1:2] == ["prompt"]


def number_of(trajectory: Trajectory) -> int:
    """Return the number of an episode's group, which its name ends with.

    Raises:
        ConfigError: It has none.
    """
    digits = trajectory.group_id.rpartition("-")[2]
    if not digits.isdigit():
        fix = "choose an episode of the run itself, as roll view shows them."
        raise ConfigError([Problem("trajectory", "this is no group of a run.", fix, trajectory.group_id)])
    return int(digits)


def expected_seed(config: Replayable, trajectory: Trajectory, phase: Phase) -> int:
    """Return the seed that the configuration gives the environment of an episode."""
    offset = VALIDATION_OFFSET if phase == "val" else 0
    return env_seed(config.seed, trajectory.tag, offset + number_of(trajectory), 0)


@asynccontextmanager
async def open_stage(config: Replayable, script: Script) -> AsyncIterator[Sampler]:
    """Start what samples, with the script in place of the engine, and end it afterwards."""
    text: Text = load_text(config)
    async with open_cluster(config) as cluster:
        stand_in = WorkerSpec(cls=StoredEngine, kwargs={"script": script})
        yield await build_sampler(config, text, cluster, stand_in=stand_in)


async def play_again(config: Replayable, chosen: Chosen, script: Script) -> list[Trajectory]:
    """Play stored episodes again.

    All at the same time, as they were: an engine that computes the same tokens beside each other gives the same bits.

    Returns:
        What became of each, in the order of ``chosen.episodes``.
    """
    episodes, phase = _with_groups(config, chosen), chosen.origin.phase
    async with open_stage(config, script) as sampler:
        players = await _players(config, sampler, phase, {is_answer(config, each) for each in episodes})

        async def play(stored: Trajectory) -> Trajectory:
            return await players[is_answer(config, stored)](stored)

        played = list(await asyncio.gather(*map(play, episodes)))
    if _compares_members(config, phase):
        await _grade_groups(config, played)
    by_name = {(each.group_id, each.episode): each for each in played}
    return [by_name[each.group_id, each.episode] for each in chosen.episodes]


PlayStored = Callable[[Trajectory], Awaitable[Trajectory]]
"""Plays what a stored episode played."""


async def levels_play(config: PlayingConfig, sampler: Sampler, phase: Phase, run_seed: int) -> Play[Level]:
    """Start the environments of a phase, and what grades beside them, as the run did.

    Args:
        config: The run.
        sampler: What samples.
        phase: Whose env manager section and sampling count.
        run_seed: Keys the sampling noise.
    """
    environments = await start_environments(config, sampler, TRAIN if phase == "train" else VAL)
    play = LevelPlay(partial(environments.call, "play"), run_seed)
    graders = await start_graders(config, sampler) if config.rewards else {}
    return GradedPlay(play, graders_by_tag(config, graders)) if graders else play


async def _players(
    config: Replayable, sampler: Sampler, phase: Phase, kinds: AbstractSet[bool]
) -> dict[bool, PlayStored]:
    """Return what plays answers to prompts (``True``), and levels of environments (``False``)."""
    players: dict[bool, PlayStored] = {}
    if False in kinds:
        assert isinstance(config, PlayingConfig)
        players[False] = partial(_play_level, await levels_play(config, sampler, phase, config.seed))
    if True in kinds:
        training = phase == "train"
        generating = config.actor_infer.generating_args if training else config.validation_generating
        play = prompt_play(config, sampler, await start_graders(config, sampler), generating, training)
        players[True] = partial(_answer_prompt, play, _prompts(config, sampler, phase))
    return players


async def _play_level(play: Play[Level], stored: Trajectory) -> Trajectory:
    task = Task(Level(stored.seed), stored.tag, stored.group_id, 1, number_of(stored))
    return await play(task, stored.episode, False)


async def _answer_prompt(play: Play[Prompt], prompts: Callable[[int], Prompt], stored: Trajectory) -> Trajectory:
    number = number_of(stored)
    prompt = prompts(number)
    return await play(Task(prompt, prompt.tag, stored.group_id, 1, number, prompt.domain), stored.episode, False)


def _prompts(config: PromptKeys, text: Text, phase: Phase) -> Callable[[int], Prompt]:
    """Return what gives the prompt of a number.

    Raises:
        ConfigError: The files of the run cannot be read; when called, they have no such prompt.
    """
    if phase == "train":
        return load_data(config, text).train.at
    listed = eval_prompts(config, config.val_data_args, text)

    def prompt(number: int) -> Prompt:
        if number < len(listed):
            return listed[number]
        message = f"the validation files have {len(listed)} prompts now, and prompt {number} was answered."
        raise ConfigError([Problem("validation.data_args.file_name", message, "put the files of the run back.")])

    return prompt


def _with_groups(config: Replayable, chosen: Chosen) -> list[Trajectory]:
    """Return the episodes, with all members of their groups where those are compared with each other for rewards."""
    if not _compares_members(config, chosen.origin.phase):
        return chosen.episodes
    groups = {each.group_id for each in chosen.episodes}
    return [each for each in chosen.everything if each.group_id in groups]


def _compares_members(config: Replayable, phase: Phase) -> bool:
    """Whether the members of a group are compared with each other for rewards, which only training does."""
    return phase == "train" and bool(config.group_reward)


async def _grade_groups(config: Replayable, played: Sequence[Trajectory]) -> None:
    """Add what members of a group earn beside each other."""
    rubric = GroupRubric(config.group_reward)
    for group in {each.group_id for each in played}:
        members = [each for each in played if each.group_id == group]
        await rubric.grade(sorted(members, key=lambda member: member.episode))
