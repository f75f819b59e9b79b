"""The files that a configuration names: which sections name some, and which are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roll.config import Problem, RunConfig
from roll.config.errors import Absent
from roll.config.shipped import shipped_data
from roll.config.worker import DataArgs, WorkerConfig
from roll.data.places import is_hub_id


def data_files(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield key path and name of every file that is read as it stands; a data set of one's own reads as it likes."""
    sections = [*config.roles(), ("validation", getattr(config, "validation", None))]
    for key, section in sections:
        data = getattr(section, "data_args", None)
        if isinstance(data, DataArgs) and (isinstance(section, WorkerConfig) or key == "validation"):
            for name in data.file_name or [] if data.custom_cls is None else []:
                yield f"{key}.data_args.file_name", name


def missing_file(path: str, name: str, fix: str = "correct the path.") -> Iterator[Problem]:
    """Yield that there is no such file, if there is none.

    Args:
        path: The key that names it.
        name: The file, or one of the exercises that come with the package.
        fix: What to do about it.
    """
    # Whether a hub has a data set is known when it is asked.
    if not is_hub_id(name) and not shipped_data(Path(name).expanduser()).exists():
        yield Absent(path, f"there is no such file (looked for in {Path.cwd()}).", fix, name)


def missing_files(config: RunConfig) -> Iterator[Problem]:
    """Yield every file that a run would read and that is not there."""
    for path, name in data_files(config):
        yield from missing_file(path, name)
