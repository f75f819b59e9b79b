"""What the keys of distillation mean together, whatever the student samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from roll.config.distill_keys import DistillKeys
from roll.config.errors import Problem
from roll.config.sampling import SamplingConfig


class TaughtConfig(DistillKeys, SamplingConfig):
    """Base of every run whose policy learns what teachers say."""

    @property
    def sample_mode(self) -> Literal["trajectory", "step"]:
        """What a sample to learn from is."""
        return "trajectory"

    @property
    def taught_tags(self) -> set[str] | None:
        """The tags that training steps sample; ``None`` where only the data say which."""
        return None

    @property
    def measured_from(self) -> tuple[str, ...]:
        """The teachers, where the whole vocabulary is compared."""
        return () if self.measures_top_k or self.compares_sampled else tuple(role for role, _ in self.teacher_roles())

    @property
    def measures_top_k(self) -> bool:
        """Whether the likeliest tokens of the teachers are compared."""
        return self.teacher_top_k is not None or bool(self.teacher_data)

    def text_readers(self) -> Iterator[tuple[str | None, str]]:
        """Yield what of the run reads text alone: teachers."""
        yield from super().text_readers()
        yield None, "a teacher reads text alone"

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        if self.teacher_data:
            yield from self.stored_problems()
        else:
            yield from self.teacher_problems()
            yield from self._tag_problems()
        if self.store_teacher and self.teacher_top_k is None:
            yield Problem("store_teacher", "states are not stored.", "set teacher_top_k, such as 32.", True)
        if self.store_teacher and self.kd_temperature != 1.0:
            fix = "set kd_temperature to 1, or do not store it."
            yield Problem("store_teacher", "what is stored must be what a teacher says by itself.", fix, True)

    def stored_problems(self) -> Iterator[Problem]:
        """Yield what has no place beside a file of what teachers said."""
        for role, _ in self.teacher_roles():
            fix = f"remove {role}, or teacher_data."
            yield Problem(role, "teacher_data has already what a teacher said, so nobody is asked.", fix)
        if self.kd_temperature != 1.0:
            message = "teacher_data says what a teacher said, and not what it would have said at another temperature."
            yield Problem("kd_temperature", message, "set it to 1.", self.kd_temperature)
        if self.compares_sampled:
            fix = "set reverse_kl, forward_kl or jsd."
            yield Problem("divergence", "no tokens are sampled, for teacher_data is set.", fix, self.divergence)
        for key in ("teacher_top_k", "store_teacher"):
            if getattr(self, key):
                fix = f"remove {key}."
                yield Problem(key, "teacher_data says how many tokens are named.", fix, getattr(self, key))
        if self.async_generation_ratio:
            yield Problem("async_generation_ratio", "nothing is sampled, for teacher_data is set.", "set it to 0.")

    def _tag_problems(self) -> Iterator[Problem]:
        sampled = self.taught_tags
        for name, teacher in self.teachers.items():
            path = f"teachers.{name}.tag_included"
            for tag in teacher.tags(name):
                if sampled is not None and tag not in sampled:
                    fix = f"name some of {', '.join(sorted(sampled))}."
                    yield Problem(path, f"no training step samples tag {tag!r}.", fix, tag)
        untaught = sorted((sampled or set()) - self.teachers_by_tag().keys())
        if self.teacher is None and self.teachers and untaught:
            fix = "add a teacher: section for all that is left, or tags to one of teachers."
            yield Problem("teachers", f"nobody teaches {', '.join(untaught)}.", fix)
