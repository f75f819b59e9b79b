"""The keys of PyTorch's profiler: which steps, which workers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

from pydantic import Field

from roll.config.base import ConfigModel, NameList
from roll.config.errors import Problem, choose_from
from roll.config.worker import NonNegative, Positive


class ProfileConfig(ConfigModel):
    """What is profiled with PyTorch's profiler."""

    steps: Annotated[list[Positive], Field(min_length=1)] = Field(description="Steps that are profiled, from 1.")
    roles: Annotated[NameList, Field(min_length=1)] = Field(
        default_factory=lambda: ["actor_train"],
        description="Roles whose workers are profiled: `actor_train`, `actor_infer`, `reference`, `critic`, "
        "`rewards.DOMAIN`, `train_env_manager`, …",
    )
    ranks: list[NonNegative] | None = Field(None, description="Their ranks. null: all.")
    memory: bool = Field(
        False,
        description="Record allocations too: on GPUs in a snapshot beside the trace, for "
        "https://pytorch.org/memory_viz; without one in the trace, which then has only the thread that workers are "
        "called in.",
    )


def profile_problems(config: ProfileConfig | None, roles: Collection[str]) -> Iterator[Problem]:
    """Yield roles that the run does not have."""
    for index, role in enumerate(config.roles if config is not None else ()):
        if role not in roles:
            path = f"profile.roles.{index}"
            yield Problem(path, "the run has no workers of this role.", choose_from(role, sorted(roles)), role)
