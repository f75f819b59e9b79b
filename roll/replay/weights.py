"""Which weights a stored episode is compared with, or goes on with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from roll.config import ConfigError, Problem
from roll.runs.layout import CHECKPOINTS, list_checkpoints
from roll.runs.stored import StoredRun, checkpoint_in
from roll.trajectories.model import Trajectory

_HF = "hf"


@dataclass(frozen=True, slots=True)
class Weights:
    """A policy.

    Attributes:
        folder: Its folder or name; ``None`` for the policy that the run began with.
        version: The policy version of the run that it is, ``None`` if it is none.
        wanted: The version that sampled the episodes.
        asked: Whether somebody named it.
    """

    folder: str | None
    version: int | None
    wanted: int
    asked: bool

    @property
    def exact(self) -> bool:
        """Whether these are the weights that sampled the episodes."""
        return self.version == self.wanted

    def __str__(self) -> str:
        where = "the policy that the run began with" if self.folder is None else self.folder
        step = "" if not self.version else f" (step {self.version})"
        return f"{where}{step}"

    @property
    def remark(self) -> str:
        """What to know where they are not those that sampled the episodes; empty where they are."""
        if self.exact:
            return ""
        if self.asked:
            return f"sampled with the weights of step {self.wanted}; you asked for others."
        return f"sampled with the weights of step {self.wanted}, which are not stored; these are the nearest."


def version_of(trajectories: Iterable[Trajectory], first_turn: int = 0) -> int:
    """Return the policy version that sampled most turns, from ``first_turn`` on, counted from 0."""
    turns = [turn for each in trajectories for turn in each.turns[first_turn:]]
    return Counter(turn.policy_version[1] for turn in turns).most_common(1)[0][0] if turns else 0


def find_weights(run: StoredRun, wanted: int, policy: str | None) -> Weights:
    """Return the weights of policy version ``wanted`` of a run, or those that are asked for.

    Args:
        run: The run.
        wanted: The version that sampled the episodes; 0 is the policy that the run began with.
        policy: A checkpoint, a folder in Hugging Face format, or the name of a model; ``None`` for the checkpoint of
            the version, or where it is not stored the one before it.

    Raises:
        ConfigError: ``policy`` is a run without checkpoints.
    """
    stored = run.checkpoints or list_checkpoints(run.folder / CHECKPOINTS)  # the folder may have been moved
    known = {step: folder for step, folder in stored if (folder / _HF).is_dir()}
    if policy is not None:
        folder = checkpoint_in(Path(policy).expanduser(), "policy")
        own = {path.resolve(): step for step, path in known.items()}
        version = own.get(folder.resolve(), own.get(folder.resolve().parent))
        return Weights(str(folder / _HF if (folder / _HF).is_dir() else policy), version, wanted, asked=True)
    version = max((step for step in known if step <= wanted), default=0)
    return Weights(str(known[version] / _HF) if version else None, version, wanted, asked=False)


def absolute(policy: str | None) -> str | None:
    """Return a policy as it is found from any folder: a path in full, a name as it is."""
    path = None if policy is None else Path(policy).expanduser()
    return str(path.absolute()) if path is not None and path.exists() else policy


def require_tokens(trajectories: Iterable[Trajectory]) -> None:
    """Check that episodes have tokens to play again.

    Raises:
        ConfigError: If one has none: its responses were recorded elsewhere.
    """
    for each in trajectories:
        if any(not turn.completion_ids for turn in each.turns):
            message = "its responses were recorded as text, without tokens."
            fix = "choose an episode that a policy sampled here."
            raise ConfigError([Problem("trajectory", message, fix, f"{each.group_id}/{each.episode}")])
