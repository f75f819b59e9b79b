"""A plan as text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from roll.planning.plan import JobPlan
from roll.planning.stages import DeviceStage
from roll.planning.timing import DECODE_SHARE, TRAINING_SHARE

_GIB = 2**30


def render_plan(plan: JobPlan) -> str:
    """Return the plan as lines: devices by stage and role, times, cost, and what to change where it does not fit."""
    return "\n".join(_lines(plan))


def _lines(plan: JobPlan) -> Iterator[str]:
    for demand in plan.demands:
        yield f"{demand.role:<12} {demand.model}: {demand.shape.numbers / 1e9:.2f} billion numbers"
    yield ""
    for stage in plan.stages:
        yield from _stage(stage, plan)
    yield ""
    for time in plan.times:
        yield f"{time.stage:<24} {time.seconds:8.1f} s  {time.tokens_per_second:10,.0f} tokens/s"
    yield (
        f"A step of {plan.work.samples} sequences ({plan.work.prompt} + {plan.work.response} tokens) takes about "
        f"{plan.seconds_per_step:.0f} s; {plan.steps} steps on {plan.devices} × {plan.gpu.name} are "
        f"{plan.gpu_hours:.1f} GPU hours."
    )
    yield (
        f"Reckoned with {TRAINING_SHARE:.0%} of the arithmetic in training and {DECODE_SHARE:.0%} of the memory's "
        "speed in sampling, stages one after another, without evaluations."
    )
    yield ""
    yield f"It fits on {plan.gpu.name}." if plan.fits else f"It does not fit on {plan.gpu.name}:"
    yield from (f"  {sentence}" for sentence in plan.short)
    for role, advice in plan.advice.items():
        yield f"  To make {role} smaller:"
        for each in advice:
            yield f"    {each.change}  (about {each.saved / _GIB:.1f} GiB less)"


def _stage(stage: DeviceStage, plan: JobPlan) -> Iterator[str]:
    from roll.config.device_mapping import format_device_mapping

    sign = "" if stage.bytes <= plan.gpu.bytes else "  too much"
    devices = format_device_mapping(list(stage.devices))
    yield f"{stage.stage}, devices {devices}: {stage.bytes / _GIB:.1f} of {plan.gpu.gib:.1f} GiB{sign}"
    for share in stage.shares:
        if share.bytes >= _GIB / 100:
            yield f"    {share.role:<12} {share.part:<26} {share.bytes / _GIB:8.2f} GiB"
