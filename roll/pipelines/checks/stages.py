"""What is wrong with a run of several stages, before the first begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from roll.config import ConfigError, Problem
from roll.config.kinds import STAGES, check_before
from roll.config.optimizer_checks import optimizer_problems
from roll.config.staged import StagedConfig
from roll.pipelines.checks.data_files import data_files, missing_file
from roll.pipelines.run.checks import check_run


def check_stages(config: StagedConfig) -> list[str]:
    """Check of every stage what loading cannot, before the first begins; return what has no effect.

    Raises:
        ConfigError: Lists the problems of all stages.
    """
    notes, problems = check_run(config), list(_start_problems(config))
    for name, stage in config.stages.items():
        try:
            notes += [f"{STAGES}.{name}: {note}" for note in check_before(stage.config)]
        except ConfigError as error:
            problems += [replace(each, path=f"{STAGES}.{name}.{each.path}") for each in error.problems]
        problems += _data_problems(config, name)
    if problems:
        raise ConfigError(problems)
    return notes


def _start_problems(config: StagedConfig) -> Iterator[Problem]:
    """Yield stages whose start is no policy: of a kind that has none."""
    for name, stage in config.stages.items():
        origin, policy = config.origin_of(name), stage.config.policy
        if origin is not None and policy is None:
            fix = "add start_from: pretrain to the stage."
            yield Problem(f"{STAGES}.{name}.start_from", f"{stage.config.pipeline} has no policy to start from.", fix)
        if stage.best_by is not None:
            yield from _best_problems(config, name, origin)
        if stage.optimizer:
            yield from _optimizer_problems(config, name, origin)
        own = None if policy is None else policy.model_args.model_name_or_path
        if origin is not None and own is not None:
            path = f"{STAGES}.{name}.actor_train.model_args.model_name_or_path"
            yield Problem(path, f"the stage starts from the weights of {origin}.", "remove it.", own)
        trained = None if origin is None else config.stages[origin].config.policy_head
        if policy is not None and trained not in (None, "language", stage.config.policy_head):
            fix = "name the stage whose policy goes on, or pretrain; reward_pretrain takes a reward model."
            yield Problem(f"{STAGES}.{name}.start_from", f"{origin} trains a reward model, not a policy.", fix, origin)


def _best_problems(config: StagedConfig, name: str, origin: str | None) -> Iterator[Problem]:
    """Yield why a stage cannot start from the best checkpoint of another."""
    path, metric = f"{STAGES}.{name}.best_by", config.stages[name].best_by
    while origin is not None and not config.stages[origin].config.trains:
        origin = config.origin_of(origin)
    if origin is None:
        yield Problem(path, "no stage before it has checkpoints.", "leave it out.", metric)
        return
    before = config.stages[origin].config
    if not before.eval_steps:
        fix = f"set {STAGES}.{origin}.eval_steps, or leave best_by out."
        yield Problem(path, f"{origin} is never evaluated.", fix, metric)
    last = -(-before.max_steps // before.save_steps) if before.save_steps else 1
    keep = before.checkpoint_config.keep
    if last > keep:
        fix = f"set {STAGES}.{origin}.checkpoint_config.keep={last}, or a larger save_steps."
        yield Problem(path, f"{origin} keeps the newest {keep} of its {last} checkpoints.", fix, metric)


def _optimizer_problems(config: StagedConfig, name: str, origin: str | None) -> Iterator[Problem]:
    """Yield why a stage cannot begin with the optimiser of the stage whose weights it starts from."""
    path, own = f"{STAGES}.{name}.optimizer", config.stages[name].config.policy
    while origin is not None and not config.stages[origin].config.trains:
        origin = config.origin_of(origin)
    before = None if origin is None else config.stages[origin].config.policy
    if before is None or own is None:
        yield Problem(path, "no stage before it has an optimiser.", "leave it out.")
        return
    yield from optimizer_problems(path, own)
    theirs, ours = (each.strategy_args.strategy_name for each in (before, own))
    if theirs != ours or before.model_args.lora_rank is not None:
        message = f"the optimiser of {origin} is of other parameters ({theirs}), and this stage has {ours}."
        yield Problem(path, message, "train both with the same strategy and without lora_rank, or leave it out.")


def _data_problems(config: StagedConfig, name: str) -> Iterator[Problem]:
    """Yield files of a stage that are not there, and that no stage before it writes."""
    names = list(config.stages)
    for key, file in data_files(config.stages[name].config):
        key, path = f"{STAGES}.{name}.{key}", Path(file).expanduser().resolve()
        if path.is_relative_to(config.output_dir.resolve()):
            by = next((each for each in names if path.is_relative_to(config.folder(each).resolve())), None)
            yield from _source_problems(config, key, file, by, names[: names.index(name)])
        else:
            fix = "correct the path; what a stage before it writes is at ${stages.<name>.output_dir}."
            yield from missing_file(key, file, fix)


def _source_problems(
    config: StagedConfig, path: str, file: str, by: str | None, earlier: list[str]
) -> Iterator[Problem]:
    if by not in earlier:
        listed = ", ".join(f"${{{STAGES}.{each}.output_dir}}" for each in earlier) or "a file that there is"
        yield Problem(path, "no stage before this one writes it.", f"name {listed}.", file)
        return
    source = config.stages[by].config
    if not source.samples:
        yield Problem(path, f"stage {by} samples nothing.", "name the folder of a stage that does.", file)
    elif not source.stores_samples:
        fix = f"set {STAGES}.{by}.trajectory_dump_steps=1."
        yield Problem(path, f"stage {by} does not store what it samples.", fix, file)
