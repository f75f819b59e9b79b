"""The start of a run of any kind, and how its end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from roll.config import RunConfig, RunError
from roll.pipelines.run.folders import folders, own_folders
from roll.pipelines.run.life_cycle import Run
from roll.pipelines.run.process import run_to_end, settle_process
from roll.pipelines.run.storage import refusals_end_the_run
from roll.pipelines.run.terminal import introduce, quiet_transformers
from roll.tracking import RunSummary, make_progress

Config = TypeVar("Config", bound=RunConfig)


def start_run(kind: type[Run[Config]], config: Config, notes: Sequence[str] = ()) -> RunSummary:
    """Run to the end and return what came of it.

    Args:
        kind: The kind of run.
        config: A configuration that its preflight check has passed.
        notes: What that check found to have no effect.

    Raises:
        ConfigError: If the configuration asks for what is not there (a model, a checkpoint), or another run writes to
            its folders. Nothing has been written.
        RunError: If the run cannot go on (every episode fails, a gradient is not finite, a disk is full).
        KeyboardInterrupt: After Ctrl-C or SIGTERM. Of either, the last completed step is saved, and the message says
            how to continue.
    """
    with own_folders(config) as more, quiet_transformers(), make_progress(config.progress) as progress:
        introduce(config, [*notes, *more, *settle_process(config.system_envs)])
        run = kind(config, progress)
        try:
            with refusals_end_the_run(folders(config), run.how_to_continue):
                return run_to_end(run.run())
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise KeyboardInterrupt(f"Stopped. {run.how_to_continue()}") from None
        except run.fails_with as error:
            raise RunError(f"{error}\n{run.how_to_continue()}") from error
