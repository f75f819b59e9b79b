"""What a policy is named by: a run, a checkpoint, a folder, a built-in model, one of the hub. Loads no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roll.config import ConfigError, Problem
from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.runs.layout import CONFIG, RECORD
from roll.runs.stored import StoredRun, checkpoint_in

_HF = "hf"


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Where a policy is.

    Attributes:
        pretrain: Its folder, or the name of a built-in model or one of the hub.
        written: The file with the configuration that it was trained with, ``None`` where it comes from no run.
    """

    pretrain: str
    written: Path | None

    @classmethod
    def of(cls, named: str | Path | StoredRun) -> PolicySource:
        """Find a policy; of a run, its newest checkpoint.

        Raises:
            ConfigError: A run has no checkpoint.
        """
        if isinstance(named, StoredRun) or (Path(named) / RECORD).is_file():
            folder = checkpoint_in(named.folder if isinstance(named, StoredRun) else Path(named), "policy")
            return cls(str(folder / _HF), folder / CONFIG)
        path = Path(named)
        beside = path.parent / CONFIG
        is_ours = path.name == _HF and beside.is_file() and (path.parent / RECORD).is_file()
        return cls(str(path / _HF if (path / _HF).is_dir() else named), beside if is_ours else None)

    def folder(self) -> str:
        """Return the folder, or the name of the hub, that is loaded.

        Raises:
            ConfigError: There is no model; the message says what there is.
        """
        try:
            return resolve_pretrain(self.pretrain)
        except ModelNotFoundError as error:
            raise ConfigError([Problem("policy", error.message, error.fix, self.pretrain)]) from error
