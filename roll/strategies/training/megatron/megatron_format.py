"""Models in Megatron-Core's own format (``torch_dist``), weights alone: read, and written for other programs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from roll.config.errors import FixableError
from roll.strategies.training.megatron.checkpoint import DirectSave
from roll.strategies.training.megatron.core import ShardedTensor, dist_checkpointing
from roll.strategies.training.megatron.model import Stage
from roll.strategies.training.megatron.options import MegatronOptions

NEWEST: Final = "latest_checkpointed_iteration.txt"
"""The file that names the newest checkpoint of a folder."""

_METADATA: Final = "metadata.json"
_VERSION: Final = 3.0
"""Of what Megatron-LM calls ``checkpoint_version``: since then it stores queries, keys and values as it does now."""


def load_model(folder: str, stages: Sequence[Stage]) -> None:
    """Take over the weights of a checkpoint, whatever division of ranks wrote it; the rest of it is not read.

    A critic takes the layers of a policy, and its head stays as it is. Every rank must call it.

    Args:
        folder: A checkpoint, or the folder of a run of Megatron, of which the newest is taken.
        stages: Of this rank.

    Raises:
        FixableError: There is no checkpoint of this format, or it is of another model.
    """
    checkpoint = newest(Path(folder).expanduser())
    metadata = dist_checkpointing.load_content_metadata(str(checkpoint))
    stored = dist_checkpointing.load_tensors_metadata(str(checkpoint))
    wanted = {f"model{number}": _weights(stage, metadata, stored) for number, stage in enumerate(stages)}
    for places in wanted.values():
        if difference := next(_differences(places.values(), stored), None):
            fix = "name a checkpoint of the architecture that the model's config.json says."
            raise FixableError(f"{checkpoint} is not of this model: {difference}.", fix)
    found = dist_checkpointing.load(wanted, str(checkpoint))
    for number, stage in enumerate(stages):
        stage.load_state_dict(found[f"model{number}"], strict=False)


def save_model(folder: Path, step: int, stages: Sequence[Stage], options: MegatronOptions) -> None:
    """Write a checkpoint that ``--load`` of Megatron-LM takes, with ``--finetune`` or ``--no-load-optim``.

    Every rank must call it, with a folder that all see.

    Args:
        folder: Gets a folder of the step, and the file that names the newest.
        step: Of the training.
        stages: Of this rank.
        options: How the model is spread over ranks.
    """
    checkpoint = folder / f"iter_{step:07d}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    names = ["model"] if len(stages) == 1 else [f"model{number}" for number in range(len(stages))]
    state: dict[str, Any] = {name: stage.sharded_state_dict() for name, stage in zip(names, stages, strict=True)}
    state["checkpoint_version"] = _VERSION
    state["iteration"] = step
    state["args"] = Namespace(
        tensor_model_parallel_size=options.tensor_model_parallel_size,
        pipeline_model_parallel_size=options.pipeline_model_parallel_size,
        no_save_optim=True,
        no_save_rng=True,
    )
    dist_checkpointing.save(state, str(checkpoint), DirectSave("torch_dist", 1))
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / NEWEST).write_text(str(step), encoding="utf-8")


def newest(folder: Path) -> Path:
    """Return the checkpoint that a folder is, or the newest of those in it.

    Raises:
        FixableError: There is none of this format.
    """
    if (folder / _METADATA).is_file():
        return folder
    if not (folder / NEWEST).is_file():
        what = f"{folder} is no checkpoint of Megatron-Core: it has neither {_METADATA} nor {NEWEST}."
        raise FixableError(what, "name one, or the folder of a run of Megatron.")
    named = (folder / NEWEST).read_text(encoding="utf-8").strip()
    checkpoint = folder / (f"iter_{int(named):07d}" if named.isdigit() else named)
    if not (checkpoint / _METADATA).is_file():
        what = f"{checkpoint}, which {NEWEST} names, has no {_METADATA}, so it is not of the format torch_dist."
        raise FixableError(what, "let Megatron-LM write it in that format (--ckpt-format torch_dist).")
    return checkpoint


def _weights(stage: Stage, metadata: dict[str, Any] | None, stored: dict[str, Any]) -> dict[str, Any]:
    """Return the places of a stage's weights in a checkpoint; scales of fp8 and the like are left out."""
    places = {
        name: place for name, place in stage.sharded_state_dict(metadata=metadata).items() if "_extra_state" not in name
    }
    if stage.predicts != "values":
        return places
    return {name: place for name, place in places.items() if not _is_head_elsewhere(name, place, stored)}


def _differences(places: Iterable[Any], stored: dict[str, Any]) -> Iterator[str]:
    """Yield how the weights of a checkpoint are not those of a model."""
    for place in places:
        there = stored.get(place.key)
        if there is None:
            yield f"it has no {place.key}"
        elif isinstance(place, ShardedTensor) and not place.allow_shape_mismatch:
            shapes = tuple(there.global_shape), tuple(place.global_shape)
            if shapes[0] != shapes[1]:
                yield f"its {place.key} is {shapes[0]}, and that of the model {shapes[1]}"


def _is_head_elsewhere(name: str, place: Any, stored: dict[str, Any]) -> bool:
    """Whether a weight is a critic's head, and the checkpoint has none that fits: it is a policy's."""
    if not name.startswith("output_layer."):
        return False
    there = stored.get(place.key)
    return there is None or tuple(there.global_shape) != tuple(place.global_shape)
