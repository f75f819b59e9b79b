"""The keys of distillation: teachers, and how a student is compared with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from roll.config.algorithm import LOSS_AGGREGATIONS
from roll.config.base import NameList
from roll.config.errors import Problem
from roll.config.sampling_keys import DivergenceKind, SamplingKeys
from roll.config.strategies import STRATEGIES, ability_for, strategies_for
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
    divergence: DivergenceKind | Literal["sampled_reverse_kl"] = Field(
        "reverse_kl",
        description="What is minimised at every token that is learned, with student s, teacher t: "
        "`reverse_kl` KL(s‖t), `forward_kl` KL(t‖s), `jsd` β·KL(t‖m) + (1-β)·KL(s‖m) with m = β·t + (1-β)·s; "
        "`sampled_reverse_kl` estimates KL(s‖t) from the sampled token alone.",
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
    def compares_sampled(self) -> bool:
        """Whether teachers are asked for the log-probs of sampled tokens and nothing else."""
        return self.divergence == "sampled_reverse_kl"

    @property
    def measured_by(self) -> tuple[DivergenceKind, float, float]:
        """The divergence, its mixture, and its own temperature."""
        kind: DivergenceKind = "reverse_kl" if self.divergence == "sampled_reverse_kl" else self.divergence
        return kind, self.divergence_beta, self.kd_temperature

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
            yield from self._engine_problems(role, worker)
        yield from self._sampled_problems()
        owners = Counter(tag for name, teacher in self.teachers.items() for tag in teacher.tags(name))
        for name, teacher in self.teachers.items():
            for tag in teacher.tags(name):
                if owners[tag] > 1:
                    path = f"teachers.{name}.tag_included"
                    yield Problem(path, f"tag {tag!r} has {owners[tag]} teachers.", "leave it to one of them.", tag)

    def _sampled_problems(self) -> Iterator[Problem]:
        """Yield what has no meaning where teachers say nothing but the log-probs of sampled tokens."""
        if not self.compares_sampled:
            return
        if self.teacher_top_k is not None:
            message = "sampled_reverse_kl asks for the sampled token alone, so no others are named."
            yield Problem("teacher_top_k", message, "leave it out, or set divergence: reverse_kl.", self.teacher_top_k)
        if self.kd_temperature != 1.0:
            message = "sampled tokens estimate a divergence at the temperature that they were sampled at only."
            fix = "set it to 1, or divergence: reverse_kl."
            yield Problem("kd_temperature", message, fix, self.kd_temperature)

    def _engine_problems(self, role: str, worker: WorkerConfig) -> Iterator[Problem]:
        """Yield what an engine cannot say as a teacher: log-probs of tokens are all that it has."""
        arguments = worker.strategy_args
        if arguments.strategy_name not in STRATEGIES or not arguments.about.is_engine_for(ability_for(role)):
            return
        name, path = arguments.strategy_name, f"{role}.strategy_args"
        if self.teacher_top_k is None and not self.compares_sampled:
            able = {each: STRATEGIES.get(each) for each in strategies_for(role)}
            scorers = " or ".join(each for each, about in able.items() if about.scorer and not about.trainer)
            message = f"{name} says log-probs of tokens and has no hidden states, which the whole vocabulary takes."
            fix = (
                "set teacher_top_k, such as 64, to compare on its likeliest tokens; or divergence: sampled_reverse_kl, "
                f"on the sampled ones; or use {scorers}."
            )
            yield Problem(f"{path}.strategy_name", message, fix, name)
        if self.compared_temperature != 1.0:
            key = "kd_temperature" if self.kd_temperature != 1.0 else "actor_infer.generating_args.temperature"
            message = f"{name} says log-probs at temperature 1 only, and the student is compared at another one."
            fix = f"set it to 1, or give {role} a strategy that scores at any."
            yield Problem(key, message, fix, self.compared_temperature)
        if arguments.starts_with_random_weights:
            message = "a teacher gets no weights but those that it loads, and these are random."
            yield Problem(f"{path}.strategy_config", message, "leave the option out.", arguments.strategy_config)
        engines = dict(self.roles()).get("actor_infer")
        shared = set(worker.device_mapping or ()) & set((engines and engines.device_mapping) or ())
        if shared:
            message = f"{name} keeps its memory, so the engines of the student cannot have the same devices."
            fix = "give it devices of its own, or a strategy that scores with a trainer's layers."
            yield Problem(f"{role}.device_mapping", message, fix, worker.device_mapping)


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
