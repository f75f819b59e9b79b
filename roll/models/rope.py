"""A model whose positions turn otherwise than its ``config.json`` says: the same weights in a folder with another one.

Trainers, scorers and engines all load a folder, so what is said in one place holds for them alike.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from filelock import FileLock
from huggingface_hub import snapshot_download

from roll.models.errors import ModelNotFoundError
from roll.models.finding import not_loadable, resolve_pretrain
from roll.models.smollm2 import CACHE_VARIABLE, cache_folder

_CONFIG: Final = "config.json"
_POSITIONS: Final = "original_max_position_embeddings"


def scaled_folder(pretrain: str, scaling: Mapping[str, Any] | None, theta: float | None) -> str:
    """Return a folder with a model and other rotary waves; it is made of links to the files of the model.

    Args:
        pretrain: A built-in model, a folder, or a Hugging Face name, which is downloaded.
        scaling: What ``rope_scaling`` says; ``None`` keeps the model's own.
        theta: Base of the lengths of the waves; ``None`` keeps the model's own.

    Raises:
        ModelNotFoundError: There is no such model, it has no rotary waves or several kinds of them, or the cache folder
            cannot be written.
    """
    origin = Path(resolve_pretrain(pretrain))
    try:
        if not origin.is_dir():
            origin = Path(snapshot_download(str(origin)))
        config = json.loads((origin / _CONFIG).read_text(encoding="utf-8"))
        changed = with_rope(config, scaling, theta)
    except (OSError, ValueError) as error:
        raise not_loadable(pretrain, error) from error
    text = json.dumps(changed, indent=2, sort_keys=True) + "\n"
    names = sorted(child.name for child in origin.iterdir() if child.name != _CONFIG)
    told = json.dumps([str(origin.resolve()), names, text])
    folder = cache_folder() / "rope" / hashlib.blake2b(told.encode(), digest_size=12).hexdigest()
    try:
        _write(folder, origin.resolve(), names, text)
    except OSError as error:
        message = f"{pretrain!r}: a folder with its rope_scaling could not be written into {folder.parent} ({error})."
        fix = f"make room there, or set the environment variable {CACHE_VARIABLE} to a folder that can be written."
        raise ModelNotFoundError(message, fix) from error
    return str(folder)


def with_rope(config: Mapping[str, Any], scaling: Mapping[str, Any] | None, theta: float | None) -> dict[str, Any]:
    """Return the keys of a ``config.json`` with other rotary waves, in the words of all versions of ``transformers``.

    Args:
        config: The keys; of a model that sees pictures, the text part inside is changed.
        scaling: The kind of scaling with its parameters; ``None`` keeps the model's own.
        theta: Base of the lengths of the waves; ``None`` keeps the model's own.

    Raises:
        ValueError: The model has no rotary waves, several kinds of them, or more positions than these would reach.
    """
    if isinstance(config.get("text_config"), Mapping):
        return {**config, "text_config": with_rope(config["text_config"], scaling, theta)}
    own = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    if any(isinstance(value, Mapping) for value in own.values()):
        raise ValueError("its layers have rotary waves of several kinds, which rope_scaling does not tell apart")
    base = theta or own.get("rope_theta") or config.get("rope_theta")
    longest = config.get("max_position_embeddings")
    if longest is None or base is None:
        raise ValueError("its config.json does not say rope_theta and max_position_embeddings: give it a rope_theta")
    kept = {key: own[key] for key in ("partial_rotary_factor",) if key in own}
    chosen = dict(own if scaling is None else {**kept, **scaling})
    chosen.pop("rope_theta", None)
    chosen["rope_type"] = chosen.pop("type", None) or chosen.get("rope_type") or "default"
    if scaling is not None and chosen["rope_type"] in ("yarn", "llama3"):
        native = own.get(_POSITIONS) or longest
        chosen.setdefault(_POSITIONS, native)
        reach = int(chosen["factor"] * chosen[_POSITIONS])
        if chosen["rope_type"] == "yarn" and reach < native:
            raise ValueError(
                f"yarn with factor {chosen['factor']:g} of {chosen[_POSITIONS]} positions reaches {reach}, and it has "
                f"{native} without: raise the factor or {_POSITIONS}"
            )
        # Engines multiply by the factor themselves, or take this as it is. Of yarn they keep as many waves as it
        # reaches, and would read beyond them.
        longest = reach if chosen["rope_type"] == "yarn" else max(longest, reach)
    return {
        **config,
        "max_position_embeddings": longest,
        "rope_parameters": {**chosen, "rope_theta": base},
        "rope_scaling": None if chosen["rope_type"] == "default" else chosen,
        "rope_theta": base,
    }


def _write(folder: Path, origin: Path, names: list[str], config: str) -> None:
    """Write the folder beside where it belongs, and put it there in one go."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if folder.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name in names:
                (made / name).symlink_to(origin / name)
            (made / _CONFIG).write_text(config, encoding="utf-8")
            shutil.move(made, folder)
