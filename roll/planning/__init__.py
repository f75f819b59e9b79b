"""Whether a job fits on its devices, and what it costs, before it starts."""

from roll.planning.devices import GPUS, Gpu
from roll.planning.plan import JobPlan, plan_job
from roll.planning.reading import read_configuration
from roll.planning.report import render_plan
from roll.planning.shapes import ModelShape, shape_of

__all__ = ["GPUS", "Gpu", "JobPlan", "ModelShape", "plan_job", "read_configuration", "render_plan", "shape_of"]
