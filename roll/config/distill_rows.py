"""The configuration of distillation on the answers of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from roll.config.distill_keys import TeacherKeys
from roll.config.errors import Problem
from roll.config.sft import SFTConfig


class RowDistillKeys(TeacherKeys):
    """The keys of distillation on files beside those of fine-tuning."""

    distill_loss_weight: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="What the divergence weighs; the rest is the negative log-likelihood of the answers, as in "
        "fine-tuning.",
    )
    distill_on_prompt: bool = Field(False, description="Learn what the teacher says of the tokens of prompts too.")


class RowDistillConfig(RowDistillKeys, SFTConfig):
    """Everything that ``examples/start_distill_pipeline.py`` reads of a student that answers nothing itself."""

    program = "examples/start_distill_pipeline.py"

    def identity(self) -> dict[str, Any]:
        """Return the keys that must not change when the run is resumed."""
        keys = (
            *("divergence", "divergence_beta", "kd_temperature", "teacher_top_k"),
            *("distill_loss_weight", "distill_on_prompt"),
        )
        return {**super().identity(), **{key: getattr(self, key) for key in keys}}

    def unread(self) -> Mapping[str, str]:
        """Return the keys of ``data_args`` that nothing reads, and why: with several teachers rows have tags."""
        return {key: why for key, why in super().unread().items() if key != "tag" or not self.teachers}

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from self.teacher_problems()
        if self.compares_sampled:
            message = "the student has not sampled the tokens of files, so they estimate no divergence."
            yield Problem("divergence", message, "set reverse_kl, forward_kl or jsd.", self.divergence)
