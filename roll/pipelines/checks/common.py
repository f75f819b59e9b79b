"""Checks of roles: strategies and their options, sampling, chat templates, worker classes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from roll.config import ConfigError, Problem, RunConfig, SamplingConfig
from roll.config.errors import Absent
from roll.config.strategies import (
    FROZEN,
    STRATEGIES,
    Ability,
    StrategyDescription,
    ability_for,
    is_installed,
    named,
    strategies_for,
)
from roll.config.trainer_keys import TrainerKeys
from roll.config.worker import TrainWorkerConfig, WorkerConfig
from roll.distributed import plan_placement
from roll.pipelines.run.checks import sentence
from roll.rendering import ChatTemplateError
from roll.rendering.templates import template_text
from roll.workers.classes import worker_class
from roll.workers.environment import sampling_params
from roll.workers.pictures import pictures_shown_by


def strategy_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield what the strategy of a role cannot do, and options that it does not have."""
    for role, worker in config.roles():
        arguments = worker.strategy_args
        if arguments.about.needs_gpu and worker.worker_cls is None and config.cluster == "local":
            yield from _gpu_problems(role, arguments.about)
        yield from parallel_problems(role, worker)
        yield from precision_problems(role, worker)
        yield from rope_problems(role, worker)
        yield from ability_problems(role, worker)
        if arguments.about.check_options is None:
            continue
        try:
            named(arguments.about.check_options)(
                arguments.strategy_config, path=f"{role}.strategy_args.strategy_config"
            )
        except ConfigError as error:
            yield from error.problems


def picture_problems(config: SamplingConfig) -> Iterator[Problem]:
    """Yield strategies, and layouts of theirs, that have no place for the pictures that a run shows."""
    shown_by = pictures_shown_by(config)
    if shown_by is None:
        return
    if shown_by == config.image_key_of_rows:
        for key, reason in config.text_readers():
            yield Problem(key or shown_by, f"{reason}, and {shown_by} shows pictures.", "leave it out.")
    able = ", ".join(name for name in STRATEGIES if STRATEGIES.get(name).sees)
    for role, worker in config.worker_roles():
        about, path = worker.strategy_args.about, f"{role}.strategy_args"
        if role == "critic":
            message = f"a critic reads text alone, and {shown_by} shows pictures."
            yield Problem("adv_estimator", message, "use one without a critic, such as grpo.")
        elif role == "reward":
            continue
        elif not about.sees:
            message = f"it reads text alone, and {shown_by} shows pictures."
            yield Problem(f"{path}.strategy_name", message, f"use one of {able}.", about.name)
        elif worker.strategy_args.parallel_size("ulysses_size") > 1:
            message = f"sequences with pictures are computed whole, and {shown_by} shows pictures."
            yield Problem(f"{path}.strategy_config.ulysses_size", message, "set it to 1.")


def trained_text_problems(config: SamplingConfig) -> Iterator[Problem]:
    """Yield an engine that answers text: without its tokens and their log-probs nothing can be learned from it."""
    engine = config.actor_infer.strategy_args
    if engine.about.answers_text:
        message = "it answers text without tokens and log-probs, so the policy can be measured and not trained."
        others = ", ".join(name for name in strategies_for("actor_infer") if not STRATEGIES.get(name).answers_text)
        path = "actor_infer.strategy_args.strategy_name"
        yield Problem(path, message, f"use roll eval, or one of {others}.", engine.strategy_name)


