"""What a run computes on its way from samples to weights, written down stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tensordict import TensorDict
from torch import Tensor

from roll.config import RLConfig
from roll.config.kinds import kind_for, runner
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.rl import RLPipeline
from roll.strategies.base import Loss

ORDER: Final = ("samples", "rewards", "log-probs", "advantages", "loss", "gradient", "weights")
"""The stages of a step, in which what differs first is looked for."""

_LAST: Final = 10**6
"""The optimiser step behind all others."""

_COLUMNS: Final = {
    "samples": ("input_ids", "lengths", "response_mask", "sampler_log_probs"),
    "rewards": ("token_rewards",),
    "log-probs": ("old_log_probs", "ref_log_probs", "divergence", "values"),
    "advantages": ("advantages", "returns", "loss_mask", "sample_weights", "sampler_weights"),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor.

    Attributes:
        step: Of which training step.
        stage: One of :data:`ORDER`.
        name: Of the tensor.
        value: A copy of it.
        update: Of which optimiser step, counted from 1; 0 for what comes before them all.
    """

    step: int
    stage: str
    name: str
    value: npt.NDArray[Any]
    update: int = 0

    @property
    def place(self) -> str:
        """Step, stage and name, for people."""
        return f"step {self.step}, {self.stage}: {self.name}"


@dataclass(slots=True)
class Recording:
    """Everything that one run wrote down."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, step: int, stage: str, name: str, value: Any, *, update: int = 0) -> None:
        """Write a copy of a tensor down."""
        copied = value.detach().cpu().numpy().copy() if isinstance(value, Tensor) else np.array(value)
        self.entries.append(Entry(step, stage, name, copied, update))

    def in_order(self) -> list[Entry]:
        """Return what was written, by step, optimiser step and stage."""
        return sorted(self.entries, key=lambda entry: (entry.step, entry.update, ORDER.index(entry.stage)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first tensor in which two runs differ.

    Attributes:
        place: Step, stage and name.
        stage: The stage.
        how: By how much, as words.
    """

    place: str
    stage: str
    how: str


def first_difference(first: Recording, second: Recording) -> Difference | None:
    """Return the first tensor that differs, ``None`` where all are equal."""
    others = {(entry.step, entry.stage, entry.name): entry for entry in second.entries}
    mine = {(entry.step, entry.stage, entry.name) for entry in first.entries}
    extra = [entry for key, entry in others.items() if key not in mine]
    for entry in Recording([*first.entries, *extra]).in_order():
        key = (entry.step, entry.stage, entry.name)
        if key not in mine or key not in others:
            return Difference(entry.place, entry.stage, "only one of the runs has it")
        how = _how(entry.value, others[key].value)
        if how is not None:
            return Difference(entry.place, entry.stage, how)
    return None


def _how(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> str | None:
    if first.shape != second.shape:
        return f"shapes {list(first.shape)} and {list(second.shape)}"
    if np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
        return None
    count = int((first != second).sum())
    place = np.unravel_index(int(np.argmax(first != second)), first.shape) if first.ndim else ()
    return f"{count} of {first.size} numbers; the first {first[place]:.6g} and {second[place]:.6g}"


def record(config: RLConfig) -> Recording:
    """Run a configuration in this process and return what it computed.

    Raises:
        ConfigError: It asks for what is not there.
        RunError: It cannot go on.
    """
    recording = Recording()
    pipeline: type[RLPipeline[Any]] = runner(kind_for(config).run).__self__  # type: ignore[attr-defined]

    class Recorded(pipeline):  # type: ignore[misc, valid-type]
        """The run, with what passes through its learner written down."""

        async def update(self, batch: TrainingBatch, step: int) -> dict[str, float]:
            recording.add(step, "rewards", "scores", batch.scores)
            trainer, train_step = self.core.trainer, self.core.trainer.train_step
            number = 0

            async def recorded(rows: TensorDict, loss: Loss) -> dict[str, float]:
                nonlocal number
                metrics: dict[str, float] = await train_step(rows, loss)
                number += 1
                recording.add(step, "loss", f"loss of update {number}", metrics["loss"], update=number)
                recording.add(step, "gradient", f"norm of update {number}", metrics["grad_norm"], update=number)
                rate = metrics["learning_rate"]
                recording.add(step, "weights", f"learning rate of update {number}", rate, update=number)
                return metrics

            trainer.train_step = recorded
            try:
                return await super().update(batch, step)
            finally:
                trainer.train_step = train_step
                for stage, name in _names():
                    if name in batch.tensors.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
                        recording.add(step, stage, name, batch.tensors[name])

    Recorded.start(config)
    for folder in sorted(Path(config.checkpoint_path).glob("step=*")):
        for path in sorted((folder / "hf").glob("*.safetensors")):
            for name, value in sorted(load_file(path).items()):
                recording.add(config.max_steps, "weights", name, value, update=_LAST)
    return recording


def _names() -> Iterator[tuple[str, str]]:
    return ((stage, name) for stage, names in _COLUMNS.items() for name in names)
