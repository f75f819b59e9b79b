"""The command line of an example script: Hydra's own, with readable errors and without its output folders."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from roll.common.ending import end_quickly
from roll.common.standard_streams import show_what_can_be_shown
from roll.config.agentic import AgenticConfig
from roll.config.command_line import CommandLine
from roll.config.composing import composition_error, find
from roll.config.errors import ConfigError, ConfigWarning, RunError
from roll.config.kinds import PIPELINES, PipelineKind, kind_to_run, kind_with, runner
from roll.config.leaving import EXIT_CONFIG, EXIT_INTERRUPTED, EXIT_RUN, EXIT_UNREAD, drop_output, leave
from roll.config.loading import check, kind_of
from roll.config.moving import move_outputs
from roll.config.multirun import FINISHED, Job, Jobs
from roll.config.process import collector_waits, prepare_process
from roll.config.run import RunConfig

Config = TypeVar("Config", bound=RunConfig)

_FULL_ERROR = "HYDRA_FULL_ERROR"


def launch(
    run: str | Callable[[Config], Any] | None,
    *,
    config_dir: Path,
    kind: type[Config] = AgenticConfig,  # type: ignore[assignment]
    config_name: str | None = None,
    argv: Sequence[str] | None = None,
    started: Sequence[str] = (),
) -> None:
    """Read the command line, compose and check the configuration, then run it.

    Hydra's own options work: ``--config-name``, ``--config-dir``, ``--cfg job``, ``--multirun``, ``--help``, and
    overrides (``max_steps=5``), which may name any key whether or not the YAML file has it. With ``--multirun`` each
    job writes to a folder of its own, ``output_dir/multirun/<time>/<number>``. It ends with a table of the jobs, whose
    results are taken from what the runs return.

    Configurations are looked for in ``--config-dir``, then in ``config_dir``, then among those of the package, which
    any of them can build on.

    Args:
        run: The kind of run where the configuration names none (``"agentic"``, see
            :func:`roll.config.kinds.register_pipeline`); or a function that is called with the checked configuration,
            once per job, whatever its kind is called; or ``None``: the kind is told by the keys.
        config_dir: Folder of the program's own YAML files.
        kind: The model to validate with, where ``run`` is a function.
        config_name: The file to read where the command line names none.
        argv: The command line without the program; that of the process if ``None``.
        started: The words that were typed in front of ``argv``, where that is more than the program; the commands that
            a run prints begin with them.

    Raises:
        SystemExit: With code 1 if no file has the name given, with code 2 and the list of problems on standard error
            if the configuration cannot be used, with code 3 if the run cannot go on, with code 130 after Ctrl-C.
    """
    if argv is None:
        end_quickly()
        show_what_can_be_shown()
    program = PIPELINES.get(run) if isinstance(run, str) else PipelineKind("", kind, run) if run else None
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        # Hydra takes a quarter of a second to import; only programs need it.
        import hydra

        command = CommandLine.parse(words, config_dir, config_name, program.config if program else None)
        primary = command.primary_file()
        work = _Work(program, primary, [*(started or [sys.argv[0]]), *words], started)
        main = hydra.main(version_base="1.3", config_path=str(command.config_path), config_name=None)(work.run_job)
        with (
            collector_waits() as work.imported,
            _argv([sys.argv[0], *command.for_hydra(primary)]),
            _help_made_when_shown(),
            work.composing,
            warnings.catch_warnings(),
        ):
            # A file without _self_ overrides its defaults, which is what the guide's own files rely on.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
            try:
                main()
            finally:
                if work.jobs.jobs:
                    work.jobs.show()
        if work.jobs.code:
            raise SystemExit(work.jobs.code)
    except BrokenPipeError:
        drop_output()
        raise SystemExit(EXIT_UNREAD) from None
    except KeyboardInterrupt as interrupt:
        leave(EXIT_INTERRUPTED, str(interrupt) or "Stopped.")
    except ConfigError as error:
        leave(EXIT_CONFIG, str(error))


def launch_named(name: str, words: Sequence[str], *, program: Sequence[str], kind: str | None = None) -> None:
    """Run the configuration of that name, with the pipeline that it is for.

    Args:
        name: A name or a file, as :func:`roll.config.load` takes it.
        words: Overrides, and options of Hydra.
        program: The words that were typed in front of ``name``; the commands that a run prints begin with them.
        kind: The kind of run, where the configuration can be for several; ``None``: that which it names, or whose keys
            it has.

    Raises:
        ConfigError: There is no such configuration.
        SystemExit: As :func:`launch`.
    """
    path = find(name)
    launch(kind, config_dir=path.parent, config_name=path.name, argv=words, started=[*program, name])


class _Composing:
    """While Hydra composes, what it raises is a problem of the configuration; not while a job runs.

    Args:
        source: The primary file.
    """

    def __init__(self, source: str | None) -> None:
        self._source = source
        self._before = os.environ.get(_FULL_ERROR)
        self._composes = False

    def __enter__(self) -> None:
        # Hydra would write its errors and leave the process; this makes it raise them.
        os.environ[_FULL_ERROR] = "1"
        self._composes = True

    @contextmanager
    def done(self) -> Iterator[None]:
        """Let a job run."""
        self._restore()
        yield
        self.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        composes = self._composes
        self._restore()
        if isinstance(error, BrokenPipeError):
            return
        if composes and self._before is None and isinstance(error, Exception):
            raise composition_error(error, self._source) from error

    def _restore(self) -> None:
        self._composes = False
        os.environ.pop(_FULL_ERROR, None)
        if self._before is not None:
            os.environ[_FULL_ERROR] = self._before


class _Work:
    """What a command asks for: one run, or with ``--multirun`` several.

    Args:
        program: The kind of run where the configuration names none; without a name, the only one; ``None``: the one
            whose keys the configuration has.
        source: The primary file.
        words: The command line.
        started: Those of it that start the same configuration without overrides; empty for a script.
    """

    def __init__(
        self, program: PipelineKind | None, source: str | None, words: Sequence[str], started: Sequence[str]
    ) -> None:
        self._program = program
        self._source = source
        self._words = words
        self._started = started
        self.composing = _Composing(source)
        self.jobs = Jobs()
        self.imported: Callable[[], None] = lambda: None
        """Is called when all that a run imports before it starts is there."""

    def run_job(self, composed: DictConfig) -> None:
        """Run what was composed. A job of a multirun that fails does not keep the others from running."""
        with self.composing.done():
            several, job = _job_of(composed)
            if several:
                self.jobs.jobs.append(job)
                move_outputs(composed, job.folder)
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    kind = self._kind(composed)
                    config = check(
                        composed,
                        kind=kind.config,
                        source=self._source,
                        overrides=job.overrides,
                        command=self._words,
                        program=self._started,
                    )
                for item in caught:
                    _report(item)
                prepare_process(config.system_envs)
                run = runner(kind.run)
                self.imported()
                job.result = run(config)
                job.state = FINISHED
            except (ConfigError, RunError) as error:
                code, job.state = (EXIT_CONFIG, "refused") if isinstance(error, ConfigError) else (EXIT_RUN, "failed")
                if not several:
                    leave(code, str(error))
                self.jobs.code = max(self.jobs.code, code)
                sys.stderr.write(f"Job {job.number} {job.state}. {error}\n")
            except KeyboardInterrupt:
                job.state = "stopped"
                raise

    def _kind(self, composed: DictConfig) -> PipelineKind:
        if self._program is None:
            return kind_with(kind_of(composed))
        return kind_to_run(composed, self._program) if self._program.name else self._program


def _job_of(composed: DictConfig) -> tuple[bool, Job]:
    """Return the job that Hydra has composed, and whether it is one of several."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra_config = HydraConfig.get()
    # As written: what they interpolate belongs to the configuration, not to Hydra's own.
    overrides = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    assert isinstance(overrides, list)
    several = hydra_config.mode == RunMode.MULTIRUN
    return several, Job(hydra_config.job.num if several else 0, Path(hydra_config.runtime.output_dir), overrides)


def _report(item: warnings.WarningMessage) -> None:
    """Show one warning of ours as a sentence; give any other back to Python."""
    if issubclass(item.category, ConfigWarning):
        sys.stderr.write(f"Warning: {item.message}\n")
    else:
        warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)


@contextmanager
def _argv(replacement: list[str]) -> Iterator[None]:
    """Lend Hydra, which reads the command line of the process, another one."""
    original = sys.argv
    sys.argv = replacement
    try:
        yield
    finally:
        sys.argv = original


@contextmanager
def _help_made_when_shown() -> Iterator[None]:
    """Let Hydra declare an option whose help is no text yet: from Python 3.14 on argparse looks at each at once."""
    container: Any = argparse._ActionsContainer
    check = getattr(container, "_check_help", None)
    if check is None:
        yield
        return

    def check_text(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        if isinstance(action.help, str):
            check(parser, action)

    container._check_help = check_text
    try:
        yield
    finally:
        container._check_help = check
