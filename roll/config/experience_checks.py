"""Contradictions between the keys of experience, and keys that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from roll.config.batch_checks import either, multiples_around
from roll.config.errors import Problem
from roll.config.experience import ExperienceConfig, Mode
from roll.config.over_rollout import OverRollout
from roll.config.run import CheckpointConfig
from roll.config.sampling_keys import DynamicSampling


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
    def over_rollout(self) -> OverRollout:
        """Groups beyond those of a step."""
        ...

    @property
    def sampled_per_step(self) -> int:
        """Trajectories that a step samples."""
        ...

    @property
    def groups_per_step(self) -> int:
        """Their groups."""
        ...

    @property
    def max_steps(self) -> int:
        """Steps of the run."""
        ...

    @property
    def checkpoint_config(self) -> CheckpointConfig:
        """How many checkpoints are kept."""
        ...

    @property
    def dynamic_sampling(self) -> DynamicSampling:
        """Whether groups are replaced."""
        ...


def experience_problems(config: HasExperience) -> Iterator[Problem]:
    """Yield what contradicts the mode."""
    if config.mode == "serve":
        return
    if config.mode == "bench":
        yield from _bench_problems(config)
        return
    if config.experience is not None:
        yield from _store_problems(config, config.experience)
    if config.mode == "both":
        if config.experience is not None and config.experience.type != "memory":
            yield from _replay_problems(config, config.experience)
        return
    if config.experience is None or (config.experience.path is None and config.experience.type in ("folder", "sql")):
        message = f"mode: {config.mode} needs a store between what samples and what learns."
        yield Problem("experience", message, "name a folder: experience: output/experience.")
    if config.mode == "train" and config.async_generation_ratio > 0:
        message = "nothing is sampled, so nothing can be sampled ahead."
        value = config.async_generation_ratio
        yield Problem("async_generation_ratio", message, "leave it out; the run that explores may have it.", value)


def _lease_problems(config: HasExperience, store: ExperienceConfig) -> Iterator[Problem]:
    """Yield what is in the way of learning from so many trajectories."""
    size, path = store.train_batch_size, "experience.train_batch_size"
    if size is None or config.mode == "explore" or store.type == "memory":
        return
    members, rest = divmod(config.sampled_per_step, config.groups_per_step)
    if rest:
        message = "groups have different sizes here, and are whole, so it is no number of groups."
        yield Problem(path, message, "leave it out.", size)
    elif size % members:
        message = f"groups have {members} members, and are whole: a store gives out groups, and no part of one."
        yield Problem(path, message, f"use {either(multiples_around(members, size))}.", size)
    elif config.mode == "both" and size > config.sampled_per_step and store.fresh_share is not None:
        message = "experience.train_batch_size says already which share of a step is sampled for it."
        yield Problem("experience.fresh_share", message, "leave it out.", store.fresh_share)
    elif config.mode == "both" and size == config.sampled_per_step:
        message = f"a step samples {config.sampled_per_step} trajectories, so nothing is replayed, and nothing is left."
        yield Problem(path, message, "raise it, lower it, or leave it out.", size)


def _store_problems(config: HasExperience, store: ExperienceConfig) -> Iterator[Problem]:
    """Yield what contradicts itself in the keys of a store."""
    yield from _place_problems(config.mode, store)
    if store.checkpoints:
        message = "only mode: bench evaluates a list of checkpoints."
        yield Problem("experience.checkpoints", message, "leave it out.", [str(path) for path in store.checkpoints])
    yield from _lease_problems(config, store)
    sync = store.sync
    if sync is None:
        return
    by_files = sync.method == "checkpoint"
    if not by_files and config.mode != "both" and store.type != "ray":
        message = "such weights travel inside a Ray cluster that both programs join, and their store is not in one."
        fix = "set experience.type=ray and experience.name=my_store, or use method=checkpoint."
        yield Problem("experience.sync.method", message, fix, sync.method)
    if config.mode == "explore" and store.follow is None and by_files:
        message = "no run is named whose weights are taken."
        yield Problem("experience.follow", message, "name its output_dir: experience.follow=output/sokoban.")
    if sync.offset and sync.style != "fixed":
        yield Problem("experience.sync.offset", "only style: fixed has one.", "leave it out.", sync.offset)
    if by_files and config.mode == "train" and sync.style == "fixed" and config.checkpoint_config.keep < sync.kept:
        message = f"an explorer may be so far behind that it needs one of the newest {sync.kept} checkpoints."
        yield Problem("checkpoint_config.keep", message, f"set it to {sync.kept}.", config.checkpoint_config.keep)


def _place_problems(mode: Mode, store: ExperienceConfig) -> Iterator[Problem]:
    """Yield what contradicts itself in where a store is."""
    if store.type == "memory":
        yield from _memory_problems(mode, store)
    if store.type == "folder" and isinstance(store.path, str):
        message = "this is the address of a database."
        yield Problem("experience.type", message, "set it to sql, or leave it out.", store.type)
    if store.type == "sql" and isinstance(store.path, Path):
        fix = "write it as postgresql://user@host/database or sqlite:///file."
        yield Problem("experience.path", "a store of type sql has an address.", fix, str(store.path))
    if store.type != "ray":
        for key in sorted(store.model_fields_set & {"name", "namespace"}):
            message = f"only a store of type ray has one; this is a store of type {store.type}."
            yield Problem(
                f"experience.{key}", message, "leave it out, or set experience.type=ray.", getattr(store, key)
            )
        return
    if isinstance(store.path, str):
        message = "a store of type ray is in a Ray cluster, and this is the address of a database."
        yield Problem("experience.path", message, "leave it out, or set experience.type=sql.", store.path)
    if mode == "both":
        message = "a run that samples and learns keeps its groups to itself."
        yield Problem("experience.type", message, "leave it out, or set mode: explore or mode: train.", store.type)
    elif store.name is None:
        message = "programs find a store in a Ray cluster by its name, and it has none."
        yield Problem("experience.name", message, "name it in both programs: experience.name=my_store.")


def _memory_problems(mode: Mode, store: ExperienceConfig) -> Iterator[Problem]:
    """Yield what a store in the memory of one program cannot do."""
    if mode != "both":
        message = f"a store in memory is in one program, and mode: {mode} shares its store with another one."
        fix = "name a folder: experience: output/experience."
        yield Problem("experience.type", message, fix, store.type)
        return
    if store.path is not None:
        message = "a store in memory is in no place."
        yield Problem("experience.path", message, "leave it out.", str(store.path))
    for key in ("uses", "fresh_share", "train_batch_size"):
        if key in store.model_fields_set:
            message = "with a store in memory a step learns once from all that was sampled for it, and nothing is kept."
            fix = "leave it out, or leave out experience.type: groups are then kept in the folder of the run."
            yield Problem(f"experience.{key}", message, fix, getattr(store, key))


def _bench_problems(config: HasExperience) -> Iterator[Problem]:
    """Yield what is in the way of evaluating the checkpoints of another run."""
    listed = [] if config.experience is None else config.experience.checkpoints
    if not listed and (config.experience is None or config.experience.follow is None):
        message = "mode: bench evaluates the checkpoints of another run, and none is named."
        yield Problem("experience.follow", message, "name its output_dir: experience.follow=output/sokoban.")
    if len(listed) > config.max_steps:
        message = f"{len(listed)} checkpoints are listed, and the run ends after fewer steps."
        yield Problem("max_steps", message, f"set it to {len(listed)}: one step each.", config.max_steps)
    if not config.eval_steps:
        message = "mode: bench evaluates, and the configuration never does."
        yield Problem("eval_steps", message, "set it to 1; every checkpoint is evaluated, whatever it is.", 0)


def _replay_problems(config: HasExperience, store: ExperienceConfig) -> Iterator[Problem]:
    """Yield what is in the way of replay in one program."""
    if store.path is not None:
        message = "a run that samples and learns keeps its groups to itself."
        yield Problem("experience.path", message, "leave it out, or set mode: explore or mode: train.", str(store.path))
        return
    leaves_some = store.train_batch_size is not None and store.train_batch_size < config.sampled_per_step
    if store.train_batch_size is None and store.fresh_share in (None, 1):
        message = "nothing says which share of a step is sampled for it, and which is replayed."
        yield Problem("experience.fresh_share", message, "set it below 1: experience.fresh_share=0.5.")
    if store.uses == 1 and not leaves_some:
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
    if config.mode not in ("bench", "serve") and store.uses == 1 and (store.cooldown or store.fresh_share is not None):
        yield "experience.cooldown, experience.fresh_share: no effect, each group is used once. Set experience.uses."
    if config.mode == "bench":
        unread = {f"experience.{key}": True for key in store.model_fields_set - {"follow", "checkpoints"}}
        reason = "checkpoints are evaluated, and nothing else (mode: bench)"
    elif config.mode == "serve":
        unread = {f"experience.{key}": True for key in store.model_fields_set - {"follow"}}
        reason = "the policy answers, and nothing else (mode: serve)"
    elif config.mode == "train":
        unread = {
            "experience.follow": store.follow is not None,
            "experience.writer": store.writer is not None,
            "group_size_redundancy": config.group_size_redundancy > 0,
            "over_rollout": config.over_rollout.ratio > 0,
            "dynamic_sampling": config.dynamic_sampling.enable,
        }
        reason = "nothing is sampled (mode: train)"
    elif config.mode == "both":
        unread = {
            "experience.follow": store.follow is not None,
            "experience.writer": store.writer is not None,
            "experience.ahead": "ahead" in store.model_fields_set,
            "experience.sync": store.sync is not None,
        }
        if store.type == "memory":
            kept = ("reader", "max_age", "priority", "priority_options", "cooldown")
            unread |= {f"experience.{key}": key in store.model_fields_set for key in kept}
        reason = "one program samples and learns (mode: both)"
    else:
        unread = {
            "experience.uses": store.uses > 1,
            "experience.max_age": store.max_age is not None,
            "experience.priority": store.priority != "least_used",
            "experience.priority_options": bool(store.priority_options),
            "experience.cooldown": store.cooldown > 0,
            "experience.fresh_share": store.fresh_share is not None,
            "experience.train_batch_size": store.train_batch_size is not None,
        }
        reason = "nothing is learned (mode: explore)"
        if store.follow is not None and store.sync is not None and store.sync.method != "checkpoint":
            yield f"experience.follow has no effect: the store's name finds the weights (method: {store.sync.method})."
    yield from (f"{key} has no effect: {reason}." for key, was_set in unread.items() if was_set)
