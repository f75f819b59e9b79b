"""A study: trial after trial until the budget is used, each remembered in Optuna's storage, so that it can go on."""

from __future__ import annotations

import json
import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roll.config import ConfigError, Problem, RunError
from roll.config.errors import choose_from
from roll.config.ranges import Choice, Range
from roll.runs.layout import CHECKPOINTS, list_checkpoints
from roll.runs.lock import FolderInUseError, hold
from roll.tuning.plan import Plan, word
from roll.tuning.trial import TrialProcess, command_of, running
from roll.tuning.undisturbed import undisturbed

if TYPE_CHECKING:
    import optuna

STORAGE: Final = "study.db"
"""Optuna's, in the folder of a study: ``optuna-dashboard sqlite:///…/study.db`` shows it, too."""

_POLL: Final = 0.25
"""Seconds between two looks at the metrics of a trial."""
_REMEMBER: Final = 10.0
"""Seconds between two notes of how much of the budget is used."""
_FAILURES: Final = 4
"""Failures in a row after which a study ends: it would go on failing until its budget is used."""
_DEFAULT_METRICS: Final = ("val/success", "val/reward", "val/reward/mean")
_DECLARATION, _METRIC, _SECONDS, _WHY = "declaration", "metric", "seconds", "why"


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial as it stands.

    Attributes:
        number: From 0.
        state: ``finished``, ``stopped`` (others were better after as many steps), ``failed``, or ``open``.
        values: Keys and their values.
        curve: Steps and what was measured there.
        folder: Of its run.
        why: Why it failed.
    """

    number: int
    state: str
    values: Mapping[str, Any]
    curve: Mapping[int, float]
    folder: Path
    why: str = ""

    @property
    def steps(self) -> int:
        """Steps after which it was last compared."""
        return max(self.curve, default=0)

    @property
    def value(self) -> float | None:
        """The newest measurement."""
        return self.curve[self.steps] if self.curve else None


@dataclass(frozen=True, slots=True)
class Results:
    """What a study has found so far.

    Attributes:
        metric: What decided; empty before the first evaluation.
        minimize: Whether less of it is better.
        trials: All of them, in their order.
        best: The best that was trained to the end; before there is one, the best of those that got furthest.
        seconds: What was used of the budget.
        ended: Why no further trial was begun.
    """

    metric: str
    minimize: bool
    trials: tuple[Tried, ...]
    best: Tried | None
    seconds: float
    ended: str


class _BudgetUsed(Exception):
    """The time is over while a trial runs."""


class Study:
    """A study in its folder, begun or gone on with.

    Args:
        plan: What to try.
        say: Called with each line that tells what happens.

    Raises:
        ConfigError: The folder has a study of something else.
        RunError: Optuna is not installed.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._say = say
        self._optuna = _import_optuna()
        plan.folder.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{(plan.folder / STORAGE).absolute()}"
        self.goes_on = bool(self._optuna.get_all_study_names(storage))
        self._study = self._optuna.create_study(
            study_name=plan.config.exp_name,
            storage=storage,
            load_if_exists=True,
            direction="minimize" if _minimized(plan) else "maximize",
            pruner=self._pruner(),
        )
        self._require_same()
        self._since = time.monotonic()
        self._used = self._noted = float(self._study.user_attrs.get(_SECONDS, 0.0))
        self._ended = ""

    def run(self, *, budget: float | None, trials: int | None) -> Results:
        """Try until the budget is used.

        Args:
            budget: Seconds in all, those of earlier sittings included; a trial that is not at its end goes on when the
                study does. ``None`` for no end.
            trials: Trials in all.

        Raises:
            ConfigError: The runs do not log the metric.
            RunError: One trial after the other fails.
            KeyboardInterrupt: After Ctrl-C; the running trial has saved its last step.
        """
        failures = 0
        try:
            while True:
                with undisturbed():
                    left = self._left_over()
                    trial = left or (None if self._is_done(budget, trials) else self._ask())
                if trial is None or (budget is not None and self.seconds >= budget):
                    break
                try:
                    sound = self._run(trial, budget, begun=left is None)
                except _BudgetUsed:
                    break
                failures = 0 if sound else failures + 1
                if failures == _FAILURES:
                    why = self.results().trials[trial.number].why
                    raise RunError(f"{failures} trials in a row failed, the last one: {why}")
        finally:
            with undisturbed():
                self._note(at_once=True)
        if budget is not None and self.seconds >= budget:
            self._ended = "the time is used"
        return self.results()

    @property
    def seconds(self) -> float:
        """Seconds used, those of earlier sittings included."""
        return self._used + time.monotonic() - self._since

    def results(self) -> Results:
        """Return what was found so far."""
        tried = tuple(self._tried(one) for one in self._study.get_trials(deepcopy=False) if one.state.name != "WAITING")
        minimize = self._study.direction.name == "MINIMIZE"
        metric = str(self._study.user_attrs.get(_METRIC, ""))
        return Results(metric, minimize, tried, _best(tried, minimize), self.seconds, self._ended)

    def folder_of(self, number: int) -> Path:
        """Return the folder of the run of a trial."""
        return self.plan.folder / f"{number:03d}"

    def _run(self, trial: optuna.Trial, budget: float | None, *, begun: bool) -> bool:
        """Run a trial to its end, or until it is stopped; return whether it was sound."""
        number, folder = trial.number, self.folder_of(trial.number)
        words = [*self.plan.words, *(word(key, value) for key, value in trial.params.items())]
        said = "  ".join(word(key, value) for key, value in trial.params.items())
        if not begun and not list_checkpoints(folder / CHECKPOINTS):
            # It was killed before it had saved anything, and begins again.
            shutil.rmtree(folder, ignore_errors=True)
        self._say(f"trial {number}  {'' if begun else 'goes on  '}{said}")
        with undisturbed():
            done = dict(self._study.get_trials(deepcopy=False)[number].intermediate_values)
        with running(command_of(self.plan.name, words, self.plan.config, folder), folder) as process:
            while True:
                with undisturbed():
                    code = process.code
                    self._note()
                    if self._reported(trial, process, done, ended=code == 0):
                        self._tell(trial, "PRUNED")
                        self._say(f"trial {number}  stopped after {max(done)} steps: others are better")
                        return True
                    if code is not None:
                        return self._ended_with(trial, process, code, done)
                    if budget is not None and self.seconds >= budget:
                        raise _BudgetUsed
                time.sleep(_POLL)

    def _reported(self, trial: optuna.Trial, process: TrialProcess, done: dict[int, float], *, ended: bool) -> bool:
        """Tell Optuna what was measured since the last look; return whether the trial should stop."""
        rows = process.rows()
        metric = self._metric(rows, ended=ended)
        if metric is None:
            return False
        last = self.plan.config.max_steps
        for row in sorted(rows, key=lambda row: int(row["step"])):
            step, value = int(row["step"]), row.get(metric)
            if value is None or step in done or not 0 < step <= last:
                continue
            done[step] = float(value)
            trial.report(float(value), step)
            self._say(f"trial {trial.number}  step {step} of {last}: {metric} {value:.4g}")
            # Before it is said to be stopped nobody knows; after the last step there is nothing to stop.
            if step < last and trial.should_prune():
                return True
        return False

    def _ended_with(self, trial: optuna.Trial, process: TrialProcess, code: int, done: Mapping[int, float]) -> bool:
        if code == 0 and max(done, default=0) > 0:
            self._tell(trial, "COMPLETE", done[max(done)])
            return True
        why = process.why() if code else f"it measured no finite {self._study.user_attrs.get(_METRIC, 'value')}"
        trial.set_user_attr(_WHY, why)
        self._tell(trial, "FAIL")
        self._say(f"trial {trial.number}  failed: {why}")
        return False

    def _metric(self, rows: list[dict[str, Any]], *, ended: bool) -> str | None:
        """Return what decides, chosen at the first evaluation; ``None`` before there is one.

        Raises:
            ConfigError: There is an evaluation, and it has no such metric.
        """
        known = self._study.user_attrs.get(_METRIC)
        if known is not None:
            return str(known)
        names = {name for row in rows for name in row if int(row["step"]) > 0} - {"step"}
        wanted = (self.plan.metric,) if self.plan.metric else _DEFAULT_METRICS
        found = next((name for name in wanted if name in names), None)
        if found is not None:
            self._study.set_user_attr(_METRIC, found)
        elif rows and (ended or max(int(row["step"]) for row in rows) > self.plan.min_resource):
            asked = self.plan.metric or " or ".join(_DEFAULT_METRICS[:2])
            named = sorted(name for name in names if name.startswith("val/")) or sorted(names)
            fix = f"choose another with --metric: {choose_from(asked, named)}"
            raise ConfigError([Problem("--metric", f"the runs log no {asked}.", fix)])
        return found

    def _is_done(self, budget: float | None, trials: int | None) -> bool:
        tried = [one for one in self._study.get_trials(deepcopy=False) if one.state.name != "WAITING"]
        if trials is not None and len(tried) >= trials:
            self._ended = f"{trials} trials were asked for"
        elif budget is not None and self.seconds >= budget:
            self._ended = "the time is used"
        elif self.plan.combinations is not None:
            if len({json.dumps(one.params, sort_keys=True) for one in tried}) >= self.plan.combinations:
                self._ended = "every combination was tried"
        return bool(self._ended)

    def _left_over(self) -> optuna.Trial | None:
        """Return the trial that an earlier sitting did not end."""
        for one in self._study.get_trials(deepcopy=False):
            if one.state.name == "RUNNING":
                return self._suggested(self._optuna.Trial(self._study, one._trial_id))
        return None

    def _ask(self) -> optuna.Trial:
        count = len([one for one in self._study.get_trials(deepcopy=False) if one.state.name != "WAITING"])
        # Drawn anew for each trial from its number: a study that goes on tries what it would have tried anyway.
        self._study.sampler = self._sampler(count)
        if count == 0:
            start = self._as_configured()
            if start is not None:
                self._study.enqueue_trial(start, skip_if_exists=True)
        return self._suggested(self._study.ask())

    def _suggested(self, trial: optuna.Trial) -> optuna.Trial:
        for key, one in self.plan.space.items():
            if isinstance(one, Choice):
                trial.suggest_categorical(key, one.values)
            elif isinstance(one.low, int) and isinstance(one.high, int):
                trial.suggest_int(key, one.low, one.high, log=one.log, step=int(one.step or 1))
            else:
                trial.suggest_float(key, one.low, one.high, log=one.log, step=one.step)
        return trial

    def _tell(self, trial: optuna.Trial, state: str, value: float | None = None) -> None:
        # A sampler that tries every combination wants to end a loop of Optuna's own when it has.
        self._study.sampler = self._optuna.samplers.RandomSampler(seed=0)
        self._study.tell(trial.number, value, state=self._optuna.trial.TrialState[state])

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        seed = (self.plan.seed * 1_000_003 + number) % 2**32
        if self.plan.combinations is not None:
            return self._optuna.samplers.BruteForceSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed)

    def _pruner(self) -> optuna.pruners.BasePruner:
        plan = self.plan
        if plan.hyperband:
            return self._optuna.pruners.HyperbandPruner(
                plan.min_resource, max_resource=plan.config.max_steps, reduction_factor=plan.reduction_factor
            )
        return self._optuna.pruners.SuccessiveHalvingPruner(plan.min_resource, plan.reduction_factor)

    def _as_configured(self) -> dict[str, Any] | None:
        """Return what the configuration itself says, so that it is the first trial; ``None`` where no range has it."""
        found: dict[str, Any] = {}
        for key, one in self.plan.space.items():
            value: Any = self.plan.config
            for part in key.split("."):
                value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
            known = value is None or isinstance(value, bool | int | float | str)
            if not known or not _contains(one, value):
                return None
            found[key] = value
        return found

    def _require_same(self) -> None:
        """Write down what this study is, or check that it is the one that the folder has.

        Raises:
            ConfigError: It is another.
        """
        now, before = self.plan.declaration(), self._study.user_attrs.get(_DECLARATION)
        metric = self._study.user_attrs.get(_METRIC)
        if before is None:
            self._study.set_user_attr(_DECLARATION, now)
            return
        nothing = "(none)"
        different = {key: (before.get(key, nothing), now.get(key, nothing)) for key in {**before, **now}}
        changed = [f"{key}: {old} → {new}" for key, (old, new) in different.items() if old != new]
        if self.plan.metric and metric and self.plan.metric != metric:
            changed.append(f"metric: {metric} → {self.plan.metric}")
        if changed:
            shown = "; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")
            fix = f"repeat the command that began it, or begin another: output_dir={self.plan.config.output_dir}-2."
            raise ConfigError([Problem("output_dir", f"{self.plan.folder} has another study ({shown}).", fix)])

    def _tried(self, one: optuna.trial.FrozenTrial) -> Tried:
        state = {"COMPLETE": "finished", "PRUNED": "stopped", "FAIL": "failed"}.get(one.state.name, "open")
        curve = dict(sorted(one.intermediate_values.items()))
        why = str(one.user_attrs.get(_WHY, ""))
        return Tried(one.number, state, dict(one.params), curve, self.folder_of(one.number), why)

    def _note(self, at_once: bool = False) -> None:
        if at_once or self.seconds - self._noted >= _REMEMBER:
            self._noted = self.seconds
            self._study.set_user_attr(_SECONDS, self._noted)


