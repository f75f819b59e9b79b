"""Where everything is in the folder of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

CONFIG: Final = "config.yaml"
"""The configuration with the origin of every key."""
RECORD: Final = "run.json"
"""The same for programs, with command, versions and commit. A checkpoint has one too."""
CHECKPOINTS: Final = "checkpoints"
LOGS: Final = "logs"
TRAJECTORIES: Final = "trajectories"
REPLAY: Final = "replay"
"""The store of a run that learns again from what it sampled."""
BRANCHES: Final = "branches"
"""Continuations of stored episodes, which were sampled later."""
FANS: Final = "fans.json"
"""Their figures, in the folder of an episode below that."""
EVALUATION: Final = "evaluation.json"
"""Figures of an evaluation without training."""
NOTES: Final = "notes.json"
"""What people say of its episodes in the review. Never written by a run."""
WEIGHTS: Final = "hf"
"""The folder of a checkpoint with the policy in Hugging Face format."""
CHECKPOINT_STATE: Final = "state.json"
"""What a checkpoint remembers beside the weights."""

_NAME = re.compile(r"step=(\d+)")


def folder_of(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint of ``step``."""
    return root / f"step={step:06d}"


def branches_of(root: Path, phase: str, step: int, group: str, episode: int) -> Path:
    """Return the folder of the continuations of an episode: ``branches/step=000008/train-0000012-3``."""
    place = f"{'' if phase == 'train' else 'val_'}step={step:06d}"
    return root / BRANCHES / place / f"{group}-{episode}".replace("/", "-")


def step_of(path: Path) -> int | None:
    """Return the step of the checkpoint that ``path`` is in, also of one that is being written."""
    found = (_NAME.match(part) for part in reversed(path.parts))
    return next((int(match.group(1)) for match in found if match), None)


def is_checkpoint_name(name: str) -> bool:
    """Whether a folder of this name is a checkpoint."""
    return _NAME.fullmatch(name) is not None


def list_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of every checkpoint under ``root``, damaged ones included, oldest first."""
    found = []
    for path in root.glob("step=*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match.group(1)), path))
    return sorted(found)
