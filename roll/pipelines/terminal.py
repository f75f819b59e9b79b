"""What a person reads around the live display: the plan before it, warnings of the maths, and no library chatter."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformers.utils import logging as transformers_logging

from roll.algorithms.groups import AlgorithmWarning
from roll.config import AgenticConfig, BatchPlan
from roll.tracking import Progress


def say(config: AgenticConfig, text: str) -> None:
    """Write a line to standard output, unless the run shows nothing. Before the display starts only."""
    if config.progress != "none":
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def introduce(config: AgenticConfig, batch_plan: BatchPlan, warnings_found: Sequence[str]) -> None:
    """Show the batch plan, and what has no effect."""
    say(config, f"{config.exp_name} → {config.output_dir}")
    say(config, "".join(f"  {line}\n" for line in batch_plan.describe().splitlines()).rstrip("\n"))
    for warning in warnings_found:
        say(config, f"warning: {warning}")


def headline(config: AgenticConfig, batch_plan: BatchPlan) -> str:
    """Return policy, algorithm and batch in a few words."""
    policy = Path(config.model_path("actor_train")).name
    groups = sum(count for _, count in batch_plan.train.groups)
    return f"{policy}, {config.adv_estimator}, {groups} groups of {batch_plan.train.group_size}"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch the progress bars and notices of transformers off for a while: the run has a display of its own."""
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
