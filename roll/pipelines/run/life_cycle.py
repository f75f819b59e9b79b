"""The life cycle of a run, whatever its steps do: resume, recover, evaluate and save when due, report, end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from roll.common.registry import names_of_configurations_end
from roll.config import RunConfig, RunError
from roll.config.process import settle_collector
from roll.distributed import Cluster, WorkerError, open_cluster
from roll.pipelines.run.checkpoint import CONTENTS, new_checkpoint
from roll.pipelines.run.checks import check_run
from roll.pipelines.run.command import resume_command, shown
from roll.pipelines.run.folders import folders, make_room, own_folders
from roll.pipelines.run.interrupts import runner, stopped_by_sigterm, stopped_by_somebody, to_its_end
from roll.pipelines.run.log import RunLog, summarize
from roll.pipelines.run.process import settle_process
from roll.pipelines.run.profiling import profiled
from roll.pipelines.run.record import RunRecord
from roll.pipelines.run.resuming import Resumed, find_resumed
from roll.pipelines.run.storage import StorageError, refusals_end_the_run
from roll.pipelines.run.terminal import introduce, one_line, quiet_transformers, say, say_differences
from roll.runs.layout import folder_of
from roll.runs.outcome import forget_outcome, outcome_recorded
from roll.tracking import Progress, RunSummary, make_progress

TIMELINE = "timeline.json"

Config = TypeVar("Config", bound=RunConfig)


class Run(ABC, Generic[Config]):
    """One run: its steps from the first or the newest checkpoint to the last, and what is due in between.

    A kind of run says what its parts are (:meth:`assemble`), what a step does (:meth:`step`) and what a checkpoint
    needs (:meth:`state`, :meth:`save_state`, :meth:`restore`). All other methods have a meaning without them.
    :meth:`start` runs it.

    Args:
        config: A checked configuration.
        progress: Where to show what happens.

    Attributes:
        log: Metrics go there; open from before the first step.
        recoveries: Recoveries since the last checkpoint.
        saved: The newest checkpoint.
        unsaved: The complete step that no checkpoint has yet; ``None`` also while a change is under way.
    """

    recovers_from: ClassVar[tuple[type[Exception], ...]] = (WorkerError,)
    """Losses after which the run goes on by itself from the newest checkpoint."""
    fails_with: ClassVar[tuple[type[Exception], ...]] = (WorkerError, FloatingPointError)
    """Errors whose message tells a person why the run cannot go on."""

    log: RunLog
    record: RunRecord

    @classmethod
    def check(cls, config: Config) -> list[str]:
        """Check what loading cannot, and import what registers names; return what has no effect, as sentences.

        Raises:
            ConfigError: Lists every problem.
        """
        return check_run(config)

    @classmethod
    @names_of_configurations_end()
    def start(cls, config: Config) -> RunSummary:
        """Run to the end and return what came of it.

        Raises:
            ConfigError: If the configuration asks for what is not there (a model, a tag, a file, a checkpoint), or
                another run writes to its folders. Nothing has been written.
            RunError: If the run cannot go on (every episode fails, a gradient is not finite, a disk is full).
            KeyboardInterrupt: After Ctrl-C or SIGTERM. Of either, the last completed step is saved, and the message
                says how to continue.
        """
        notes = cls.check(config)
        with own_folders(config) as more, quiet_transformers(), make_progress(config.progress) as progress:
            introduce(config, [*notes, *more, *settle_process(config.system_envs)])
            run = cls(config, progress)
            recorded = outcome_recorded(config.output_dir, lambda: run._begun)
            try:
                with recorded, refusals_end_the_run(folders(config), run.how_to_continue):
                    return runner()(run.run())
            except (KeyboardInterrupt, asyncio.CancelledError):
                raise KeyboardInterrupt(f"Stopped. {run.how_to_continue()}") from None
            except cls.fails_with as error:
                raise RunError(f"{error}\n{run.how_to_continue()}") from error

    def __init__(self, config: Config, progress: Progress) -> None:
        self.config = config
        self.progress = progress
        self.saved: Path | None = None
        self.unsaved: int | None = None
        self.recoveries = 0
        self._resume_from: bool | str = config.resume_from_checkpoint
        self._begun = False
        self._not_saved: str | None = None

    @abstractmethod
    async def assemble(self, cluster: Cluster) -> None:
        """Start the parts."""

    @abstractmethod
    async def step(self, step: int) -> None:
        """Do step ``step``, which ends with ``self.log.step``. What changes weights does so in :meth:`changing`."""

    @abstractmethod
    async def save_state(self, folder: Path) -> None:
        """Write into the folder of a new checkpoint what was learned."""

    @abstractmethod
    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Load what :meth:`save_state` wrote and :meth:`state` returned."""

    def state(self) -> dict[str, Any]:
        """Return what else a checkpoint must remember, as JSON."""
        return {}

    async def ready(self, first: int, resumed: bool) -> None:
        """Get ready for the steps after ``first``; all state is there, restored where ``resumed``."""

    async def evaluate(self, step: int) -> None:
        """Evaluate after ``step`` steps; ends with ``self.log.evaluation``."""

    def evaluates(self, step: int) -> bool:
        """Whether there is an evaluation after ``step``; before the first step there may be none."""
        due = is_due(step, self.config.eval_steps, self.config.max_steps)
        return due and (step > 0 or self.config.eval_at_start)

    def saves(self, step: int) -> bool:
        """Whether there is a checkpoint after ``step``; after the last one there always is."""
        return is_due(step, self.config.save_steps, self.config.max_steps)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Surround all steps with what goes on beside them."""
        yield

    def headline(self) -> str:
        """Return what the run is about, in a few words."""
        return ""

    def how_to_review(self) -> str:
        """Return the command that opens the review of the run while it works, where it stores what to review."""
        return ""

    def remarks(self) -> Iterator[str]:
        """Yield what a person should know before the first step, as sentences."""
        return iter(())

    def summary(self, steps: int) -> RunSummary:
        """Return what is shown at the end of a run of ``steps`` steps."""
        return summarize(self.config, self.log, steps, self.saved)

    async def run(self) -> RunSummary:
        """Take ``max_steps`` steps; after the loss of a worker that it needs, go on from the newest checkpoint.

        Raises:
            RuntimeError: A part gave itself up, though nobody stopped the run.
        """
        with stopped_by_sigterm():
            while True:
                try:
                    async with open_cluster(self.config) as cluster:
                        with cluster.watch.telling(self._alarm_of_workers(asyncio.get_running_loop())):
                            return await self._sit(cluster)
                except self.recovers_from as error:
                    if self.recoveries >= self.config.max_recoveries:
                        raise
                    self.recoveries += 1
                    self._resume_from = self._newest()
                    where = f"from {shown(self.saved)}" if self.saved is not None else "from the start"
                    self.progress.warning(f"{one_line(error)} The run goes on {where}.")
                except asyncio.CancelledError as error:
                    if stopped_by_somebody():
                        raise
                    raise RuntimeError("A part of the run was given up, though nobody stopped the run.") from error

    async def _sit(self, cluster: Cluster) -> RunSummary:
        """Run from the checkpoint to continue from, if any, to the end, with what is due in between."""
        resumed = find_resumed(self.config, self._resume_from)
        first = 0 if resumed is None else resumed.step
        self.saved, self.unsaved = None if resumed is None else resumed.path, None
        await self.assemble(cluster)
        config = self.config  # only now: how many steps there are may depend on what was read
        self._begin(resumed, first)
        restore_collector = settle_collector()
        try:
            async with self.working():
                if resumed is not None:
                    await self.restore(resumed.path, resumed.state)
                await self.ready(first, resumed is not None)
                if self.evaluates(first) and self.log.evaluated < first:
                    await self.evaluate(first)
                for step in range(first + 1, config.max_steps + 1):
                    async with profiled(config.profile, step, cluster.groups, config.output_dir):
                        await self.step(step)
                    if self.evaluates(step):
                        await self.evaluate(step)
                    if self.saves(step) or step == config.max_steps:
                        await to_its_end(asyncio.create_task(self.save(step)))
            summary = self.summary(max(first, config.max_steps))
            self.progress.finish(summary)
            return summary
        except (asyncio.CancelledError, Exception) as error:
            # Ctrl-C arrives between changes, which run to their end, so a completed step can be saved.
            if self.unsaved is not None:
                await self._save_at_the_end(self.unsaved, error)
            raise
        finally:
            restore_collector()
            self.log.close()
            if config.enable_ray_timeline:
                cluster.write_timeline(config.output_dir / TIMELINE)

    def _alarm_of_workers(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        """Return what says that a worker may hang, from any thread: on the display at once.

        Trackers are told by the thread of the run, since they need not take calls of another: with ``cluster: local``
        that is when the call is over.
        """

        def tell(words: str) -> None:
            self.progress.alarm(words)
            loop.call_soon_threadsafe(note, words)

        def note(words: str) -> None:
            if hasattr(self, "log"):  # else no step has begun
                self.log.note(words)

        return tell

    @contextmanager
    def changing(self, step: int) -> Iterator[None]:
        """Mark a change of what is learned: inside nothing can be saved, and afterwards ``step`` is complete."""
        self.unsaved = None
        yield
        self.unsaved = step

    async def save(self, step: int) -> None:
        """Write a checkpoint from which the run continues exactly."""
        config = self.config
        self.unsaved = None
        with self.progress.stage("checkpoint"):
            contents = config.checkpoint_config.contents
            state = {**config.identity(), **self.log.state(), **self.state(), CONTENTS: contents}
            root, keep = config.checkpoint_path, config.checkpoint_config.keep
            with new_checkpoint(root, step, state, keep=keep) as folder:
                self.record.write(folder)
                await self.save_state(folder)
        self.saved, self.recoveries = folder_of(root, step), 0

    def how_to_continue(self) -> str:
        """Return a sentence that says what is saved and the command that goes on from there."""
        lost = f"{self._not_saved}\n" if self._not_saved else ""
        if self.saved is None:
            return f"{lost}No step was saved, so there is nothing to continue from."
        command = resume_command(self.config)
        how = f"Continue with:\n  {command}" if command else "Continue with resume_from_checkpoint=true."
        return f"{lost}The newest checkpoint is {shown(self.saved)}. {how}"

    def _begin(self, resumed: Resumed | None, first: int) -> None:
        """Open the logs and the display; what an earlier run left in the folders is moved aside."""
        config = self.config
        if not self._begun:
            self._begun = True
            if config.resume_from_checkpoint and resumed is None:
                say(config, f"No checkpoint in {config.checkpoint_path} to resume from: starting anew.")
            if 0 < config.max_steps <= first:
                say(config, f"{self.saved} is complete: set max_steps above {first} to train on.")
            for remark in self.remarks():
                say(config, remark)
            aside = make_room(config, self.saved)
            if aside is not None:
                say(config, f"An earlier run was there: it is in {shown(aside)} now.")
            self.record = RunRecord.of(config, self.saved)
            self.record.write(config.output_dir)
            forget_outcome(config.output_dir)
            say_differences(config, self.record)
            self.progress.start(
                config.max_steps, config.exp_name, self.headline(), first_step=first, review=self.how_to_review()
            )
        self.log = RunLog(config, self.progress, None if resumed is None else resumed.state)
        self.log.trackers.log_config(self.record.keys, self.record.text)
        for note in () if resumed is None else resumed.notes:
            self.progress.warning(note)

    def _newest(self) -> bool | str:
        """Return the checkpoint to recover from: the newest whole one of this run, or the one that it began with."""
        if not self._begun:
            return self._resume_from
        if self.saved is None:
            return False
        return True if self.saved.parent == self.config.checkpoint_path else str(self.saved)

    async def _save_at_the_end(self, step: int, error: BaseException) -> None:
        """Save the last completed step of a run that ends; where workers or room are gone too, say so."""
        try:
            await to_its_end(asyncio.create_task(self.save(step)))
        except (WorkerError, StorageError) as second:
            self._not_saved = f"Step {step} could not be saved: {second}"
            error.add_note(self._not_saved)


def is_due(step: int, every: int, last: int) -> bool:
    """Whether something that happens every ``every`` steps (0: never) and at the end happens after ``step``."""
    return every > 0 and (step % every == 0 or step == last)
