"""The command line of an example script: Hydra's own, with readable errors and without its output folders."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from roll.common.spelling import closest
from roll.config.agentic import AgenticConfig
from roll.config.composing import composition_error, is_primary, quoted, require_sound_overrides, upsert
from roll.config.errors import ConfigError, ConfigWarning, RunError
from roll.config.kinds import PIPELINES, PipelineKind, kind_to_run, runner
from roll.config.loading import check, kind_of
from roll.config.multirun import FINISHED, Job, Jobs
from roll.config.plain_text import plain_text
from roll.config.process import prepare_process
from roll.config.rl import RLConfig
from roll.config.run import RunConfig
from roll.config.yaml_files import require_sound_files

Config = TypeVar("Config", bound=RunConfig)

EXIT_CONFIG_NAME = 1
"""Exit code where no configuration file has the name given."""

EXIT_CONFIG = 2
"""Exit code where the configuration cannot be used."""

EXIT_RUN = 3
"""Exit code where a run cannot go on."""

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""

_QUIET_HYDRA = {
    # Hydra would otherwise make outputs/<date>/<time>, copy the configuration there and log to a file beside it.
    "hydra.run.dir": ".",
    "hydra.output_subdir": "null",
    "hydra/job_logging": "none",
    # It would show what any library logs (a request of httpx) as its own; this leaves what it says of a sweep itself.
    "hydra.hydra_logging.root.handlers": "[]",
    "hydra.hydra_logging.root.level": "WARNING",
    "++hydra.hydra_logging.loggers.hydra": "{level: INFO, handlers: [console], propagate: false}",
    "hydra.hydra_logging.formatters.simple.format": "'%(message)s'",
    "hydra.sweep.dir": "'${oc.select:output_dir,output}/multirun/${now:%Y-%m-%d_%H-%M-%S}'",
    "hydra.sweep.subdir": "'${hydra.job.num}'",
}

_HELP = """\
Usage: python {program} --config-name NAME [key=value ...]

Configurations in {folder}: {names}.
Any key can be set by an override, with dots for sections: max_steps=5 actor_train.training_args.learning_rate=1e-5
Other options: --config-dir DIR (look there too), --cfg job (show the configuration and leave),
--multirun (a run for each of key=a,b), --hydra-help (all options). With --config-name, --help shows that one, too.
"""

_FULL_ERROR = "HYDRA_FULL_ERROR"

_OUTPUT_KEYS = ("logging_dir", "render_save_dir", "checkpoint_config.output_dir", "tracker_kwargs.log_dir")


def launch(
    run: str | Callable[[Config], Any],
    *,
    config_dir: Path,
    kind: type[Config] = AgenticConfig,  # type: ignore[assignment]
    config_name: str | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Read the command line, compose and check the configuration, then run it.

    Hydra's own options work: ``--config-name``, ``--config-dir``, ``--cfg job``, ``--multirun``, ``--help``, and
    overrides (``max_steps=5``), which may name any key whether or not the YAML file has it. With ``--multirun`` each
    job writes to a folder of its own, ``output_dir/multirun/<time>/<number>``. It ends with a table of the jobs, whose
    results are taken from what the runs return.

    Args:
        run: The kind of run where the configuration names none (``"agentic"``, see
            :func:`roll.config.kinds.register_pipeline`); or a function that is called with the checked configuration,
            once per job, whatever its kind is called.
        config_dir: Folder of the YAML files.
        kind: The model to validate with, where ``run`` is a function.
        config_name: The file to read where the command line names none.
        argv: The command line without the program; that of the process if ``None``.

    Raises:
        SystemExit: With code 1 if no file has the name given, with code 2 and the list of problems on standard error
            if the configuration cannot be used, with code 3 if the run cannot go on, with code 130 after Ctrl-C.
    """
    program = PIPELINES.get(run) if isinstance(run, str) else PipelineKind("", kind, run)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        # Hydra takes a quarter of a second to import; only programs need it.
        import hydra

        command = _CommandLine.parse(words, config_dir, config_name, program.config)
        work = _Work(program, command.primary_file(), [sys.argv[0], *words])
        main = hydra.main(version_base="1.3", config_path=str(command.config_path), config_name=None)(work.run_job)
        with _argv([sys.argv[0], *command.for_hydra()]), work.composing, warnings.catch_warnings():
            # A file without _self_ overrides its defaults, which is what the guide's own files rely on.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
            try:
                main()
            finally:
                if work.jobs.jobs:
                    work.jobs.show()
        if work.jobs.code:
            raise SystemExit(work.jobs.code)
    except KeyboardInterrupt as interrupt:
        _leave(EXIT_INTERRUPTED, str(interrupt) or "Stopped.")
    except ConfigError as error:
        _leave(EXIT_CONFIG, str(error))


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
        if composes and self._before is None and isinstance(error, Exception):
            raise composition_error(error, self._source) from error

    def _restore(self) -> None:
        self._composes = False
        os.environ.pop(_FULL_ERROR, None)
        if self._before is not None:
            os.environ[_FULL_ERROR] = self._before


