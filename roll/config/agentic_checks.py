"""Contradictions between the keys of the agentic pipeline, found before any environment is made."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.agentic_keys import AgenticKeys
from roll.config.batch_checks import either, multiples_around
from roll.config.env_manager import EnvManagerConfig
from roll.config.errors import Problem
from roll.config.grading_checks import custom_function_problems, graded_problems
from roll.config.opponents import opponent_problems
from roll.config.prompt_checks import prompt_problems
from roll.config.prompt_keys import PROMPTS


def playing_problems(config: AgenticKeys) -> Iterator[Problem]:
    """Yield the contradictions that only a run with environments can have."""
    yield from _batch_problems(config)
    yield from graded_problems(config)
    yield from custom_function_problems(config)
    yield from _domain_problems(config)
    devices = {role: set(worker.device_mapping or ()) for role, worker in config.roles()}
    for name in config.opponents:
        devices.pop(f"opponents.{name}")
    yield from opponent_problems(config.opponents, devices)
    if config.prompts_per_step:
        yield from prompt_problems(config)
        yield from _mixture_problems(config)
    elif config.validation is not None:
        yield Problem(
            "validation",
            "it evaluates prompts, and prompts_per_step is 0.",
            "say how many prompts each step has beside its episodes, such as prompts_per_step: 32. If it is to have "
            "prompts only, it is a key of examples/start_rlvr_pipeline.py: start that with this file.",
        )
    for name, tag in config.tags().items():
        limit = tag.max_tokens_per_step
        if limit is not None and limit > config.sequence_length:
            yield Problem(
                f"{'custom_envs' if name in config.custom_envs else 'custom_env'}.{name}.max_tokens_per_step",
                f"a response of {limit} tokens cannot fit in sequence_length {config.sequence_length}.",
                f"set max_tokens_per_step to at most {config.sequence_length}, or raise sequence_length.",
                limit,
            )


def _batch_problems(config: AgenticKeys) -> Iterator[Problem]:
    """Yield what does not fit between batch sizes, groups and tags."""
    for key, manager, batch_key, batch in (
        ("train_env_manager", config.train_env_manager, "rollout_batch_size", config.rollout_batch_size),
        ("val_env_manager", config.val_env_manager, "val_batch_size", config.val_batch_size),
    ):
        yield from _rollout_problems(key, manager, batch_key, batch)
        yield from (_partition_problems if manager.curriculum is None else _curriculum_problems)(key, manager)


def _rollout_problems(key: str, manager: EnvManagerConfig, batch_key: str, batch: int) -> Iterator[Problem]:
    environments = manager.environments
    sizes = f"{key}.env_groups × group_size = {manager.env_groups} × {manager.group_size} = {environments}"
    if batch % environments:
        groups = multiples_around(manager.group_size, batch)
        if batch % manager.group_size == 0:
            other = f"{key}.env_groups: {batch // manager.group_size}"
        else:
            counts = [size // manager.group_size for size in groups]
            other = f"{batch_key}: {either(groups)} with {key}.env_groups: {either(counts)}"
        yield Problem(
            batch_key,
            f"not a multiple of {sizes} environments.",
            f"use {batch_key}: {either(multiples_around(environments, batch))}, or {other}.",
            batch,
        )
        return
    episodes = batch // environments
    if 0 <= manager.max_traj_per_env < episodes:
        yield Problem(
            f"{key}.max_traj_per_env",
            f"{batch_key} {batch} needs {episodes} episodes of each environment ({sizes}).",
            f"set {key}.max_traj_per_env to {episodes} or -1, or {key}.env_groups: {batch // manager.group_size}.",
            manager.max_traj_per_env,
        )


def _curriculum_problems(key: str, manager: EnvManagerConfig) -> Iterator[Problem]:
    path = f"{key}.curriculum"
    if key == "val_env_manager" and manager.curriculum is not None:
        fix = "leave it out; name the tags that are to be measured."
        yield Problem(path, "an evaluation plays the same levels every time.", fix, manager.curriculum.choose)
    difficulty = {} if manager.curriculum is None else manager.curriculum.difficulty
    for tag, bounds in difficulty.items():
        if tag not in manager.tags:
            fix = f"name one of {key}.tags: {', '.join(manager.tags)}."
            yield Problem(f"{path}.difficulty", f"{tag!r} is none of the tags that are played.", fix, tag)
        if sorted(set(bounds)) != bounds:
            yield Problem(f"{path}.difficulty.{tag}", "bounds rise.", f"give {sorted(set(bounds))}.", bounds)
    if (len(set(manager.tags)) < 2 and not difficulty) or len(set(manager.tags)) < len(manager.tags):
        fix = f"name two or more, each once, from easy to hard; or part the levels of one by {path}.difficulty."
        yield Problem(f"{key}.tags", "a curriculum chooses between tags.", fix, manager.tags)
    if manager.n_groups is not None:
        fix = f"leave out {key}.n_groups, or the curriculum."
        yield Problem(f"{key}.n_groups", "the curriculum decides how many groups a tag has.", fix, manager.n_groups)


def _partition_problems(key: str, manager: EnvManagerConfig) -> Iterator[Problem]:
    tags, groups, partition = manager.tags, manager.env_groups, manager.n_groups
    if partition is None:
        if groups % len(tags):
            yield Problem(
                f"{key}.env_groups",
                f"cannot be shared equally by {len(tags)} tags ({', '.join(tags)}).",
                f"use {key}.env_groups: {either(multiples_around(len(tags), groups))}, or give the share of each tag: "
                f"{key}.n_groups: {_shares(groups, len(tags))}.",
                groups,
            )
    elif len(partition) != len(tags):
        yield Problem(
            f"{key}.n_groups",
            f"has {len(partition)} numbers for {len(tags)} tags ({', '.join(tags)}).",
            f"give one number per tag, such as {_shares(groups, len(tags))}, or remove it for equal shares.",
            partition,
        )
    elif sum(partition) != groups:
        yield Problem(
            f"{key}.n_groups",
            f"sums to {sum(partition)}, but {key}.env_groups is {groups}.",
            f"set {key}.env_groups: {sum(partition)}, or a partition that sums to {groups}, such as "
            f"{_shares(groups, len(tags))}.",
            partition,
        )


def _shares(groups: int, count: int) -> list[int]:
    share, remainder = divmod(groups, count)
    return [share + (index < remainder) for index in range(count)]


def _domain_problems(config: AgenticKeys) -> Iterator[Problem]:
    """Yield domains that grade nothing, and filters of prompts where there are none."""
    for domain, reward in config.rewards.items():
        if domain in config.prompt_tags and config.prompts_per_step:
            continue
        if not config.played_tags & set(reward.tags(domain)):
            yield Problem(
                f"rewards.{domain}.tag_included",
                f"none of the environments ({', '.join(sorted(config.played_tags))}) belongs to domain {domain}.",
                "name the tags that it grades, or let the steps have prompts too: prompts_per_step: 32.",
                reward.tags(domain),
            )
        if reward.query_filter_config.type != "no_filter":
            yield Problem(
                f"rewards.{domain}.query_filter_config",
                "it chooses among groups of prompts, and these are episodes.",
                "remove it; dynamic_sampling.enable replaces groups without variance.",
                reward.query_filter_config.type,
            )
    if config.custom_reward_function is not None and not config.rewards:
        yield Problem(
            "custom_reward_function",
            "no domain says which episodes it grades.",
            f"add one, such as rewards: {{mine: {{tag_included: [{config.train_env_manager.tags[0]}]}}}}.",
            config.custom_reward_function.name,
        )


def _mixture_problems(config: AgenticKeys) -> Iterator[Problem]:
    """Yield what only a run with episodes and prompts can get wrong."""
    if not config.prompt_tags:
        graded = f": those of rewards ({', '.join(config.rewards)}) grade environments" if config.rewards else ""
        yield Problem(
            "rewards",
            f"prompts_per_step is {config.prompts_per_step}, but no domain says how responses to prompts are "
            f"graded{graded}.",
            "add one, such as rewards: {math_rule: {tag_included: [arithmetic]}}, or set prompts_per_step: 0.",
        )
    if PROMPTS in config.train_env_manager.tags:
        yield Problem(
            "train_env_manager.tags",
            f"{PROMPTS!r} is the name of the prompts in checkpoints, so no environment can have it beside them.",
            "give the tag another name, or set prompts_per_step: 0.",
            PROMPTS,
        )
