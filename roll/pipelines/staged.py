"""A run of several stages: each a run of its own kind that starts from the weights of another, one after another."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.common.registry import names_of_configurations_end
from roll.config import ConfigError, Problem, RunConfig, RunError
from roll.config.kinds import PIPELINES, STAGES, runner
from roll.config.staged import StagedConfig
from roll.config.written import differences, to_mapping
from roll.pipelines.checks.stages import check_stages
from roll.pipelines.run.command import resume_command, shown
from roll.pipelines.run.folders import folders, make_room, move_aside, own_folders
from roll.pipelines.run.record import RunRecord
from roll.pipelines.run.storage import refusals_end_the_run
from roll.pipelines.run.terminal import introduce, say
from roll.runs.layout import CHECKPOINT_STATE, EVALUATION, list_checkpoints
from roll.runs.outcome import State, forget_outcome, outcome_recorded, read_outcome
from roll.runs.stored import StoredRun
from roll.tracking import RunSummary
from roll.tracking.local import METRICS_FILE
from roll.workers.train import HF


@dataclass(frozen=True, slots=True)
class Reached:
    """What a stage came to.

    Attributes:
        name: Its name.
        steps: Training steps.
        before: Figures of its first evaluation.
        after: Of its last one.
        seconds: How long it took, earlier sittings included.
    """

    name: str
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    seconds: float


@names_of_configurations_end()
def run_stages(config: StagedConfig) -> RunSummary:
    """Run every stage that is not complete, and return what came of all of them.

    Raises:
        ConfigError: If a stage asks for what is not there, or a complete one was run with other settings. Nothing has
            been written.
        RunError: If a stage cannot go on.
        KeyboardInterrupt: After Ctrl-C or SIGTERM; the stage's last completed step is saved.
    """
    notes = check_stages(config)
    run = _StagedRun(config)
    with own_folders(config) as more:
        done = run.begin()
        introduce(config, [*notes, *more])
        with outcome_recorded(config.output_dir, lambda: True), refusals_end_the_run(folders(config), str):
            try:
                return run.finish(done)
            except KeyboardInterrupt as stopped:
                raise KeyboardInterrupt(str(stopped) or f"Stopped. {run.how_to_continue()}") from None


class _StagedRun:
    def __init__(self, config: StagedConfig) -> None:
        self._config = config
        self._names = list(config.stages)

    def begin(self) -> int:
        """Make room, or find out which stages are complete; return how many.

        Raises:
            ConfigError: A complete stage was run with other settings.
        """
        config = self._config
        folders_of_stages = [config.folder(name) for name in self._names]
        if config.resume_from_checkpoint:
            done = self._complete()
            later = [folder for folder in folders_of_stages[done + 1 :] if folder.exists()]
            aside = move_aside(later, config.output_dir)  # made from weights that there are no more
        else:
            done, aside = 0, make_room(config, None, also=folders_of_stages)
        if aside is not None:
            say(config, f"What an earlier run left is in {shown(aside)} now.")
        RunRecord.of(config).write(config.output_dir)
        forget_outcome(config.output_dir)
        return done

    def finish(self, done: int) -> RunSummary:
        """Run the stages behind the first ``done``."""
        config, begun = self._config, time.monotonic()
        for position, name in enumerate(self._names):
            if position < done:
                say(config, f"Stage {position + 1} of {len(self._names)}, {name}, is complete.")
                continue
            stage = self._stage(name)
            origin = config.origin_of(name)
            start = f", from the weights of {origin}" if origin is not None else ""
            say(config, f"\nStage {position + 1} of {len(self._names)}: {name} ({stage.pipeline}{start})")
            runner(PIPELINES.get(str(stage.pipeline)).run)(stage)
            gc.collect()  # a model of one stage must not lie beside that of the next
            self._write_story(position + 1)
        reached = list(self._reached(len(self._names)))
        for each in reached:
            say(config, f"  {_line(each)}")
        return RunSummary(
            title=config.exp_name,
            steps=sum(each.steps for each in reached),
            seconds=time.monotonic() - begun,
            before=next((each.before for each in reached if each.before), {}),
            after=next((each.after for each in reversed(reached) if each.after), {}),
        )

    def how_to_continue(self) -> str:
        """Return a sentence with the command that goes on."""
        command = resume_command(self._config)
        return f"Continue with:\n  {command}" if command else "Continue with resume_from_checkpoint=true."

    def _complete(self) -> int:
        """Return how many stages, from the first on, need not be run again.

        Raises:
            ConfigError: One of them was run with other settings.
        """
        for position, name in enumerate(self._names):
            outcome = read_outcome(self._config.folder(name))
            if outcome is None or outcome.state is not State.FINISHED:
                return position
            self._require_same(name)
        return len(self._names)

    def _require_same(self, name: str) -> None:
        stage = self._stage(name)
        before = StoredRun.open(stage.output_dir).config
        changed = differences(_placeless(before), _placeless(to_mapping(stage)))
        if changed:
            message = f"the stage is complete, and was run with other settings: {'; '.join(changed)}."
            fix = "set them back; or start all stages anew with resume_from_checkpoint=false."
            raise ConfigError([Problem(f"{STAGES}.{name}", message, fix)])

    def _stage(self, name: str) -> RunConfig:
        """Return what a stage runs, now that the stages before it are complete."""
        config, whole = self._config.stages[name].config, self._config
        changes: dict[str, Any] = {
            "progress": whole.progress,
            "resume_from_checkpoint": bool(whole.resume_from_checkpoint),
        }
        policy = self._policy(whole.origin_of(name), whole.stages[name].best_by)
        if policy is not None:
            changes["pretrain"] = str(policy.absolute())
            if whole.stages[name].optimizer:
                changes["optimizer_from"] = policy.absolute().parent
        return config.model_copy(update=changes).from_origins(config.origins)

    def _policy(self, name: str | None, best_by: str | None) -> Path | None:
        """Return the weights of a stage: its newest or its best, or if it trains nothing those that it began with.

        Raises:
            RunError: No checkpoint was evaluated by that metric.
        """
        while name is not None:
            config = self._config.stages[name].config
            checkpoints = {step: path / HF for step, path in list_checkpoints(config.checkpoint_path)}
            if checkpoints and checkpoints[max(checkpoints)].is_dir():
                return checkpoints[max(checkpoints) if best_by is None else _best(config, best_by, checkpoints)]
            name = self._config.origin_of(name)
        return None

    def _reached(self, complete: int) -> Iterator[Reached]:
        for name in self._names[:complete]:
            config = self._config.stages[name].config
            checkpoints, alone = list_checkpoints(config.checkpoint_path), config.output_dir / EVALUATION
            if checkpoints:
                state = json.loads((checkpoints[-1][1] / CHECKPOINT_STATE).read_text(encoding="utf-8"))
                figures = (state.get("before", {}), state.get("after", {}), float(state.get("elapsed", 0.0)))
                yield Reached(name, checkpoints[-1][0], *figures)
            elif alone.is_file():
                found = {f"val/{key}": value for key, value in json.loads(alone.read_text(encoding="utf-8")).items()}
                yield Reached(name, 0, found, found, 0.0)

    def _write_story(self, complete: int) -> None:
        """Write what each stage came to as the metrics of the whole run, a step for each stage."""
        reached = list(self._reached(complete))
        rows = [{"step": 0, **reached[0].before}] if reached and reached[0].before else []
        for each in reached:
            rows.append({"step": self._names.index(each.name) + 1, **each.after, "time/stage": each.seconds})
        path = self._config.logs_path / METRICS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        os.replace(partial, path)


def _best(config: RunConfig, metric: str, checkpoints: Mapping[int, Path]) -> int:
    """Return the step of the best of the checkpoints of a run.

    Raises:
        RunError: None was evaluated by that metric.
    """
    run = StoredRun.open(config.output_dir)
    best = run.curve(metric).only(checkpoints).best if metric in run.metric_names else None
    if best is None:
        kept = ", ".join(map(str, sorted(checkpoints)))
        raise RunError(
            f"best_by: {config.output_dir} has no {metric} after the steps of its checkpoints ({kept}). Let eval_steps "
            "and save_steps be the same, or remove best_by."
        )
    return best[0]


def _placeless(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a stage as JSON has them, but for the folder of the whole run, however it was spelled."""
    whole = json.dumps(str(Path(str(keys["output_dir"])).parent))[1:-1]
    text = json.dumps(dict(keys), default=str)
    found: dict[str, Any] = json.loads(text.replace(f'"{whole}/', '"…/'))
    return found


def _line(reached: Reached) -> str:
    """Return what a stage came to, for people."""
    shown_as = [f"{reached.name}: {reached.steps} steps"]
    for name in ("val/success", "val/reward", "val/loss"):
        if name in reached.after:
            first = reached.before.get(name)
            rise = f"{first:.3f} → " if first is not None else ""
            return ", ".join([*shown_as, f"{name} {rise}{reached.after[name]:.3f}"])
    return shown_as[0]
