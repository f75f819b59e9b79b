"""The configuration of distillation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from roll.config.distill_keys import DistillKeys
from roll.config.errors import Problem
from roll.config.playing import PlayingConfig
from roll.config.sampling_keys import DivergenceKind
from roll.config.strategies import STRATEGIES, strategies_for


class DistillConfig(DistillKeys, PlayingConfig):
    """Everything that ``examples/start_distill_pipeline.py`` reads."""

    program = "examples/start_distill_pipeline.py"

    @property
    def measured_from(self) -> tuple[str, ...]:
        """The teachers, where the whole vocabulary is compared."""
        return () if self.measures_top_k else tuple(role for role, _ in self.teacher_roles())

    @property
    def measures_top_k(self) -> bool:
        """Whether the likeliest tokens of the teachers are compared."""
        return self.teacher_top_k is not None or bool(self.teacher_data)

    @property
    def measured_by(self) -> tuple[DivergenceKind, float]:
        """The divergence, and its mixture."""
        return self.divergence, self.divergence_beta

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        if self.teacher_data:
            yield from self._stored_problems()
        else:
            yield from self._teacher_problems()
            yield from self._tag_problems()
        if self.store_teacher and self.teacher_top_k is None:
            yield Problem("store_teacher", "states are not stored.", "set teacher_top_k, such as 32.", True)
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
        if "reward_normalization" in self.model_fields_set:
            yield "reward_normalization: has no effect, for nothing is learned from scores."

    def _teacher_problems(self) -> Iterator[Problem]:
        roles = dict(self.teacher_roles())
        if not roles:
            fix = "add one: teacher: {model_args: {model_name_or_path: <folder or hub id>}}."
            yield Problem("teacher", "nobody teaches.", fix)
        for role, worker in roles.items():
            if worker.model_args.model_name_or_path is None:
                path = f"{role}.model_args.model_name_or_path"
                yield Problem(path, "the teacher is no model.", "name a folder or a hub id.")

    def _stored_problems(self) -> Iterator[Problem]:
        """Yield what has no place beside a file of what teachers said."""
        for role, _ in self.teacher_roles():
            fix = f"remove {role}, or teacher_data."
            yield Problem(role, "teacher_data has already what a teacher said, so nobody is asked.", fix)
        for key in ("teacher_top_k", "store_teacher"):
            if getattr(self, key):
                fix = f"remove {key}."
                yield Problem(key, "teacher_data says how many tokens are named.", fix, getattr(self, key))
        if self.prompts_per_step:
            yield Problem("prompts_per_step", "nothing is sampled, for teacher_data is set.", "set it to 0.")
        if self.async_generation_ratio:
            yield Problem("async_generation_ratio", "nothing is sampled, for teacher_data is set.", "set it to 0.")

    def _tag_problems(self) -> Iterator[Problem]:
        owners = Counter(tag for name, teacher in self.teachers.items() for tag in teacher.tags(name))
        sampled = set(self.train_env_manager.tags)
        if self.prompts_per_step:
            sampled |= {tag for tags in self.prompt_tags.values() for tag in tags}
        for name, teacher in self.teachers.items():
            path = f"teachers.{name}.tag_included"
            for tag in teacher.tags(name):
                if owners[tag] > 1:
                    yield Problem(path, f"tag {tag!r} has {owners[tag]} teachers.", "leave it to one of them.", tag)
                if tag not in sampled:
                    fix = f"name some of {', '.join(sorted(sampled))}."
                    yield Problem(path, f"no training step samples tag {tag!r}.", fix, tag)
        untaught = sorted(sampled - owners.keys())
        if self.teacher is None and self.teachers and untaught:
            fix = "add a teacher: section for all that is left, or tags to one of teachers."
            yield Problem("teachers", f"nobody teaches {', '.join(untaught)}.", fix)
