"""Batch sizes that do not divide, each reported with sizes that would."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.batch_plan import global_train_batch
from roll.config.errors import Problem
from roll.config.sampling_keys import SamplingKeys


def mini_batch_problems(config: SamplingKeys) -> Iterator[Problem]:
    """Yield what does not fit between the rollout batch and the optimiser steps that share it."""
    batch = config.samples_per_step
    by_role = global_train_batch(config)
    if config.mini_batches is not None:
        if batch % config.mini_batches:
            yield Problem(
                "mini_batches",
                f"{config.samples_in_words()} cannot be cut into {config.mini_batches} equal optimiser steps.",
                f"use mini_batches: {either(divisors_around(batch, config.mini_batches))}.",
                config.mini_batches,
            )
        elif by_role is not None and by_role * config.mini_batches != batch:
            yield _contradicting_steps(config, by_role)
        return
    if by_role is None or by_role >= batch or batch % by_role == 0:
        return
    worker = config.actor_train
    unit = worker.training_args.per_device_train_batch_size * worker.data_parallel_size
    accumulation = worker.training_args.gradient_accumulation_steps or 1
    if batch % unit == 0:
        fits = either(divisors_around(batch // unit, accumulation))
        fix = f"use actor_train.training_args.gradient_accumulation_steps: {fits}"
    else:
        fix = f"use rollout_batch_size: {either(_batches_around(config, by_role))}"
    yield Problem(
        "actor_train.training_args.gradient_accumulation_steps",
        f"{config.samples_in_words()} is not a multiple of the {by_role} trajectories of one optimiser step "
        f"({_product(config)}).",
        f"{fix}, or leave it null and set mini_batches.",
        accumulation,
    )


def oversized_batch_caution(config: SamplingKeys) -> Iterator[str]:
    """Yield a caution where an optimiser step asks for more than a rollout has."""
    by_role = global_train_batch(config)
    if config.mini_batches is None and by_role is not None and by_role > config.samples_per_step:
        yield (
            f"actor_train.training_args.gradient_accumulation_steps: one optimiser step asks for {by_role} "
            f"trajectories ({_product(config)}), but a step has {config.samples_in_words()}. Each rollout is one "
            "optimiser step over all of it; set gradient_accumulation_steps: null to say so."
        )


def divisors_around(number: int, wanted: int) -> list[int]:
    """Return the divisors of ``number`` next to ``wanted``: the largest up to it and the smallest above."""
    divisors = [size for size in range(1, number + 1) if number % size == 0]
    below = [size for size in divisors if size <= wanted][-1:]
    above = [size for size in divisors if size > wanted][:1]
    return below + above


def multiples_around(unit: int, wanted: int) -> list[int]:
    """Return the multiples of ``unit`` next to ``wanted``, without 0."""
    below = wanted // unit * unit
    return [size for size in (below, below + unit) if size > 0]


def _contradicting_steps(config: SamplingKeys, by_role: int) -> Problem:
    worker = config.actor_train
    unit = worker.training_args.per_device_train_batch_size * worker.data_parallel_size
    wanted = config.samples_per_step // (config.mini_batches or 1)
    exact = f" or {wanted // unit}" if wanted % unit == 0 else ""
    steps = f" or {config.samples_per_step // by_role}" if config.samples_per_step % by_role == 0 else ""
    return Problem(
        "mini_batches",
        f"{config.mini_batches} optimiser steps per rollout of {config.samples_per_step} have {wanted} trajectories "
        f"each, but actor_train asks for {by_role} ({_product(config)}).",
        f"set actor_train.training_args.gradient_accumulation_steps: null{exact}, or mini_batches: null{steps}.",
        config.mini_batches,
    )


def _product(config: SamplingKeys) -> str:
    worker = config.actor_train
    training = worker.training_args
    return (
        f"per_device_train_batch_size {training.per_device_train_batch_size} × gradient_accumulation_steps "
        f"{training.gradient_accumulation_steps} × data-parallel width {worker.data_parallel_size}"
    )


def _batches_around(config: SamplingKeys, by_role: int) -> list[int]:
    """Return values of ``rollout_batch_size`` next to its own that whole optimiser steps of ``by_role`` cover."""
    own = config.rollout_batch_size

    def fits(size: int) -> bool:
        return config.model_copy(update={"rollout_batch_size": size}).samples_per_step % by_role == 0

    return [
        *[size for size in range(own, 0, -1) if fits(size)][:1],
        *[size for size in range(own + 1, own + by_role + 1) if fits(size)][:1],
    ]


def either(values: list[int]) -> str:
    """Return the values as a choice, for people."""
    return " or ".join(str(value) for value in values)
