"""Evaluation alone: a policy, or responses that were recorded, measured and kept like a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from roll.common.registry import names_of_configurations_end
from roll.config import EvaluationConfig
from roll.config.plain_text import plain_text
from roll.pipelines.measuring import Evaluated, Measured, check_measurable, measure
from roll.pipelines.reporting.domain_metrics import evaluation_metrics
from roll.pipelines.reporting.evaluation_table import evaluation_table
from roll.pipelines.reporting.figures import Figures
from roll.pipelines.reporting.metrics import prefixed
from roll.pipelines.reporting.review import REVIEW, all_trajectories, write_review
from roll.pipelines.run.command import shown
from roll.pipelines.run.folders import folders, make_room, own_folders
from roll.pipelines.run.record import RunRecord
from roll.pipelines.run.storage import refusals_end_the_run
from roll.runs.layout import EVALUATION, TRAJECTORIES
from roll.runs.outcome import outcome_recorded
from roll.trajectories.model import TrajectoryGroup
from roll.trajectories.store import trajectory_path, write_trajectories


@dataclass(frozen=True, slots=True)
class Results:
    """What came of an evaluation.

    Attributes:
        config: What was evaluated, and how.
        sampled: Tokens drawn as the configuration says.
        greedy: The likeliest token each time; ``None`` where that was not asked for.
        metrics: The figures, by name; those of greedy play begin with ``greedy/``.
    """

    config: Evaluated
    sampled: Measured
    greedy: Measured | None
    metrics: Mapping[str, float]

    @property
    def greedy_groups(self) -> list[TrajectoryGroup] | None:
        """What was played greedily, if anything was."""
        return None if self.greedy is None else self.greedy.groups


def run_evaluation(config: EvaluationConfig) -> dict[str, float]:
    """Evaluate, show a table per source, and store metrics, trajectories and a review under ``output_dir``.

    Returns:
        The metrics (see :func:`roll.pipelines.reporting.domain_metrics.evaluation_metrics`).

    Raises:
        ConfigError: If the configuration asks for what is not there. Nothing has been written then.
        RunError: If the results cannot be written.
    """
    results = evaluate_and_store(config)
    if config.progress != "none":
        show_evaluation(results)
    return dict(results.metrics)


@names_of_configurations_end()
def evaluate_only(config: Evaluated, *, greedy: bool = False) -> Results:
    """Measure a policy on what a configuration validates with, and keep nothing.

    Args:
        config: The configuration.
        greedy: Whether to measure once more, greedily.

    Raises:
        ConfigError: If the configuration asks for what is not there.
    """
    check_measurable(config)
    return _measured(config, greedy)


@names_of_configurations_end()
def evaluate_and_store(config: Evaluated, *, greedy: bool = False) -> Results:
    """Do the same, and write the figures, and the sampled episodes with a review, under ``output_dir``.

    Args:
        config: The configuration.
        greedy: Whether to measure once more, greedily; of that, only figures are kept.

    Raises:
        ConfigError: If the configuration asks for what is not there. Nothing has been written then.
        RunError: If the results cannot be written.
    """
    check_measurable(config)
    with own_folders(config), refusals_end_the_run(folders(config), str):
        results = _measured(config, greedy)
        with outcome_recorded(config.output_dir, lambda: True):
            _store(config, results)
    return results


def _measured(config: Evaluated, greedy: bool) -> Results:
    sampled = measure(config)
    greedily = measure(config, greedy=True) if greedy and sampled.drawn else None
    metrics = evaluation_metrics(sampled.groups)
    if greedily is not None:
        metrics |= prefixed(evaluation_metrics(greedily.groups), "greedy")
    return Results(config, sampled, greedily, metrics)


def _store(config: Evaluated, results: Results) -> None:
    """Write figures, trajectories and review where an earlier run may have been."""
    groups, text = results.sampled.groups, results.sampled.text
    make_room(config, None)
    RunRecord.of(config).write(config.output_dir)
    trajectories = list(all_trajectories(groups))
    write_trajectories(
        trajectory_path(config.output_dir, 0, "val"),
        trajectories,
        step=0,
        phase="val",
        run=config.exp_name,
        token_text=text.token_text,
    )
    figures = json.dumps(dict(results.metrics), indent=2)
    (config.output_dir / EVALUATION).write_text(f"{figures}\n", encoding="utf-8")
    write_review(config, groups, 0, text.token_text)


def show_evaluation(results: Results) -> None:
    """Show the figures of an evaluation that was stored, one row per source or tag, and where everything is."""
    # Sources have the names that a data file gives them. In a notebook: lines, not a box of HTML each.
    console = Console(markup=False, force_jupyter=False)
    config, metrics = results.config, results.metrics
    console.print(evaluation_table(config.exp_name, results.sampled.groups, results.greedy_groups, metrics))
    if metrics["errors"]:
        what = "episodes broke" if config.plays else "responses could not be graded"
        first = (
            f" The first: {plain_text(str(broken))}" if (broken := Figures.of(results.sampled.groups).broken) else ""
        )
        console.print(f"{metrics['errors']:.0f} {what} and are left out.{first}", soft_wrap=True)
    stored, review = config.output_dir / EVALUATION, config.render_path / REVIEW
    console.print(
        f"metrics {shown(stored)}, responses {shown(config.output_dir / TRAJECTORIES)}, review {shown(review)}",
        soft_wrap=True,
    )
