"""The store between what samples and what learns, as the runs at both of its ends open it."""

from __future__ import annotations

from roll.config import RLConfig
from roll.experience.base import ExperienceStore
from roll.pipelines.experience.opening import open_store
from roll.pipelines.experience.people import WaitingForPeople, command_for
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.tracking import Progress


def opened_store(config: RLConfig) -> ExperienceStore:
    """Open the store of a run.

    Raises:
        ConfigError: What is there is not what the run needs.
        RunError: No Ray cluster answers.
        StoreError: It cannot be used.
    """
    assert config.experience is not None, "such a mode without a store is refused"
    return open_store(config.experience, learns=config.learns_from_store, needs_baselines=needs_baselines(config))


def people_of(config: RLConfig, progress: Progress) -> WaitingForPeople:
    """Return what says for whom a run waits, where groups wait for review."""
    keys = config.experience
    assert keys is not None, "such a mode without a store is refused"
    return WaitingForPeople(keys.review_timeout, command_for(keys), progress.warning)
