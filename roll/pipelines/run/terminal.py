"""What a person reads around the live display: the plan before it, warnings of the maths, and no library chatter."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from transformers.utils import logging as transformers_logging

from roll.algorithms.groups import AlgorithmWarning
from roll.config import BatchPlan, PipelineConfig
from roll.config.plain_text import plain_text
from roll.models.quiet import quiet_deepspeed
from roll.pipelines.run.command import shown
from roll.pipelines.run.folders import TRAJECTORIES
from roll.pipelines.run.record import RunRecord
from roll.tracking import Progress


def say(config: PipelineConfig, text: str) -> None:
    """Write a line to standard output, unless the run shows nothing. Before the display starts only."""
    if config.progress != "none":
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def say_differences(config: PipelineConfig, record: RunRecord) -> None:
    """Say how the configuration differs from that of the checkpoint that the run continues from."""
    if record.continued_from is not None:
        found = record.differences(record.continued_from)
        if found:
            listed = "".join(f"\n  {line}" for line in found)
            say(config, f"The checkpoint was made with other settings, now changed:{listed}")


def introduce(config: PipelineConfig, batch_plan: BatchPlan, warnings_found: Sequence[str]) -> None:
    """Show the batch plan, and what has no effect."""
    say(config, f"{config.exp_name} → {config.output_dir}")
    say(config, "".join(f"  {line}\n" for line in batch_plan.describe().splitlines()).rstrip("\n"))
    for warning in warnings_found:
        say(config, f"warning: {warning}")


def headline(config: PipelineConfig, batch_plan: BatchPlan) -> str:
    """Return policy, algorithm and batch in a few words."""
    policy = Path(config.model_path("actor_train")).name
    return f"{policy}, {config.adv_estimator}, {batch_plan.train.short()}"


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch the progress bars and notices of transformers off for a while: the run has a display of its own."""
    quiet_deepspeed()
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def algorithm_warnings(progress: Progress) -> Iterator[None]:
    """Show what the maths warns about (all advantages zero, …) on the display, each sentence once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AlgorithmWarning)
        yield
    ours = [item for item in caught if issubclass(item.category, AlgorithmWarning)]
    for message in dict.fromkeys(str(item.message) for item in ours):
        progress.warning(message)
    for item in caught:
        if item not in ours:
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)


def show_evaluation(config: PipelineConfig, metrics: Mapping[str, float], stored: Path) -> None:
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
