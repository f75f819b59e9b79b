"""The keys of judges: models of a run that grade its responses, each with an engine of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from roll.config.errors import Problem
from roll.config.worker import GeneratingArgs, Positive, WorkerConfig

if TYPE_CHECKING:
    from roll.config.sampling import SamplingConfig

Config = TypeVar("Config", bound="SamplingConfig")

JUDGES = "judges"
"""How the key paths of judges begin."""

RESERVED = ("http", "policy")
"""Engines that `llm_judge` knows besides, whose names no judge may have."""


class JudgeConfig(WorkerConfig):
    """A model that grades."""

    generating_args: GeneratingArgs = Field(
        default_factory=lambda: GeneratingArgs(max_new_tokens=512, temperature=0.0),
        description="Sampling of its replies: greedy, of 512 tokens at most, where nothing is said.",
    )
    sequence_length: Positive | None = Field(
        None, description="Most tokens of what it is asked and of its reply. null: that of the run."
    )
    max_running_requests: Positive | None = Field(
        None, description="Replies that it writes at a time, per engine. null: as many as the run's engines."
    )


def judging(config: Config, name: str) -> Config:
    """Return the run as an engine reads it that samples from a judge and not from the policy.

    Args:
        config: The run.
        name: One of its judges.
    """
    judge: JudgeConfig = getattr(config, JUDGES)[name]
    policy = config.actor_train.model_copy(update={"model_args": judge.model_args, "data_args": judge.data_args})
    return config.model_copy(
        update={
            "actor_infer": judge,
            "actor_train": policy,
            "pretrain": judge.model_args.model_name_or_path or config.pretrain,
            "sequence_length": judge.sequence_length or config.sequence_length,
            "max_running_requests": judge.max_running_requests or config.max_running_requests,
        }
    )


def judge_problems(judges: Mapping[str, JudgeConfig], others: Mapping[str, WorkerConfig]) -> Iterator[Problem]:
    """Yield judges without a model, with the name of another engine, or on devices of another role.

    Args:
        judges: By name.
        others: All other roles, by name.
    """
    taken = {device: role for role, worker in others.items() for device in worker.device_mapping or ()}
    for name, judge in judges.items():
        path = f"{JUDGES}.{name}"
        if name in RESERVED:
            yield Problem(path, f"{name} is an engine that llm_judge knows already.", "give it another name.")
        if judge.model_args.model_name_or_path is None:
            key = f"{path}.model_args.model_name_or_path"
            yield Problem(key, "a judge is a model of its own.", "name one; engine: policy asks the policy itself.")
        if judge.generating_args.max_new_tokens >= (judge.sequence_length or judge.generating_args.max_new_tokens + 1):
            key = f"{path}.generating_args.max_new_tokens"
            message = (
                f"a reply of so many tokens leaves no room for a question in sequence_length {judge.sequence_length}."
            )
            yield Problem(key, message, f"raise {path}.sequence_length.", judge.generating_args.max_new_tokens)
        shared = sorted({taken[device] for device in judge.device_mapping or () if device in taken})
        if shared:
            message = f"{', '.join(shared)} has some of its devices, and a judge works while others do."
            fix = "give it devices of its own; without a mapping it works on the CPU."
            yield Problem(f"{path}.device_mapping", message, fix, judge.device_mapping)
        taken |= dict.fromkeys(judge.device_mapping or (), path)
