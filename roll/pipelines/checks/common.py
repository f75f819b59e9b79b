"""What every check uses: the import of the user's modules, and errors as sentences."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from roll.config import ConfigError, PipelineConfig, Problem
from roll.config.strategies import ROLE_ABILITY, Ability
from roll.config.worker import WorkerConfig
from roll.distributed import plan_placement
from roll.rendering import ChatTemplateError
from roll.rendering.templates import template_text
from roll.strategies.generation.engine_options import PARALLEL_SIZES, divided, parts_of
from roll.strategies.generation.sampling_limits import refusals
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.tracking.tracker import tracker_arguments
from roll.workers.classes import worker_class
from roll.workers.environment import sampling_params


def module_problems(config: PipelineConfig, keys: Sequence[str]) -> Iterator[Problem]:
    """Import the user's modules named by ``keys``, from the working directory too, as ``python -m`` would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    for key in keys:
        for name in getattr(config, key):
            try:
                importlib.import_module(name)
            except Exception as error:
                fix = f"install the package, or start from the folder that holds it (this one is {here})."
                if not (isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name))):
                    fix = f"correct the module; `python -c 'import {name}'` shows where it fails."
                yield Problem(key, f"cannot import {name}: {type(error).__name__}: {error}.", fix, name)


def tracker_problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield trackers that nothing registers, and options that none of them takes."""
    try:
        tracker_arguments(config.track_with, config.tracker_kwargs)
    except ValueError as error:
        key, _, message = str(error).partition(": ")
        fix = "name one of those, or the module that registers yours in tracker_modules."
        if key != "track_with":
            key, fix = "tracker_kwargs", "remove the option, or set it below the name of its tracker."
        yield Problem(key, sentence(ValueError(message or str(error))), fix)


def strategy_problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield options that the strategy of a role does not have."""
    for role, worker in config.roles():
        arguments = worker.strategy_args
        if arguments.strategy_name.startswith("megatron") and worker.worker_cls is None and _is_without_gpu(config):
            message = "it needs a CUDA GPU, and this machine has none."
            path = f"{role}.strategy_args.strategy_name"
            yield Problem(path, message, "use fsdp_train or deepspeed_train here.", arguments.strategy_name)
        yield from parallel_problems(role, worker)
        yield from precision_problems(role, worker)
        check = _OPTIONS.get(arguments.strategy_name.partition("_")[0])
        if check is None:
            continue
        try:
            check(arguments.strategy_config, f"{role}.strategy_args.strategy_config")
        except ConfigError as error:
            yield from error.problems


def sampling_problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield sampling options that the engine of the run does not have."""
    engine = config.actor_infer.strategy_args.strategy_name
    training, evaluation = config.actor_infer.generating_args, config.val_generating
    problems: dict[tuple[str, object], Problem] = {}
    for section, generating in (("actor_infer.generating_args", training), ("val_generating_args", evaluation)):
        found = [
            (each.key, f"{each.message}.", f"{each.fix}.") for each in refusals(engine, sampling_params(generating))
        ]
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
    engine, devices = worker.strategy_args.strategy_name, worker.num_gpus_per_worker
    if engine not in PARALLEL_SIZES or not worker.device_mapping:
        return
    given = divided(engine, worker.strategy_args.strategy_config, devices)
    sizes = {key: given[key] for key in PARALLEL_SIZES[engine] if given.get(key) is not None}
    if all(isinstance(size, int) for size in sizes.values()) and (parts := parts_of(engine, sizes)) != devices:
        written = " × ".join(f"{key} {size}" for key, size in sizes.items())
        message = f"each engine has {devices} of the devices, but divides its model among {parts} ({written})."
        fix = f"set it to {parts}, or leave the sizes out: the devices of an engine then share its matrices."
        yield Problem(f"{role}.num_gpus_per_worker", message, fix, devices)


def precision_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Yield number formats in which the strategy of a role cannot compute."""
    name = worker.strategy_args.strategy_name
    if worker.model_args.dtype != "fp16":
        return
    if ROLE_ABILITY[role] is Ability.TRAIN:
        message = (
            "training in fp16 needs a loss scale that skips steps, and no strategy here has one: weights become NaN."
        )
    elif name.startswith(("deepspeed", "megatron")):
        message = f"{name} computes in fp32 or bf16."
    else:
        return
    fix = "use bf16 (the arithmetic in bf16, weights and optimiser states in fp32), or fp32."
    yield Problem(f"{role}.model_args.dtype", message, fix, "fp16")


def _is_without_gpu(config: PipelineConfig) -> bool:
    return config.cluster == "local" and not torch.cuda.is_available()


def _deepspeed_options(given: Mapping[str, Any] | None, path: str) -> object:
    from roll.strategies.training.deepspeed.options import DeepSpeedOptions

    return DeepSpeedOptions.from_mapping(given, path)


def _megatron_options(given: Mapping[str, Any] | None, path: str) -> object:
    from roll.strategies.training.megatron.options import MegatronOptions

    return MegatronOptions.from_mapping(given, path)


def _vllm_options(given: Mapping[str, Any] | None, path: str) -> object:
    from roll.strategies.generation.vllm.options import check_options

    return check_options(given, path=path)


def _sglang_options(given: Mapping[str, Any] | None, path: str) -> object:
    from roll.strategies.generation.sglang.options import check_options

    return check_options(given, path=path)


_OPTIONS: Mapping[str, Callable[[Mapping[str, Any] | None, str], object]] = {
    "fsdp": FsdpOptions.from_mapping,
    "deepspeed": _deepspeed_options,
    "megatron": _megatron_options,
    "vllm": _vllm_options,
    "sglang": _sglang_options,
}
"""What checks the ``strategy_config`` of a family of strategies."""


def template_problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield a chat template that is no known one, no file, or no valid Jinja."""
    chosen = config.chat_template
    if chosen is None:
        return
    try:
        template_text(chosen)
    except ChatTemplateError as error:
        yield Problem(config.chat_template_key, error.message, error.fix, chosen)


def worker_problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield worker classes that cannot be had."""
    for role in plan_placement(config).roles:
        try:
            worker_class(config, role)
        except ImportError as error:
            fix = "leave it out for the project's own, or name a subclass of it that can be imported."
            yield Problem(f"{role}.worker_cls", sentence(error), fix)


def sentence(error: BaseException) -> str:
    """Return the message of an error as one sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "?")) else f"{text}."
