"""The configuration of a run of several stages: each one a whole configuration of a kind of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, PrivateAttr

from roll.config.base import ConfigModel
from roll.config.errors import Problem, choose_from
from roll.config.run import RunConfig

PREVIOUS: Final = "previous"
PRETRAIN: Final = "pretrain"

OF_THE_WHOLE: Final = ("output_dir", "progress", "resume_from_checkpoint", "pipeline_modules")
"""Keys that a stage has from the whole run, and cannot say itself."""


class StageKeys(ConfigModel):
    """The keys of a stage beside those of its kind of run."""

    start_from: str = Field(
        PREVIOUS,
        description="Whose weights the stage starts from: those of the stage before (`previous`), of an earlier one by "
        "its name, or `pretrain`. The first stage starts from `pretrain`.",
    )
    best_by: str | None = Field(
        None,
        description="Start from the best checkpoint of that stage, not from its newest: the one after whose step this "
        "metric was best (`val/success`; of a loss the least), of those that are kept.",
    )
    optimizer: bool = Field(
        False,
        description="Whether the stage begins with the optimiser of that stage too; schedule and learning rate are its "
        "own.",
    )


class Stage(StageKeys):
    """A stage: where it starts, and all that it does, as a configuration by itself."""

    _config: RunConfig = PrivateAttr()

    @classmethod
    def of(cls, config: RunConfig, **keys: Any) -> Self:
        """Return the stage that ``config`` describes.

        Args:
            config: All keys of the run that it is.
            keys: Those of the stage.
        """
        stage = cls(**keys)
        stage._config = config
        return stage

    @property
    def config(self) -> RunConfig:
        """The run that it is."""
        return self._config

    @property
    def of_the_whole(self) -> tuple[str, ...]:
        """The keys that it has from the whole run."""
        return OF_THE_WHOLE if self.start_from == PRETRAIN else (*OF_THE_WHOLE, PRETRAIN)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a run of several stages amounts to: what each is called, and its kind."""

    stages: tuple[tuple[str, str], ...]

    def describe(self) -> str:
        """Return one line."""
        return f"stages    {' → '.join(name if name == kind else f'{name} ({kind})' for name, kind in self.stages)}"


class StagedConfig(RunConfig):
    """Everything that a run of several stages reads; what else its file says is for the stages."""

    pretrain: str = Field("toy", description="The policy that the first stage starts from.")
    stages: dict[str, Stage] = Field(
        default_factory=dict,
        description="Stages by name, in their order: a mapping, or a list of sections with a `name`. A section has "
        "`pipeline` and any keys of that kind of run, laid over those at the top level.",
    )

    def plan(self) -> StagePlan:
        """Return what the stages are."""
        return StagePlan(tuple((name, str(stage.config.pipeline)) for name, stage in self.stages.items()))

    def inner_runs(self) -> Iterator[tuple[str, RunConfig]]:
        """Yield the run of every stage under the path of its section."""
        for name, stage in self.stages.items():
            yield f"stages.{name}", stage.config

    def origin_of(self, name: str) -> str | None:
        """Return the stage whose weights a stage starts from, ``None`` for ``pretrain``."""
        names = list(self.stages)
        said, position = self.stages[name].start_from, names.index(name)
        if said == PREVIOUS:
            return names[position - 1] if position else None
        return None if said == PRETRAIN else said

    def folder(self, name: str) -> Path:
        """Return where a stage writes."""
        return self.output_dir / name

    def each(self, change: Callable[[RunConfig], RunConfig]) -> Self:
        """Return this run with ``change`` made to every stage."""
        changed = {
            name: Stage.of(stage.config.each(change), **{key: getattr(stage, key) for key in StageKeys.model_fields})
            for name, stage in self.stages.items()
        }
        return self.model_copy(update={"stages": changed}).from_origins(self.origins)

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        if isinstance(self.resume_from_checkpoint, str):
            message = "a run of several stages goes on in the stage in which it was, from the newest checkpoint there."
            yield Problem("resume_from_checkpoint", message, "say true or false.", self.resume_from_checkpoint)
        for position, (name, stage) in enumerate(self.stages.items()):
            earlier = [PREVIOUS, PRETRAIN, *list(self.stages)[:position]]
            if stage.start_from not in earlier:
                path = f"stages.{name}.start_from"
                yield Problem(
                    path, "no earlier stage has this name.", choose_from(stage.start_from, earlier), stage.start_from
                )