def ability_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield what a role asks of its strategy that this does not do."""
    about = worker.strategy_args.about
    if role == "critic" and not about.trains_critics:
        yield Problem("critic.strategy_args.strategy_name", "it trains no critics.", "use another one.", about.name)
    if isinstance(worker, TrainWorkerConfig) and worker.model_args.lora_rank is not None and not about.adapts:
        message = f"{about.name} trains no LoRA adapters."
        yield Problem(f"{role}.model_args.lora_rank", message, "leave it out.", worker.model_args.lora_rank)
    if role.partition(".")[0] not in ("actor_train", "critic", *FROZEN):
        return
    if worker.share_prefixes and not about.shares_prefixes:
        message = f"{about.name} computes every sequence whole."
        yield Problem(f"{role}.share_prefixes", message, "leave it out, or use fsdp_train.", worker.share_prefixes)
    elif worker.packs and not about.packs:
        message = f"{about.name} does not lay sequences end to end."
        yield Problem(f"{role}.use_sequence_packing", message, "set it to false.", worker.use_sequence_packing)


def sampling_problems(config: SamplingConfig) -> Iterator[Problem]:
    """Yield sampling options that the engine of the run does not have."""
    refusals = config.actor_infer.strategy_args.about.refusals
    training, evaluation = config.actor_infer.generating_args, config.val_generating
    problems: dict[tuple[str, object], Problem] = {}
    for section, generating in (("actor_infer.generating_args", training), ("val_generating_args", evaluation)):
        refused = () if refusals is None else named(refusals)(sampling_params(generating))
        found = [(each.key, f"{each.message}.", f"{each.fix}.") for each in refused]
        if "" in (generating.stop_strings or ()):
            found.append(("stop_strings", "an empty text cannot end a response.", "leave it out."))
        if generating.num_beams != 1:
            message = "responses are sampled from the policy, which a search with beams is not."
            found.append(("num_beams", message, "leave it at 1."))
        for key, message, fix in found:
            value = getattr(generating, key)
            # Evaluations take over what training says: once is enough.
            problems.setdefault((key, str(value)), Problem(f"{section}.{key}", message, fix, value))
    yield from problems.values()


def parallel_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield an engine's parallel sizes that do not make the devices that it is given."""
    about, devices = worker.strategy_args.about, worker.num_gpus_per_worker
    if not about.parallel_sizes or not worker.device_mapping:
        return
    given = about.divided(worker.strategy_args.strategy_config, devices)
    sizes = {key: given[key] for key in about.parallel_sizes if given.get(key) is not None}
    if all(isinstance(size, int) for size in sizes.values()) and (parts := about.parts(sizes)) != devices:
        written = " × ".join(f"{key} {size}" for key, size in sizes.items())
        message = f"each engine has {devices} of the devices, but divides its model among {parts} ({written})."
        fix = f"set it to {parts}, or leave the sizes out: the devices of an engine then share its matrices."
        yield Problem(f"{role}.num_gpus_per_worker", message, fix, devices)


def precision_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield number formats in which the strategy of a role cannot compute."""
    about = worker.strategy_args.about
    if worker.model_args.dtype != "fp16":
        return
    if ability_for(role) is Ability.TRAIN:
        message = (
            "training in fp16 needs a loss scale that skips steps, and no strategy here has one: weights become NaN."
        )
    elif not about.takes_fp16:
        message = f"{about.name} computes in fp32 or bf16."
    else:
        return
    fix = "use bf16 (the arithmetic in bf16, weights and optimiser states in fp32), or fp32."
    yield Problem(f"{role}.model_args.dtype", message, fix, "fp16")


def rope_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield rotary waves that the strategy of a role does not know."""
    about, scaling = worker.strategy_args.about, worker.model_args.rope_scaling
    if scaling is not None and scaling.rope_type == "yarn" and about.has_own_layers:
        fix = "use linear or llama3, or train with fsdp_train."
        yield Problem(f"{role}.model_args.rope_scaling.rope_type", f"{about.name} does not know it.", fix, "yarn")


def _gpu_problems(role: str, about: StrategyDescription) -> Iterator[Problem]:
    """Yield what this machine lacks for a strategy of GPUs."""
    path = f"{role}.strategy_args.strategy_name"
    others = " or ".join(name for name in strategies_for(role) if not STRATEGIES.get(name).needs_gpu)
    if not torch.cuda.is_available():
        yield Absent(path, "it needs a CUDA GPU, and this machine has none.", f"use {others} here.", about.name)
    elif about.gpu_package and not is_installed(about.gpu_package):
        message = f"on a GPU it needs the Python package {about.gpu_package}, which is not installed."
        yield Absent(path, message, f"{about.gpu_install}, or use {others}.", about.name)


def template_problems(config: TrainerKeys) -> Iterator[Problem]:
    """Yield a chat template that is no known one, no file, or no valid Jinja."""
    chosen = config.chat_template
    if chosen is None:
        return
    try:
        template_text(chosen)
    except ChatTemplateError as error:
        yield Problem(config.chat_template_key, error.message, error.fix, chosen)


def worker_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield worker classes that cannot be had."""
    for role in plan_placement(config).roles:
        try:
            worker_class(config, role)
        except ImportError as error:
            fix = "leave it out for the project's own, or name a subclass of it that can be imported."
            yield Problem(f"{role}.worker_cls", sentence(error), fix)
