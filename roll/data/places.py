"""Where the rows of a section lie: files, folders of files, and data sets of a hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from roll.common.hubs import takes_modelscope
from roll.config.shipped import shipped_data
from roll.config.worker import DataArgs
from roll.data.errors import DataError
from roll.data.indexed import PAIR

SUFFIXES: Final = (".json", ".jsonl", ".csv", ".parquet")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_NOT_ROWS: Final = ("dataset_infos.json", "dataset_info.json", "state.json", "configuration.json")


def data_paths(args: DataArgs) -> list[Path]:
    """Return the files that a section names, folders and data sets of a hub opened; tables of databases are left out.

    Raises:
        DataError: A folder has no such file, or a data set cannot be had.
    """
    found = []
    for name in args.file_name or []:
        if "://" in name:
            continue
        path = shipped_data(Path(name).expanduser())
        if path.suffix in PAIR:
            path = path.with_suffix(PAIR[0])
        if path.is_dir():
            found += _inside(path, name, args)
        elif is_hub_id(name) and not path.exists():
            found += _inside(_downloaded(name), name, args)
        else:
            found.append(path)
    return found


def is_hub_id(name: str) -> bool:
    """Tell whether a name is that of a data set of a hub, and not of a file or folder here."""
    is_id = _HUB_ID.fullmatch(name) is not None and not name.endswith((*SUFFIXES, *PAIR))
    return is_id and not Path(name).exists() and not Path(name).parent.is_dir()


def _inside(folder: Path, name: str, args: DataArgs) -> list[Path]:
    """Return the data files of a folder: those of the subset and of the split, in the order of their names."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.name not in _NOT_ROWS)
    of_subset = [path for path in files if args.subset is None or args.subset in path.relative_to(folder).parts[:-1]]
    # A folder of one data set has no folder of its own for it.
    files = of_subset or [path for path in files if path.parent == folder]
    chosen = [path for path in files if args.split is None or path.stem.startswith(args.split)]
    if chosen:
        return chosen
    there = ", ".join(path.name for path in files[:5]) or "no data files"
    wanted = " ".join(f"{key}: {value}" for key, value in (("subset", args.subset), ("split", args.split)) if value)
    fix = f"correct {wanted or 'file_name'}; it has {there}."
    pairs = sorted(path.stem for path in folder.rglob(f"*{PAIR[0]}"))
    if pairs:
        begins = pairs[0].partition("_packed_")[0]
        fix = f"name what the files of an indexed data set begin with: {folder / begins}."
    raise DataError(f"{name} has no such rows{f' ({wanted})' if wanted else ''}.", fix)


def _downloaded(name: str) -> Path:
    """Return the folder of a data set of the hub that the environment names, downloaded where it is not cached."""
    try:
        if takes_modelscope():
            from modelscope import dataset_snapshot_download

            return Path(dataset_snapshot_download(name))
        from huggingface_hub import snapshot_download

        patterns = [f"*{suffix}" for suffix in SUFFIXES]
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
    except ImportError as error:
        package = "modelscope" if "modelscope" in str(error) else "huggingface_hub"
        raise DataError(f"{name} is a data set of a hub: {error}.", f"pip install {package}, or name files.") from error
    except Exception as error:
        # Each hub has its own errors, of the network, of rights and of names.
        told = str(error).strip().partition("\n")[0]
        raise DataError(f"{name} cannot be had from the hub: {told}", "correct the name, or name files.") from error
