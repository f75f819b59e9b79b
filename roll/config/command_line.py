"""The command line of a program that runs a configuration: read once before Hydra does, and handed on to it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from roll.common.spelling import closest
from roll.config.composing import is_primary, quoted, require_sound_overrides, search_path, upsert
from roll.config.errors import ConfigError
from roll.config.kinds import PIPELINES
from roll.config.leaving import EXIT_CONFIG_NAME, leave
from roll.config.loading import kind_of
from roll.config.rl import RLConfig
from roll.config.run import RunConfig
from roll.config.shipped import shipped_configs
from roll.config.sources import listed_stages
from roll.config.yaml_files import require_sound_files

_QUIET_HYDRA = {
    # Hydra would otherwise make outputs/<date>/<time>, copy the configuration there and log to a file beside it.
    "hydra.run.dir": ".",
    "hydra.output_subdir": "null",
    "hydra/job_logging": "none",
    # It would show what any library logs (a request of httpx) as its own; this leaves what it says of a sweep itself.
    "hydra.hydra_logging.root.handlers": "[]",
    "hydra.hydra_logging.root.level": "WARNING",
    # One by one: Hydra reads no {...} where Python leaves out its assertions (-O), some of which read on.
    "++hydra.hydra_logging.loggers.hydra.level": "INFO",
    "++hydra.hydra_logging.loggers.hydra.handlers": "[console]",
    "++hydra.hydra_logging.loggers.hydra.propagate": "false",
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


class CommandLine:
    """Hydra's command line, read once before Hydra does, to answer mistakes in the name of the configuration."""

    def __init__(
        self,
        options: argparse.Namespace,
        flags: list[str],
        overrides: list[str],
        config_dir: Path,
        kind: type[RunConfig] | None,
    ) -> None:
        self._options = options
        self._flags = flags
        self._overrides = overrides
        self._kind = kind
        self.config_path = _folder(options.config_path, config_dir)
        self._own = list(dict.fromkeys((self.config_path, shipped_configs())))
        self._folders = [*([Path(options.config_dir).resolve()] if options.config_dir else ()), *self._own]

    @classmethod
    def parse(
        cls, argv: Sequence[str], config_dir: Path, config_name: str | None, kind: type[RunConfig] | None
    ) -> CommandLine:
        """Read the words behind the program.

        Args:
            argv: They.
            config_dir: Folder of the program's own YAML files.
            config_name: The file to read where they name none.
            kind: What the program runs; ``None``: any.
        """
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
            leave(EXIT_CONFIG_NAME, f"Give a configuration: --config-name NAME. {self._offer()}")
        for folder in self._folders:
            path = folder / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
            if path.is_file():
                require_sound_files(path.resolve(), self._folders)
                require_sound_overrides(self._overrides, self._folders)
                # Hydra reads the file that is named before it knows of any folder but the main one.
                self.config_path = folder if folder in self._own else self.config_path
                return str(path)
        close = closest(name.removesuffix(".yaml"), self._names(), count=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        places = " or ".join(str(folder) for folder in self._folders)
        leave(EXIT_CONFIG_NAME, f"No configuration is named {name!r} in {places}. {hint}{self._offer()}")

    def for_hydra(self, primary: str | None) -> list[str]:
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
        if "hydra.searchpath" not in given:
            others = [folder for folder in self._own if folder != self.config_path]
            arguments.append(search_path(None if primary is None else Path(primary), others))
        stages = [] if primary is None else listed_stages(Path(primary))
        return arguments + [upsert(override, self._folders, stages) for override in self._overrides]

    def _help(self, program: str) -> str:
        text = _HELP.format(program=program, folder=self.config_path.name, names=", ".join(self._names()))
        return text if self._options.config_name is None else f"{text}\n$CONFIG\n"

    def _names(self) -> list[str]:
        found = (path for folder in self._folders for path in folder.glob("*.yaml") if is_primary(path))
        return sorted({path.stem for path in found if self._kind is None or not _is_for_another(path, self._kind)})

    def _offer(self) -> str:
        return f"There are: {', '.join(self._names()) or 'none (no *.yaml with a defaults list)'}."


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
