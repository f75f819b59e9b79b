"""Classes and functions that a configuration names: ``{path: rewards.py, name: my_reward}``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from roll.common.spelling import nearest
from roll.config.errors import FixableError, choose_from


def load_object(path: str, name: str) -> Any:
    """Return what ``name`` stands for in a Python file or module.

    A file is executed once per process: loading it again, or a file that is already imported under a name of its own
    (also as the running script), gives the same objects.

    Args:
        path: Path of a Python file (``rewards.py``, ``~/project/rewards.py``), or an import path
            (``my_package.rewards``).
        name: Name of the class or function in it.

    Raises:
        FixableError: If the file or module is not there or cannot be imported, or has nothing of that name.
    """
    module = _file_module(path) if _is_file_path(path) else _named_module(path)
    try:
        return getattr(module, name)
    except AttributeError:
        defined = [key for key, value in vars(module).items() if _is_offered(key, value)]
        fix = choose_from(name, defined) if defined else f"define it in {path}."
        raise FixableError(f"{path} has no {name!r}.", fix) from None


def _is_file_path(path: str) -> bool:
    return path.endswith(".py") or "/" in path or "\\" in path


def _is_offered(name: str, value: Any) -> bool:
    return not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))


def _file_module(path: str) -> ModuleType:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise FixableError(f"there is no file {path}{_from_here(path)}.", _file_fix(file))
    loaded = [module for module in list(sys.modules.values()) if _is_from(module, file)]
    if loaded:
        return loaded[0]
    # Two files may share a name; the checksum of the path keeps them apart.
    module_name = f"roll_file_{file.stem}_{zlib.crc32(str(file).encode()):08x}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise FixableError(f"{path} is not a Python file.", "name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise _import_failure(path, error) from error
    return module


def _named_module(path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
            raise _import_failure(path, error) from error
        raise FixableError(
            f"there is no module {path!r}.",
            "install its package or put its folder on PYTHONPATH, or give the path of the file, ending in .py.",
        ) from None
    except Exception as error:
        raise _import_failure(path, error) from error


def _import_failure(path: str, error: Exception) -> FixableError:
    place = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
    detail = error.msg if isinstance(error, SyntaxError) else str(error)
    return FixableError(
        f"importing {path} failed{place}: {type(error).__name__}: {detail}.", f"make `python {path}` run."
    )


def _is_from(module: ModuleType, file: Path) -> bool:
    # Lazy modules compute attributes on access; the plain dictionary has no side effects.
    known = getattr(module, "__dict__", {}).get("__file__")
    return isinstance(known, str) and known.endswith(file.name) and Path(known).resolve() == file


def _from_here(path: str) -> str:
    return "" if Path(path).expanduser().is_absolute() else f" in {Path.cwd()}"


def _file_fix(file: Path) -> str:
    siblings = [entry.name for entry in file.parent.glob("*.py")] if file.parent.is_dir() else []
    close = nearest(file.name, siblings)
    return f"did you mean {close!r}?" if close else "give the path of a Python file, or an import path without slashes."