@contextmanager
def open_study(plan: Plan, say: Callable[[str], None]) -> Iterator[Study]:
    """Keep every other process out of the folder of a study, and open it.

    Raises:
        ConfigError: Another process has it, or the folder has a study of something else.
        RunError: Optuna is not installed.
    """
    _import_optuna()
    try:
        with hold(plan.folder):
            yield Study(plan, say)
    except FolderInUseError as error:
        raise ConfigError([Problem("output_dir", str(error), error.fix, str(plan.folder))]) from error


def _import_optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise RunError("Tuning needs the package optuna: pip install 'roll-rl[tune]'.") from error
    optuna.logging.set_verbosity(logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _contains(one: Range | Choice, value: Any) -> bool:
    if isinstance(one, Choice):
        return value in one.values
    within = isinstance(value, int | float) and not isinstance(value, bool) and one.low <= value <= one.high
    return within and (one.step is None or abs((value - one.low) / one.step % 1) < 1e-9)


def _minimized(plan: Plan) -> bool:
    if plan.minimize is not None:
        return plan.minimize
    return (plan.metric or "").endswith(("loss", "perplexity"))


def _best(tried: tuple[Tried, ...], minimize: bool) -> Tried | None:
    measured = [one for one in tried if one.value is not None and one.state != "failed"]
    finished = [one for one in measured if one.state == "finished"]
    furthest = max((one.steps for one in measured), default=0)
    among = finished or [one for one in measured if one.steps == furthest]
    sign = -1.0 if minimize else 1.0
    return max(among, key=lambda one: sign * (one.value or 0.0), default=None)