class _CommandLine:
    """Hydra's command line, read once before Hydra does, to answer mistakes in the name of the configuration."""

    def __init__(
        self,
        options: argparse.Namespace,
        flags: list[str],
        overrides: list[str],
        config_dir: Path,
        kind: type[RunConfig],
    ) -> None:
        self._options = options
        self._flags = flags
        self._overrides = overrides
        self._kind = kind
        self.config_path = _folder(options.config_path, config_dir)
        self._folders = [Path(options.config_dir).resolve()] if options.config_dir else []
        self._folders.append(self.config_path)

    @classmethod
    def parse(
        cls, argv: Sequence[str], config_dir: Path, config_name: str | None, kind: type[RunConfig]
    ) -> _CommandLine:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for name, short in (("config-name", "cn"), ("config-dir", "cd"), ("config-path", "cp"), ("cfg", "c")):
            parser.add_argument(f"--{name}", f"-{short}", f"--{name.replace('-', '_')}")  # the guide's spelling
        parser.add_argument("--package", "-p")
        parser.add_argument("--experimental-rerun")
        parser.add_argument("--info", "-i", nargs="?", const="all")
        options, rest = parser.parse_known_args(list(argv))
        options.config_name = options.config_name or config_name
        flags = [item for item in rest if item.startswith("-")]
        return cls(options, flags, [item for item in rest if not item.startswith("-")], config_dir, kind)

    def primary_file(self) -> str | None:
        """Return the YAML file that the command names; leave with a message if there is none, or if it is no YAML."""
        name = self._options.config_name
        if name is None:
            if self._flags and self._flags[0] in ("--help", "-h", "--hydra-help", "--version", "-sc"):
                return None
            _leave(EXIT_CONFIG_NAME, f"Give a configuration: --config-name NAME. {self._offer()}")
        for folder in self._folders:
            path = folder / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
            if path.is_file():
                require_sound_files(path.resolve(), self._folders)
                require_sound_overrides(self._overrides, self._folders)
                return str(path)
        close = closest(name.removesuffix(".yaml"), self._names(), count=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        places = " or ".join(str(folder) for folder in self._folders)
        _leave(EXIT_CONFIG_NAME, f"No configuration is named {name!r} in {places}. {hint}{self._offer()}")

    def for_hydra(self) -> list[str]:
        """Return the arguments for Hydra: options first, then overrides that may also add keys."""
        arguments = list(self._flags)
        for key, value in vars(self._options).items():
            if value is not None and key != "config_path":
                arguments += [f"--{key.replace('_', '-')}", value]
        given = {override.partition("=")[0] for override in self._overrides}
        program = Path(sys.argv[0]).name or "roll"
        quiet = {"hydra.job.name": Path(program).stem, **_QUIET_HYDRA}
        if {"--help", "-h"} & {*self._flags}:
            # It lists the configurations, for which every YAML file is read.
            quiet["hydra.help.template"] = quoted(self._help(program))
        arguments += [f"{key}={value}" for key, value in quiet.items() if key not in given]
        return arguments + [upsert(override, self._folders) for override in self._overrides]

    def _help(self, program: str) -> str:
        text = _HELP.format(program=program, folder=self.config_path.name, names=", ".join(self._names()))
        return text if self._options.config_name is None else f"{text}\n$CONFIG\n"

    def _names(self) -> list[str]:
        found = (path for folder in self._folders for path in folder.glob("*.yaml") if is_primary(path))
        return sorted({path.stem for path in found if not _is_for_another(path, self._kind)})

    def _offer(self) -> str:
        return f"There are: {', '.join(self._names()) or 'none (no *.yaml with a defaults list)'}."


class _Work:
    """What a command asks for: one run, or with ``--multirun`` several.

    Args:
        program: The kind of run where the configuration names none; without a name, the only one.
        source: The primary file.
        words: The command line.
    """

    def __init__(self, program: PipelineKind, source: str | None, words: Sequence[str]) -> None:
        self._program = program
        self._source = source
        self._words = words
        self.composing = _Composing(source)
        self.jobs = Jobs()

    def run_job(self, composed: DictConfig) -> None:
        """Run what was composed. A job of a multirun that fails does not keep the others from running."""
        with self.composing.done():
            several, job = _job_of(composed)
            if several:
                self.jobs.jobs.append(job)
                _move_outputs(composed, job.folder)
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    kind = kind_to_run(composed, self._program) if self._program.name else self._program
                    config = check(
                        composed,
                        kind=kind.config,
                        source=self._source,
                        overrides=job.overrides,
                        command=self._words,
                    )
                for item in caught:
                    _report(item)
                prepare_process(config.system_envs)
                job.result = runner(kind.run)(config)
                job.state = FINISHED
            except (ConfigError, RunError) as error:
                code, job.state = (EXIT_CONFIG, "refused") if isinstance(error, ConfigError) else (EXIT_RUN, "failed")
                if not several:
                    _leave(code, str(error))
                self.jobs.code = max(self.jobs.code, code)
                sys.stderr.write(f"Job {job.number} {job.state}. {error}\n")
            except KeyboardInterrupt:
                job.state = "stopped"
                raise


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


def _move_outputs(composed: DictConfig, folder: Path) -> None:
    """Give a job of a sweep a folder of its own, also where the YAML file spells the folders out."""
    before = {key: _selected(composed, key) for key in _OUTPUT_KEYS}
    base = Path(_selected(composed, "output_dir") or "output").resolve()
    with open_dict(composed):
        composed.output_dir = str(folder)
        for key, value in before.items():
            # A value that changed is an interpolation of output_dir: it has moved already.
            if value is None or _selected(composed, key) != value:
                continue
            place = Path(value).resolve()
            inside = place.relative_to(base) if place.is_relative_to(base) else Path(key.replace(".", "_"))
            OmegaConf.update(composed, key, str(folder / inside))


def _selected(composed: DictConfig, key: str) -> str | None:
    """Return the path at a key, ``None`` where there is none; what is wrong with it is said when all is checked."""
    try:
        value = OmegaConf.select(composed, key)
    except OmegaConfBaseException:
        return None
    return value if isinstance(value, str) else None


def _is_for_another(path: Path, kind: type[RunConfig]) -> bool:
    """Tell whether the keys of a file itself, without what it builds on, make it one of another program."""
    try:
        require_sound_files(path, [])
        written = OmegaConf.load(path)
        if not isinstance(written, DictConfig):
            return False
        models = [PIPELINES.get(name).config for name in PIPELINES]
        telling = {key for model in models for key in model.model_fields} - RLConfig.model_fields.keys() | {"pipeline"}
        return bool(telling & written.keys()) and kind_of(written) is not kind
    except ConfigError:
        return False


def _folder(given: str | None, own: Path) -> Path:
    """Return the folder of the YAML files; one that is not found from here may be named as seen from the program."""
    if given is None:
        return own.resolve()
    beside = own.parent / given
    return (beside if not Path(given).exists() and beside.exists() else Path(given)).resolve()


def _leave(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"{plain_text(message)}\n")
    raise SystemExit(code)


@contextmanager
def _argv(replacement: list[str]) -> Iterator[None]:
    """Lend Hydra, which reads the command line of the process, another one."""
    original = sys.argv
    sys.argv = replacement
    try:
        yield
    finally:
        sys.argv = original
