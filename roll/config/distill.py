"""The configurations of distillation: on what is played, and on answers to prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from roll.config.answering import AnsweringConfig
from roll.config.errors import Problem
from roll.config.grading_checks import custom_function_problems, graded_problems
from roll.config.playing import PlayingConfig
from roll.config.prompt_checks import prompt_problems
from roll.config.prompt_keys import ANY_TAG, PROMPTS
from roll.config.taught import TaughtConfig


class DistillConfig(TaughtConfig, PlayingConfig):
    """Everything that ``examples/start_distill_pipeline.py`` reads of a student that plays."""

    program = "examples/start_distill_pipeline.py"

    @property
    def sample_mode(self) -> Literal["trajectory", "step"]:
        """What a sample to learn from is."""
        return self.train_env_manager.sample_mode

    @property
    def taught_tags(self) -> set[str]:
        """The tags that training steps sample."""
        sampled = set(self.train_env_manager.tags)
        if self.prompts_per_step:
            sampled |= {tag for tags in self.prompt_tags.values() for tag in tags}
        return sampled

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from super().cautions()
        if "reward_normalization" in self.model_fields_set:
            yield "reward_normalization: has no effect, for nothing is learned from scores."
        if self.actor_train.data_args.file_name and not self.prompts_per_step and not self.teacher_data:
            yield (
                "actor_train.data_args.file_name: has no effect, for the student plays environments only. Set "
                "prompts_per_step for prompts beside them, or pipeline: distill_prompts for prompts alone."
            )

    def stored_problems(self) -> Iterator[Problem]:
        """Yield what has no place beside a file of what teachers said."""
        yield from super().stored_problems()
        if self.prompts_per_step:
            yield Problem("prompts_per_step", "nothing is sampled, for teacher_data is set.", "set it to 0.")


class PromptDistillConfig(TaughtConfig, AnsweringConfig):
    """Everything that it reads of a student that answers prompts (``pipeline: distill_prompts``)."""

    program = "examples/start_distill_pipeline.py"

    @property
    def prompt_tags(self) -> dict[str, list[str]]:
        """The domains that prompts may belong to, with the tags of their rows: without ``rewards``, by teacher."""
        graded = super().prompt_tags
        if graded:
            return graded
        taught = {name: teacher.tags(name) for name, teacher in self.teachers.items()}
        return taught | ({PROMPTS: [ANY_TAG]} if self.teacher is not None or self.teacher_data else {})

    @property
    def taught_tags(self) -> set[str] | None:
        """The tags that training steps sample; ``None`` without ``rewards``, where only the data say which."""
        return {tag for tags in self.prompt_tags.values() for tag in tags} if self.rewards else None

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from prompt_problems(self)
        yield from graded_problems(self)
        yield from custom_function_problems(self)
        if self.validation is not None and not self.rewards:
            fix = "say how, such as rewards: {math_rule: {tag_included: [arithmetic]}}; or remove validation."
            yield Problem("rewards", "nothing says how answers of an evaluation are graded.", fix)
        if self.dynamic_sampling.enable and not self.rewards:
            fix = "set it to false, or add rewards."
            yield Problem("dynamic_sampling.enable", "no answer has a score, so no groups can be chosen.", fix, True)
