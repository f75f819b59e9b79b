"""Will a job fit, and what will it cost: the plan of a configuration on one kind of accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from roll.config import RunConfig
from roll.planning.advice import Advice, advice_for
from roll.planning.devices import Gpu
from roll.planning.roles import RoleDemand, role_demands
from roll.planning.shapes import ModelShape
from roll.planning.stages import DeviceStage, device_stages
from roll.planning.timing import StageTime, Work, stage_times


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What a job asks of its devices.

    Attributes:
        gpu: The accelerator.
        demands: Its roles.
        stages: What lies on the devices.
        work: What a step computes.
        times: How long the stages of a step take.
        steps: Steps of the run.
        short: Why it does not fit, as sentences; none: it fits.
        advice: What would make it smaller, by role.
    """

    gpu: Gpu
    demands: Sequence[RoleDemand]
    stages: Sequence[DeviceStage]
    work: Work
    times: Sequence[StageTime]
    steps: int
    short: Sequence[str]
    advice: dict[str, list[Advice]]

    @property
    def fits(self) -> bool:
        """Whether every device has room in every stage."""
        return not self.short

    @property
    def devices(self) -> int:
        """Devices of the job."""
        return len({number for demand in self.demands for number in demand.devices})

    @property
    def seconds_per_step(self) -> float:
        """Seconds of a step whose stages follow each other."""
        return sum(time.seconds for time in self.times)

    @property
    def gpu_hours(self) -> float:
        """Device hours of the run, evaluations and starts aside."""
        return self.steps * self.seconds_per_step * self.devices / 3600

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values, bytes as whole numbers."""
        return {
            "fits": self.fits,
            "gpu": asdict(self.gpu),
            "devices": self.devices,
            "stages": [{**asdict(stage), "bytes": stage.bytes} for stage in self.stages],
            "roles": [
                {"role": demand.role, "model": demand.model, "numbers": demand.shape.numbers} for demand in self.demands
            ],
            "times": [asdict(time) for time in self.times],
            "seconds_per_step": self.seconds_per_step,
            "steps": self.steps,
            "gpu_hours": self.gpu_hours,
            "short": list(self.short),
            "advice": {role: [asdict(each) for each in found] for role, found in self.advice.items()},
        }


def plan_job(
    config: RunConfig,
    gpu: Gpu,
    *,
    shapes: dict[str, ModelShape] | None = None,
    response_tokens: int | None = None,
) -> JobPlan:
    """Return the plan of a job. Pure arithmetic: loads and downloads nothing.

    Args:
        config: A checked configuration.
        gpu: The accelerator of every device.
        shapes: Sizes of models by name, for those that nobody here knows.
        response_tokens: Tokens of a response on average; ``None`` takes half of the most that it may have.

    Raises:
        ConfigError: It has no model to plan for, or one whose sizes are not known.
    """
    demands = role_demands(config, shapes)
    bucket = int(getattr(getattr(config, "weight_sync", None), "bucket_mib", 0)) * 2**20
    stages = device_stages(demands, gpu.bytes, bucket)
    work = _work(config, response_tokens)
    full = [stage for stage in stages if stage.bytes > gpu.bytes]
    short = [
        f"In the {stage.stage}, devices {_ids(stage.devices)} need {stage.bytes / 2**30:.1f} GiB of {gpu.gib:.1f}."
        for stage in full
    ]
    heavy = {max(stage.shares, key=lambda share: share.bytes).role for stage in full}
    for demand in demands:
        engine = demand.engine
        if engine is not None and engine.cache(gpu.bytes) < engine.longest:
            short.append(f"{demand.role} has no room for one sequence of {engine.length} tokens beside its weights.")
            heavy.add(demand.role)
    advice = {demand.role: advice_for(demand, gpu.bytes) for demand in demands if demand.role in heavy}
    return JobPlan(gpu, demands, stages, work, stage_times(demands, work, gpu), config.max_steps, short, advice)


def _work(config: RunConfig, response_tokens: int | None) -> Work:
    longest = int(getattr(config, "sequence_length", 0) or 2048)
    most = int(getattr(config, "response_limit", 0) or longest // 2)
    response = response_tokens or max(1, most // 2)
    prompt = int(getattr(config, "prompt_length", 0) or max(1, longest - most))
    samples = getattr(config, "samples_per_step", None)
    if samples is None:
        worker = config.policy
        assert worker is not None
        arguments = worker.training_args
        accumulation = arguments.gradient_accumulation_steps or 1
        samples = arguments.per_device_train_batch_size * accumulation * worker.data_parallel_size
    return Work(int(samples), prompt, response, int(getattr(config, "epochs_per_rollout", 1)))


def _ids(devices: Sequence[int]) -> str:
    from roll.config.device_mapping import format_device_mapping

    return format_device_mapping(list(devices))
