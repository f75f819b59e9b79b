"""The keys of distillation: teachers, and how a student is compared with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from roll.config.algorithm import LOSS_AGGREGATIONS
from roll.config.base import NameList
from roll.config.sampling_keys import DivergenceKind, SamplingKeys
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


class DistillKeys(SamplingKeys):
    """The keys of distillation; :class:`roll.config.distill.DistillConfig` adds what they mean together."""

    teacher: WorkerConfig | None = Field(
        None, description="The teacher of everything that none of `teachers` teaches; it has the student's tokenizer."
    )
    teachers: dict[str, TeacherConfig] = Field(
        default_factory=dict, description="Teachers by name, each with tags of its own."
    )
    divergence: DivergenceKind = Field(
        "reverse_kl",
        description="What is minimised at every token that the student sampled, with student s, teacher t: "
        "`reverse_kl` KL(s‖t), `forward_kl` KL(t‖s), `jsd` β·KL(t‖m) + (1-β)·KL(s‖m) with m = β·t + (1-β)·s.",
    )
    divergence_beta: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="The β of `jsd`.")
    teacher_top_k: Positive | None = Field(
        None,
        description="Compare on the teacher's so many likeliest tokens, and on all others together as one. null: on "
        "the whole vocabulary.",
    )
    store_teacher: bool = Field(
        False, description="Write what the teachers said in each step to `output_dir`/teacher; needs `teacher_top_k`."
    )
    teacher_data: NameList = Field(
        default_factory=list,
        description="Files of what a teacher said, to learn from in place of episodes; only evaluations are sampled.",
    )
    loss_agg_mode: LOSS_AGGREGATIONS = Field("token-mean", description="How token losses become one number.")

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
