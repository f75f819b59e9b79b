"""A policy on what a configuration validates with, sampled or greedy. Nothing is trained, and nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, singledispatch
from pathlib import Path

from roll.config import AgenticConfig, ConfigError, EvaluationConfig, GeneratingArgs, Problem, RunConfig
from roll.data.prompts import Prompt
from roll.distributed import open_cluster
from roll.generation import Completion
from roll.pipelines.checks.agentic import check_agentic
from roll.pipelines.checks.rlvr import check_evaluation
from roll.pipelines.roles.core import Sampler, build_sampler
from roll.pipelines.run.interrupts import runner
from roll.pipelines.run.process import settle_process
from roll.pipelines.run.terminal import quiet_transformers, say
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.grading import GradedPlay, graders_by_tag, start_graders
from roll.pipelines.sampling.levels import VAL, require_turns, start_environments, validation_levels
from roll.pipelines.sampling.prompt_data import eval_prompts
from roll.pipelines.sampling.prompt_play import prompt_play, response_play
from roll.schedulers.answers import Grader, PromptPlay, prompt_tasks
from roll.schedulers.levels import Level, LevelPlay
from roll.schedulers.tasks import Play, Task
from roll.tracking import Progress, make_progress
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup
from roll.trajectories.store import is_trajectory_file, read_trajectories
from roll.workers.loading import Text, load_text

Evaluated = AgenticConfig | EvaluationConfig
"""What says what is measured: levels of environments, and prompts beside them, or prompts only."""

Recorded = tuple[Prompt, list[tuple[str, Completion | None]]]
"""A prompt with the responses to it, and their tokens where those were recorded."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a policy did.

    Attributes:
        groups: A group for each level or prompt, in order; those with episodes that broke are among them.
        text: Tokenizer and renderer.
        drawn: Whether the policy drew them now; what was recorded is there, however it was drawn.
    """

    groups: list[TrajectoryGroup]
    text: Text
    drawn: bool = True


@singledispatch
def check_measurable(config: RunConfig) -> None:
    """Check what loading a configuration cannot: modules, tags, engines, verifiers.

    Raises:
        ConfigError: Lists every problem.
    """
    raise _nothing_to_measure(config)


@check_measurable.register
def _(config: AgenticConfig) -> None:
    check_agentic(config, trains=False)


@check_measurable.register
def _(config: EvaluationConfig) -> None:
    check_evaluation(config)


def _nothing_to_measure(config: RunConfig) -> TypeError:
    return TypeError(f"{type(config).__name__} says nothing to measure a policy on")


def measure(config: Evaluated, *, greedy: bool = False) -> Measured:
    """Play the validation levels of a configuration, and answer its validation prompts.

    Args:
        config: What :func:`check_measurable` has passed.
        greedy: Take the likeliest token each time, and answer each prompt once.

    Raises:
        ConfigError: The configuration asks for what is not there.
    """
    for note in settle_process(config.system_envs):
        say(config, f"warning: {note}")
    with quiet_transformers():
        return runner()(measure_now(config, greedy=greedy))


async def measure_now(config: Evaluated, *, greedy: bool = False, progress: Progress | None = None) -> Measured:
    """Do the same where an event loop runs.

    Args:
        config: What :func:`check_measurable` has passed.
        greedy: Take the likeliest token each time, and answer each prompt once.
        progress: Of the run that this is part of; ``None`` shows it as ``config`` says.

    Raises:
        ConfigError: The configuration asks for what is not there.
    """
    return await _measured(config, greedy, progress)


@contextmanager
def _shown(config: Evaluated, progress: Progress | None, what: str) -> Iterator[Progress]:
    """Show what goes on, in the display of the run that it is part of or in one of its own."""
    if progress is not None:
        yield progress
        return
    with make_progress(config.progress) as own:
        own.start(0, config.exp_name, what)
        yield own


@singledispatch
def _measured(config: RunConfig, greedy: bool, shown: Progress | None) -> Awaitable[Measured]:
    raise _nothing_to_measure(config)


@_measured.register
async def _play(config: AgenticConfig, greedy: bool, shown: Progress | None) -> Measured:
    """Play the levels, and answer the prompts that are trained beside them."""
    text = require_turns(config, load_text(config))
    prompts = eval_prompts(config, config.val_data_args, text) if config.prompts_per_step and config.validation else []
    async with open_cluster(config) as cluster:
        sampler = await build_sampler(config, text, cluster)
        environments = await start_environments(config, sampler, VAL)
        graders = await start_graders(config, sampler) if config.rewards else {}
        play = _as_asked(LevelPlay(partial(environments.call, "play"), config.seed), greedy)
        if graders:
            play = GradedPlay(play, graders_by_tag(config, graders))
        levels = validation_levels(config)
        with _shown(config, shown, f"{len(levels)} levels") as progress:
            async with sampler.watched():
                with progress.stage("eval"):
                    groups = await sample_all(levels, play, progress)
                    groups += await _responses(config, sampler, graders, prompts, progress, greedy, "val-prompt-")
    return Measured(groups, text)


def _as_asked(play: Play[Level], greedy: bool) -> Play[Level]:
    async def played(task: Task[Level], episode: int, _: bool) -> Trajectory:
        return await play(task, episode, greedy)

    return played


@_measured.register
async def _answer(config: EvaluationConfig, greedy: bool, shown: Progress | None) -> Measured:
    """Answer the prompts, or grade the answers that were recorded."""
    text = load_text(config)
    data = config.val_data_args
    listed = config.recorded is not None and not is_trajectory_file(config.recorded)
    if listed:
        data = data.model_copy(update={"file_name": [str(config.recorded)]})
    prompts = eval_prompts(config, data, text)
    async with open_cluster(config) as cluster:
        sampler = await build_sampler(config, text, cluster)
        graders = await start_graders(config, sampler)
        async with sampler.watched():
            if config.recorded is not None:
                recorded = _listed if listed else _stored
                play = response_play(config, sampler, graders, config.val_generating)
                return Measured(await _grade(play, recorded(config.recorded, prompts)), text, drawn=False)
            each = 1 if greedy else config.val_generating.num_return_sequences
            with _shown(config, shown, f"{len(prompts)} prompts × {each} responses") as progress:
                with progress.stage("eval"):
                    groups = await _responses(config, sampler, graders, prompts, progress, greedy, "val-")
    return Measured(groups, text)


async def _responses(
    config: Evaluated,
    sampler: Sampler,
    graders: Mapping[str, Grader],
    prompts: Sequence[Prompt],
    progress: Progress,
    greedy: bool,
    prefix: str,
) -> list[TrajectoryGroup]:
    generating: GeneratingArgs = config.validation_generating
    if greedy:
        generating = generating.model_copy(update={"temperature": 0.0, "num_return_sequences": 1})
    play = prompt_play(config, sampler, graders, generating)
    tasks = prompt_tasks(prompts, generating.num_return_sequences, prefix)
    return await sample_all(tasks, play, progress, at_a_time=config.val_batch_size)


async def _grade(play: PromptPlay, recorded: Iterator[Recorded]) -> list[TrajectoryGroup]:
    """Grade recorded responses, prompt by prompt."""
    groups = []
    for number, (prompt, responses) in enumerate(recorded):
        name = f"val-{number:07d}"
        members = [play.grade_recorded(prompt, text, name, n, tokens) for n, (text, tokens) in enumerate(responses)]
        groups.append(TrajectoryGroup(name, prompt.tag, list(await asyncio.gather(*members)), domain=prompt.domain))
    return groups


def _stored(path: Path, prompts: Sequence[Prompt]) -> Iterator[Recorded]:
    """Yield the responses of a trajectory file with their prompts, which its trajectories name by key."""
    by_key: dict[str, list[tuple[str, Completion | None]]] = {}
    for trajectory in read_trajectories(path):
        for turn in trajectory.turns[-1:]:
            reason = "length" if trajectory.status is Status.TRUNCATED_LENGTH else "stop"
            tokens = Completion(turn.completion_ids, turn.logprobs, reason, turn.policy_version)
            by_key.setdefault(trajectory.initial_hash, []).append((turn.response, tokens))
    known = {prompt.key: prompt for prompt in prompts}
    for key, responses in by_key.items():
        if key not in known:
            message = f"the responses of {path.name} answer prompt {key!r}, which the validation files do not have."
            fix = "set validation.data_args.file_name to the files that were answered."
            raise ConfigError([Problem("recorded", message, fix, str(path))])
        yield known[key], responses


def _listed(path: Path, prompts: Sequence[Prompt]) -> Iterator[Recorded]:
    """Yield the rows of a data file that holds responses beside prompts and answers."""
    for prompt in prompts:
        found = prompt.row.get("responses", prompt.row.get("response"))
        if found is None:
            columns = ", ".join(prompt.row)
            message = f"{prompt.key} has neither a column `response` nor `responses` (it has {columns})."
            raise ConfigError([Problem("recorded", message, "name a file with recorded responses.", str(path))])
        yield prompt, [(str(text), None) for text in ([found] if isinstance(found, str) else found)]
