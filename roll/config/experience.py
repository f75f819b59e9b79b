"""The keys of experience: what a run does with it, and the store that lies between what samples and what learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, model_validator

from roll.config.base import ConfigModel
from roll.config.errors import Problem
from roll.config.sampling_keys import DynamicSampling
from roll.config.worker import NonNegative, Positive

Mode = Literal["both", "explore", "train", "bench"]


class ExperienceConfig(ConfigModel):
    """A store of groups, which one program fills and another one learns from."""

    type: Literal["folder"] = Field("folder", description="Kind of store: `folder`, on a disk that both programs see.")
    path: Annotated[Path, Field(strict=False)] | None = Field(
        None,
        description="Its folder; or, with `mode: train`, that of a finished run, to learn from what it sampled. With "
        "`mode: both` the run keeps its own, `replay` in its `output_dir`.",
    )
    reader: str = Field("train", min_length=1, description="Who learns from it: each reader gets every group.")
    uses: Positive = Field(1, description="How often each group is learned from.")
    max_age: NonNegative | None = Field(
        None, description="Versions of the weights that a group may be old; older ones are dropped. null: any."
    )
    priority: str = Field(
        "least_used",
        description="Which groups come first: `least_used` (each in turn), `linear_decay`, `staleness`, `advantage`, "
        "`success_balanced`, or one of your own (`@register_priority`).",
    )
    priority_options: dict[str, Any] = Field(default_factory=dict, description="Options of the priority, by name.")
    cooldown: NonNegative = Field(0, description="Steps that lie at least between two that learn from the same group.")
    fresh_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Share of the groups of a step that were never learned from, at least one; the others are "
        "replayed, as far as `uses`, `max_age` and `cooldown` allow. null: as it comes.",
    )
    writer: str | None = Field(
        None,
        min_length=1,
        description="`mode: explore`: name put before those of its groups. Several explorers that fill one store need "
        "one each, and seeds of their own; a group whose name is there already is not kept. null: none.",
    )
    follow: Annotated[Path, Field(strict=False)] | None = Field(
        None,
        description="The folder of the run that learns (its `output_dir`). `mode: explore` samples from its newest "
        "checkpoint; null: the policy stays as it is. `mode: bench` evaluates each of its checkpoints.",
    )
    ahead: Positive | None = Field(
        2, description="`mode: explore`: waits while so many steps of groups have not been learned from. null: never."
    )

    @model_validator(mode="before")
    @classmethod
    def _a_path_alone_is_a_folder(cls, data: Any) -> Any:
        return data if isinstance(data, Mapping) else {"path": data}


class HasExperience(Protocol):
    """What the keys of experience are judged by."""

    @property
    def mode(self) -> Mode:
        """What the run does."""
        ...

    @property
    def experience(self) -> ExperienceConfig | None:
        """The store."""
        ...

    @property
    def async_generation_ratio(self) -> float:
        """How far sampling runs ahead."""
        ...

    @property
    def eval_steps(self) -> int:
        """Steps between two evaluations."""
        ...

    @property
    def group_size_redundancy(self) -> int:
        """Spare members of a group."""
        ...

    @property
    def dynamic_sampling(self) -> DynamicSampling:
        """Whether groups are replaced."""
        ...


def experience_problems(config: HasExperience) -> Iterator[Problem]:
    """Yield what contradicts the mode."""
    if config.mode == "bench":
        yield from _bench_problems(config)
        return
    if config.mode == "both":
        if config.experience is not None:
            yield from _replay_problems(config, config.experience)
        return
    if config.experience is None or config.experience.path is None:
        message = f"mode: {config.mode} needs a store between what samples and what learns."
        yield Problem("experience", message, "name a folder: experience: output/experience.")
    if config.mode == "train" and config.async_generation_ratio > 0:
        message = "nothing is sampled, so nothing can be sampled ahead."
        value = config.async_generation_ratio
        yield Problem("async_generation_ratio", message, "leave it out; the run that explores may have it.", value)


def _bench_problems(config: HasExperience) -> Iterator[Problem]:
    """Yield what is in the way of evaluating the checkpoints of another run."""
    if config.experience is None or config.experience.follow is None:
        message = "mode: bench evaluates the checkpoints of another run, and none is named."
        yield Problem("experience.follow", message, "name its output_dir: experience.follow=output/sokoban.")
    if not config.eval_steps:
        message = "mode: bench evaluates, and the configuration never does."
        yield Problem("eval_steps", message, "set it to 1; every checkpoint is evaluated, whatever it is.", 0)


def _replay_problems(config: HasExperience, store: ExperienceConfig) -> Iterator[Problem]:
    """Yield what is in the way of replay in one program."""
    if store.path is not None:
        message = "a run that samples and learns keeps its groups to itself."
        yield Problem("experience.path", message, "leave it out, or set mode: explore or mode: train.", str(store.path))
        return
    if store.fresh_share is None or store.fresh_share == 1:
        message = "nothing says which share of a step is sampled for it, and which is replayed."
        yield Problem("experience.fresh_share", message, "set it below 1: experience.fresh_share=0.5.")
    if store.uses == 1:
        message = "each group is learned from once, so nothing can be replayed."
        yield Problem("experience.uses", message, "set it above 1: experience.uses=2.", store.uses)
    if config.async_generation_ratio > 0:
        message = "a run that replays samples in step with training."
        fix = "leave it out; mode: explore may sample ahead of mode: train."
        yield Problem("async_generation_ratio", message, fix, config.async_generation_ratio)


def experience_cautions(config: HasExperience) -> Iterator[str]:
    """Yield the keys that nothing reads in this mode, as sentences."""
    store = config.experience
    if store is None:
        return
    if config.mode != "bench" and store.uses == 1 and (store.cooldown or store.fresh_share is not None):
        yield "experience.cooldown, experience.fresh_share: no effect, each group is used once. Set experience.uses."
    if config.mode == "bench":
        unread = {f"experience.{key}": True for key in store.model_fields_set - {"follow"}}
        reason = "checkpoints are evaluated, and nothing else (mode: bench)"
    elif config.mode == "train":
        unread = {
            "experience.follow": store.follow is not None,
            "experience.writer": store.writer is not None,
            "group_size_redundancy": config.group_size_redundancy > 0,
            "dynamic_sampling": config.dynamic_sampling.enable,
        }
        reason = "nothing is sampled (mode: train)"
    elif config.mode == "both":
        unread = {
            "experience.follow": store.follow is not None,
            "experience.writer": store.writer is not None,
            "experience.ahead": "ahead" in store.model_fields_set,
        }
        reason = "one program samples and learns (mode: both)"
    else:
        unread = {
            "experience.uses": store.uses > 1,
            "experience.max_age": store.max_age is not None,
            "experience.priority": store.priority != "least_used",
            "experience.priority_options": bool(store.priority_options),
            "experience.cooldown": store.cooldown > 0,
            "experience.fresh_share": store.fresh_share is not None,
        }
        reason = "nothing is learned (mode: explore)"
    yield from (f"{key} has no effect: {reason}." for key, was_set in unread.items() if was_set)
