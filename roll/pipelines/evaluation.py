"""Evaluation alone: a policy, or responses that were recorded, graded per source."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from roll.config import ConfigError, EvaluationConfig, Problem
from roll.config.plain_text import plain_text
from roll.config.worker import GeneratingArgs
from roll.data.prompts import Prompt
from roll.distributed import open_cluster
from roll.generation import Completion
from roll.pipelines.checks.rlvr import check_evaluation
from roll.pipelines.reporting.domain_metrics import evaluation_metrics
from roll.pipelines.reporting.review import shown_episodes
from roll.pipelines.roles.core import build_sampler
from roll.pipelines.run.command import shown
from roll.pipelines.run.folders import EVALUATION, TRAJECTORIES, folders, make_room, own_folders
from roll.pipelines.run.interrupts import runner
from roll.pipelines.run.process import settle_process
from roll.pipelines.run.record import RunRecord
from roll.pipelines.run.storage import refusals_end_the_run
from roll.pipelines.run.terminal import quiet_transformers, say
from roll.pipelines.sampling.evaluation import sample_all
from roll.pipelines.sampling.prompts import eval_prompts, prompt_play, start_graders
from roll.schedulers.answers import PromptPlay, prompt_tasks
from roll.tracking import make_progress
from roll.trajectories.model import Status, TrajectoryGroup
from roll.trajectories.store import is_trajectory_file, read_trajectories, trajectory_path, write_trajectories
from roll.viewer import write_pages
from roll.workers.loading import Text, load_text

Recorded = tuple[Prompt, list[tuple[str, Completion | None]]]
"""A prompt with the responses to it, and their tokens where those were recorded."""


def run_evaluation(config: EvaluationConfig) -> dict[str, float]:
    """Evaluate, show a table per source, and store metrics, trajectories and review pages under ``output_dir``.

    Returns:
        The metrics (see :func:`roll.pipelines.reporting.domain_metrics.evaluation_metrics`).

    Raises:
        ConfigError: If the configuration asks for what is not there. Nothing has been written then.
        RunError: If the results cannot be written.
    """
    check_evaluation(config)
    for note in settle_process(config.system_envs):
        say(config, f"warning: {note}")
    with own_folders(config), quiet_transformers(), refusals_end_the_run(folders(config), str):
        groups, text = runner()(_evaluate(config))
        metrics = evaluation_metrics(groups)
        _store(config, groups, metrics, text)
    show_evaluation(config, metrics, config.output_dir / EVALUATION)
    return metrics


def _store(config: EvaluationConfig, groups: Sequence[TrajectoryGroup], metrics: dict[str, float], text: Text) -> None:
    """Write figures, trajectories and pages where an earlier run may have been."""
    make_room(config, None)
    RunRecord.of(config).write(config.output_dir)
    trajectories = [member for group in groups for member in group.trajectories]
    write_trajectories(
        trajectory_path(config.output_dir, 0, "val"), trajectories, step=0, phase="val", run=config.exp_name
    )
    (config.output_dir / EVALUATION).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    write_pages(
        shown_episodes(groups),
        config.render_path,
        title=config.exp_name,
        step=0,
        token_text=text.token_text,
        of=trajectories,
    )


async def _evaluate(config: EvaluationConfig) -> tuple[list[TrajectoryGroup], Text]:
    text = load_text(config)
    data = config.val_data_args
    listed = config.recorded is not None and not is_trajectory_file(config.recorded)
    if listed:
        data = data.model_copy(update={"file_name": [str(config.recorded)]})
    prompts = eval_prompts(config, data, text)
    async with open_cluster(config) as cluster:
        sampler = await build_sampler(config, text, cluster)
        play = prompt_play(config, sampler, await start_graders(config, sampler), config.val_generating)
        async with sampler.engines.watched():
            if config.recorded is None:
                return await _sample(config, config.val_generating, prompts, play), text
            recorded = _listed if listed else _stored
            return await _grade(play, recorded(config.recorded, prompts)), text


async def _sample(
    config: EvaluationConfig, generating: GeneratingArgs, prompts: Sequence[Prompt], play: PromptPlay
) -> list[TrajectoryGroup]:
    """Answer every prompt."""
    tasks = prompt_tasks(prompts, generating.num_return_sequences, "val-")
    with make_progress(config.progress) as progress:
        progress.start(0, config.exp_name, f"{len(prompts)} prompts × {generating.num_return_sequences} responses")
        with progress.stage("eval"):
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


def show_evaluation(config: EvaluationConfig, metrics: Mapping[str, float], stored: Path) -> None:
    """Show the accuracies of an evaluation, one row per source, and where everything is."""
    if config.progress == "none":
        return
    names = [name for name in metrics if name.startswith(("mean@", "pass@"))]
    sources = [name.removesuffix(f"/{names[0]}") for name in metrics if names and name.endswith(f"/{names[0]}")]
    table = Table(title=config.exp_name, title_justify="left", box=box.ROUNDED, header_style="dim", border_style="dim")
    table.add_column("source")
    for name in names:
        table.add_column(name, justify="right")
    for source in sources:
        table.add_row(plain_text(source), *(f"{metrics[f'{source}/{name}']:.1%}" for name in names))
    if len(sources) != 1:
        table.add_row("all", *(f"{metrics[name]:.1%}" for name in names), style="bold")
    # Sources have the names that a data file gives them. In a notebook: lines, not a box of HTML each.
    console = Console(markup=False, force_jupyter=False)
    console.print(table)
    if metrics.get("errors"):
        console.print(f"{metrics['errors']:.0f} responses could not be graded and are left out.")
    console.print(
        f"metrics {shown(stored)}, responses {shown(config.output_dir / TRAJECTORIES)}, "
        f"pages {shown(config.render_path / 'index.html')}",
        soft_wrap=True,
    )
