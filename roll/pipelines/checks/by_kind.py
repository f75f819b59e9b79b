"""The checks of a run that samples, for those who are given any kind of it."""

from __future__ import annotations

from functools import singledispatch

from roll.config import AgenticConfig, EvaluationConfig, RLVRConfig, RunConfig
from roll.pipelines.checks.agentic import check_agentic
from roll.pipelines.checks.rlvr import check_evaluation, check_rlvr


@singledispatch
def check_sampled(config: RunConfig, trains: bool = True) -> None:
    """Check what loading a configuration cannot, by its kind: modules, tags, engines, verifiers.

    Args:
        config: The configuration.
        trains: Whether the policy is to be trained, and not only measured.

    Raises:
        ConfigError: Lists every problem.
    """


@check_sampled.register
def _(config: AgenticConfig, trains: bool = True) -> None:
    check_agentic(config, trains=trains)


@check_sampled.register
def _(config: RLVRConfig, trains: bool = True) -> None:
    check_rlvr(config)


@check_sampled.register
def _(config: EvaluationConfig, trains: bool = True) -> None:
    check_evaluation(config)
