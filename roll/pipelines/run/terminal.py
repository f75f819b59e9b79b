"""What a person reads around the live display: the plan before it, and no library chatter."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging

from roll.config import RunConfig
from roll.models.quiet import quiet_deepspeed
from roll.pipelines.run.record import RunRecord


def say(config: RunConfig, text: str) -> None:
    """Write a line to standard output, unless the run shows nothing. Before the display starts only."""
    if config.progress != "none":
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def say_differences(config: RunConfig, record: RunRecord) -> None:
    """Say how the configuration differs from that of the checkpoint that the run continues from."""
    if record.continued_from is not None:
        found = record.differences(record.continued_from)
        if found:
            listed = "".join(f"\n  {line}" for line in found)
            say(config, f"The checkpoint was made with other settings, now changed:{listed}")


def introduce(config: RunConfig, warnings_found: Sequence[str]) -> None:
    """Show the plan of the run, and what has no effect."""
    say(config, f"{config.exp_name} → {config.output_dir}")
    say(config, "".join(f"  {line}\n" for line in config.plan().describe().splitlines()).rstrip("\n"))
    for warning in warnings_found:
        say(config, f"warning: {warning}")


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
