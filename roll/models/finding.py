"""What `pretrain` names: a built-in model, a folder, or a model of a hub; and what it may have meant.

Whether the hub can be had is decided here, in a few seconds: the hub's own client tries for a minute.
"""

from __future__ import annotations

import functools
import re
import threading
from pathlib import Path

import httpx
import huggingface_hub
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from roll.common.hubs import takes_modelscope
from roll.common.spelling import nearest
from roll.config.errors import causes
from roll.models.errors import ModelNotFoundError
from roll.models.smollm2 import NAME as SMOLLM2
from roll.models.smollm2 import smollm2_folder
from roll.models.toy import TOYS
from roll.models.toy.shallow import NAME as SHALLOW
from roll.models.toy.shallow import shallow_folder

BUILT_IN = (*TOYS, SHALLOW, SMOLLM2)
"""What ``pretrain`` calls the models that need no hub."""

PATIENCE = 4.0
"""Seconds that the hub has to answer."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_MODEL_FILE = "config.json"
_SEARCHED_DEPTH = 3


def resolve_pretrain(pretrain: str) -> str:
    """Return the folder or hub name that ``transformers`` and the engines load.

    A hub name becomes the folder of the local cache where the hub cannot be reached or ``HF_HUB_OFFLINE`` is set.

    Raises:
        ModelNotFoundError: If there is nothing to load.
    """
    if pretrain in TOYS:
        return str(TOYS[pretrain])
    if pretrain == SHALLOW:
        return str(shallow_folder())
    if pretrain == SMOLLM2:
        return str(smollm2_folder())
    path = Path(pretrain).expanduser()
    if path.is_dir():
        if not (path / _MODEL_FILE).is_file():
            raise _no_model_in(pretrain, path)
        return str(path)
    if _is_local(pretrain, path):
        raise ModelNotFoundError(f"{pretrain!r}: there is no such folder.", _fix(_nearest_folder(path)))
    return _hub_model(pretrain)


def not_loadable(pretrain: str, cause: Exception) -> ModelNotFoundError:
    """Return what to tell of a model that was found and that ``transformers`` could not load."""
    chain = list(causes(cause))
    if any(isinstance(error, GatedRepoError) for error in chain):
        message = f"{pretrain!r}: its owner shares it only with those who asked."
        return ModelNotFoundError(message, f"ask for it on the page of {pretrain}, then log in: hf auth login.")
    if any(isinstance(error, RepositoryNotFoundError) for error in chain):
        message = f"{pretrain!r}: the Hugging Face hub has no such model, or it is private."
        return ModelNotFoundError(message, _fix(_nearest_name(pretrain)))
    first_line = (str(cause).splitlines() or [type(cause).__name__])[0]
    where = "that folder has no loadable model" if pretrain in BUILT_IN or _exists(pretrain) else "it cannot be loaded"
    return ModelNotFoundError(f"{pretrain!r}: {where} ({first_line}).", _fix(None))


def _hub_model(name: str) -> str:
    """Return a hub name that can be fetched, or the folder where the local cache has it."""
    if takes_modelscope():
        return _modelscope_folder(name)
    if huggingface_hub.is_offline_mode():
        why = "HF_HUB_OFFLINE is set, so only models of the local cache are used"
    elif hub_answers(huggingface_hub.constants.ENDPOINT):
        return name
    else:
        why = f"the Hugging Face hub ({huggingface_hub.constants.ENDPOINT}) did not answer within {PATIENCE:.0f} s"
    try:
        return str(huggingface_hub.snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        cache = huggingface_hub.constants.HF_HUB_CACHE
        message = f"{name!r}: it is no folder here; {why}, and {cache} does not have it."
        raise ModelNotFoundError(message, _fix(_nearest_name(name))) from None


def _modelscope_folder(name: str) -> str:
    """Return the folder of a model of ModelScope, downloaded where its cache does not have it."""
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        message = f"{name!r}: USE_MODELSCOPE is set, and the package modelscope cannot be imported ({error})."
        raise ModelNotFoundError(message, "pip install modelscope, or unset USE_MODELSCOPE.") from error
    try:
        return str(snapshot_download(name))
    except Exception as error:
        # The package has errors of its own, and lets those of the network through.
        told = str(error).strip().partition("\n")[0]
        raise ModelNotFoundError(f"{name!r}: ModelScope does not give it: {told}", _fix(_nearest_name(name))) from error


@functools.cache
def hub_answers(endpoint: str) -> bool:
    """Whether anything answers at ``endpoint`` within :data:`PATIENCE` seconds; asked once per process."""
    answered = threading.Event()

    def ask() -> None:
        try:
            httpx.head(endpoint, timeout=PATIENCE)
        except (httpx.HTTPError, OSError, ValueError):
            return
        answered.set()

    # A thread, because the look-up of a host name has no time-out of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return answered.is_set()


def _is_local(pretrain: str, path: Path) -> bool:
    """Whether a path is meant: it is written like one, or begins with a folder that is here."""
    return (
        pretrain.startswith((".", "/", "~"))
        or path.exists()
        or _HUB_NAME.fullmatch(pretrain) is None
        or (len(path.parts) > 1 and Path(path.parts[0]).is_dir())
    )


def _no_model_in(pretrain: str, folder: Path) -> ModelNotFoundError:
    if (folder / "adapter_config.json").is_file():
        message = f"{pretrain!r}: the folder has adapters only, not the model that they were trained on."
        fix = "merge them first: python -m roll.models.convert, or name the model and set model_args.lora_rank."
        return ModelNotFoundError(message, fix)
    message = f"{pretrain!r}: that folder has no loadable model (no {_MODEL_FILE} in it)."
    return ModelNotFoundError(message, _fix(_model_below(folder)))


def _nearest_folder(path: Path) -> str | None:
    """Return the model folder whose path looks most like ``path``, where one does."""
    folder = Path(path.anchor or ".")
    for part in path.parts[1:] if path.anchor else path.parts:
        if (folder / part).is_dir():
            folder = folder / part
            continue
        close = nearest(part, [child.name for child in _folders(folder)])
        if close is None:
            return None
        folder = folder / close
    return str(folder) if (folder / _MODEL_FILE).is_file() else _model_below(folder)


def _model_below(folder: Path, depth: int = _SEARCHED_DEPTH) -> str | None:
    """Return the last model folder below ``folder``: of a run's checkpoints the newest."""
    for child in reversed(_folders(folder)):
        if (child / _MODEL_FILE).is_file():
            return str(child)
        found = _model_below(child, depth - 1) if depth > 1 else None
        if found is not None:
            return found
    return None


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError:
        return []


def _nearest_name(name: str) -> str | None:
    return nearest(name, BUILT_IN) or _nearest_folder(Path(name))


def _fix(meant: str | None) -> str:
    ways = (
        f"use pretrain=toy, toy_math, toy_sokoban or {SMOLLM2} for a built-in model, the path of a folder saved with "
        "save_pretrained, or a Hugging Face name on a machine that can reach the hub."
    )
    return ways if meant is None else f"did you mean {meant}? Otherwise {ways}"


def _exists(pretrain: str) -> bool:
    return Path(pretrain).expanduser().exists()
