"""The keys of distillation: teachers, and how a student is compared with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from roll.config.algorithm import LOSS_AGGREGATIONS
from roll.config.base import NameList
from roll.config.errors import Problem
from roll.config.sampling_keys import DivergenceKind, SamplingKeys
from roll.config.strategies import STRATEGIES, strategies_for
from roll.config.trainer_keys import TrainerKeys
from roll.config.worker import Positive, WorkerConfig


class TeacherConfig(WorkerConfig):
    """A teacher of some environments or prompts."""

    tag_included: NameList = Field(
        default_factory=list,
        description="Tags of the environments or rows that it teaches. Empty: the one that is its name.",
    )

    def tags(self, name: str) -> list[str]:
        """Return the tags that the teacher called ``name`` teaches."""
        return list(self.tag_included) or [name]


class TeacherKeys(TrainerKeys):
    """A teacher, and how a student is compared with it."""

    teacher: WorkerConfig | None = Field(
        None, description="The teacher of everything that none of `teachers` teaches; it has the student's tokenizer."
    )
    teachers: dict[str, TeacherConfig] = Field(
        default_factory=dict, description="Teachers by name, each with tags of its own."
    )
    divergence: DivergenceKind = Field(
        "reverse_kl",
        description="What is minimised at every token that is learned, with student s, teacher t: "
        "`reverse_kl` KL(s‖t), `forward_kl` KL(t‖s), `jsd` β·KL(t‖m) + (1-β)·KL(s‖m) with m = β·t + (1-β)·s.",
    )
    divergence_beta: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="The β of `jsd`.")
    teacher_top_k: Positive | None = Field(
        None,
        description="Compare on the teacher's so many likeliest tokens, and on all others together as one. null: on "
        "the whole vocabulary.",
    )
    kd_temperature: Annotated[float, Field(gt=0)] = Field(
        1.0,
        description="Student and teachers are compared with logits divided by it, beside the temperature of sampling. "
        "The divergence is not multiplied by its square, and likelihoods are of temperature 1.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_empty_teacher(cls, data: Any) -> Any:
        """Leave out a section ``teacher`` that says nothing beside ``teachers``: no model is named there."""
        if isinstance(data, Mapping) and data.get("teachers") and data.get("teacher") == {}:
            return {key: value for key, value in data.items() if key != "teacher"}
        return data

    @property
    def measured_by(self) -> tuple[DivergenceKind, float, float]:
        """The divergence, its mixture, and its own temperature."""
        return self.divergence, self.divergence_beta, self.kd_temperature

    @property
    def compared_temperature(self) -> float:
        """The temperature at which distributions are compared."""
        return self.training_temperature * self.kd_temperature

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the run has."""
        yield from super().roles()
        yield from self.teacher_roles()

    def teacher_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that teach; their order numbers them."""
        if self.teacher is not None:
            yield "teacher", self.teacher
        for name, teacher in self.teachers.items():
            yield f"teachers.{name}", teacher

    def teachers_by_tag(self) -> dict[str, str]:
        """Return the role that teaches each tag for which ``teachers`` has one."""
        return {tag: f"teachers.{name}" for name, teacher in self.teachers.items() for tag in teacher.tags(name)}

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        trainer = self.actor_train.strategy_args.strategy_name
        if trainer in STRATEGIES and not STRATEGIES.get(trainer).distils:
            able = [name for name in strategies_for("actor_train") if STRATEGIES.get(name).distils]
            path = "actor_train.strategy_args.strategy_name"
            yield Problem(path, "it cannot be compared with teachers.", f"use {' or '.join(able)}.", trainer)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from super().cautions()
        if "divergence_beta" in self.model_fields_set and self.divergence != "jsd":
            yield f"divergence_beta: has no effect on {self.divergence}. Set divergence: jsd."

    def teacher_problems(self) -> Iterator[Problem]:
        """Yield why there is nobody to learn from."""
        roles = dict(self.teacher_roles())
        if not roles:
            fix = "add one: teacher: {model_args: {model_name_or_path: <folder or hub id>}}."
            yield Problem("teacher", "nobody teaches.", fix)
        for role, worker in roles.items():
            if worker.model_args.model_name_or_path is None:
                path = f"{role}.model_args.model_name_or_path"
                yield Problem(path, "the teacher is no model.", "name a folder or a hub id.")
        owners = Counter(tag for name, teacher in self.teachers.items() for tag in teacher.tags(name))
        for name, teacher in self.teachers.items():
            for tag in teacher.tags(name):
                if owners[tag] > 1:
                    path = f"teachers.{name}.tag_included"
                    yield Problem(path, f"tag {tag!r} has {owners[tag]} teachers.", "leave it to one of them.", tag)


class DistillKeys(TeacherKeys, SamplingKeys):
    """The keys of distillation on samples; :class:`roll.config.taught.TaughtConfig` adds what they mean together."""

    store_teacher: bool = Field(
        False, description="Write what the teachers said in each step to `output_dir`/teacher; needs `teacher_top_k`."
    )
    teacher_data: NameList = Field(
        default_factory=list,
        description="Files of what a teacher said, to learn from in place of episodes; only evaluations are sampled.",
    )
    loss_agg_mode: LOSS_AGGREGATIONS = Field("token-mean", description="How token losses become one number.")
