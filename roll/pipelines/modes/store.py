"""The store between what samples and what learns, as the runs at both of its ends open it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from roll.config import RLConfig
from roll.experience.base import ExperienceStore
from roll.pipelines.experience.opening import open_store
from roll.pipelines.experience.people import WaitingForPeople, command_for
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.learning.elsewhere import LearnerElsewhere
from roll.pipelines.sampled import SampledRun
from roll.tracking import Progress


def opened_where_tokens_are(run: SampledRun[Any], opens: Callable[[], ExperienceStore]) -> ExperienceStore:
    """Open a store in this process, or in the worker that learns for it, which then has the tokens (``data_plane``).

    Args:
        run: The run, with its learner.
        opens: Opens it.
    """
    return run.learner.open_store(opens) if isinstance(run.learner, LearnerElsewhere) else opens()


def opened_store(run: SampledRun[Any]) -> ExperienceStore:
    """Open the store that a run shares with others.

    Raises:
        ConfigError: What is there is not what the run needs.
        RunError: No Ray cluster answers.
        StoreError: It cannot be used.
    """
    config: RLConfig = run.config
    assert config.experience is not None, "such a mode without a store is refused"
    options = {"learns": config.learns_from_store, "needs_baselines": needs_baselines(config)}
    return opened_where_tokens_are(run, partial(open_store, config.experience, **options))


def people_of(config: RLConfig, progress: Progress) -> WaitingForPeople:
    """Return what says for whom a run waits, where groups wait for review."""
    keys = config.experience
    assert keys is not None, "such a mode without a store is refused"
    return WaitingForPeople(keys.review_timeout, command_for(keys), progress.warning)
