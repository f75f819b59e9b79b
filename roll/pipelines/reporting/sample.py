"""An episode as the display of a run shows it."""

from __future__ import annotations

from roll.tracking import Sample
from roll.trajectories.model import Trajectory


def sample_of(trajectory: Trajectory) -> Sample:
    """Return what the policy was asked and answered; a question without an observation is the last message."""
    first = trajectory.messages[-1]["content"] if trajectory.messages else ""
    turns = tuple((turn.observation or first, turn.response) for turn in trajectory.turns)
    return Sample(trajectory.tag, turns or ((first, ""),), trajectory.score, str(trajectory.status).replace("_", " "))
