"""A job rehearsed: loaded, checked, its rows read, and run on this machine with a random model."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from roll.config import ConfigError, Problem, RunConfig
from roll.config.errors import Absent
from roll.config.kinds import check_before, kind_for, runner
from roll.config.trainer_keys import TrainerKeys
from roll.rehearsal.changes import Folding
from roll.rehearsal.data_rows import RowFaults, absent_files, read_rows
from roll.rehearsal.folding import fold
from roll.rehearsal.key_watch import KeyWatch
from roll.rehearsal.stand_in import StandIn, make_stand_in
from roll.workers.loading import load_text

_SUMS: Final = ("time/step", "time/total", "time/elapsed")
_PROBLEMS: Final = {"file_name": ["examples/data/arithmetic_train.jsonl"], "prompt": None, "messages": None}
_REWARDS: Final = {"math_rule": {"tag_included": ["arithmetic"], "verifiers": {"math": 1.0}}}


@dataclass(frozen=True, slots=True)
class Break:
    """Something that would stop the job.

    Attributes:
        stage: In which part of the rehearsal.
        message: What happened.
        where: The line of this library that it came through, or the key.
    """

    stage: str
    message: str
    where: str = ""


@dataclass(slots=True)
class Rehearsal:
    """What a rehearsal found.

    Attributes:
        folded: What is narrower than in the job, as sentences.
        breaks: What would stop it.
        absent: What is not on this machine, and was replaced.
        unread: Keys that were set and that nothing read.
        unknown: Keys whose reading could not be watched, because the rehearsal has others.
        rows: What is wrong with rows.
        seconds: Of each part, and of each stage of a step.
    """

    folded: list[str] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    rows: list[RowFaults] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found that stops the job or loses rows."""
        return not self.breaks and all(row.is_sound for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"sound": self.is_sound, **asdict(self)}


def rehearse(
    config: RunConfig, *, processes: bool = True, say: Callable[[str], None] = lambda words: None
) -> Rehearsal:
    """Rehearse a job on this machine.

    Args:
        config: A checked configuration.
        processes: Whether roles with several ranks also run as processes of Ray, where it is installed.
        say: Told what goes on.

    Raises:
        ConfigError: It is a job without a model that is trained.
    """
    if not isinstance(config, TrainerKeys):
        fix = "rehearse a run that trains a model."
        raise ConfigError([Problem("pipeline", "there is nothing to rehearse.", fix, config.pipeline)])
    with TemporaryDirectory(prefix="roll_rehearsal_") as folder:
        return _Rehearser(config, Path(folder), say).run(processes=processes)


class _Rehearser:
    def __init__(self, config: TrainerKeys, folder: Path, say: Callable[[str], None]) -> None:
        self.config, self.folder, self.say = config, folder, say
        self.found = Rehearsal()

    def run(self, *, processes: bool) -> Rehearsal:
        found = self.found
        with self._part("check"):
            self._check()
        model = None
        with self._part("model"):
            model = make_stand_in(self.config.model_path("actor_train"), self.folder / "model", self.config.seed)
        if model is None:
            return found
        found.absent = absent_files(self.config)
        with self._part("rows"):
            self._read_rows(model)
        with self._part("run in one process"):
            folding = self._folding(model, ray=False)
            found.folded = folding.notes
            self._run(folding, "local", watch=True)
        several = any(len(worker.device_mapping or ()) > 1 or worker.workers > 1 for _, worker in self.config.roles())
        if processes and several and not found.breaks:
            if find_spec("ray") is None:
                found.folded.append("Ray is not installed, so no role ran in processes of its own.")
                return found
            with self._part("run on Ray"):
                folding = self._folding(model, ray=True)
                found.folded += [f"On Ray: {note}" for note in folding.notes if note not in found.folded]
                self._run(folding, "ray", watch=False)
        return found

    @contextmanager
    def _part(self, stage: str) -> Iterator[None]:
        """Time a part; what it raises would stop the job."""
        self.say(f"{stage} …")
        began = time.monotonic()
        try:
            yield
        except ConfigError as error:
            self.found.breaks += [Break(stage, f"{each.message} Fix: {each.fix}", each.path) for each in error.problems]
        except Exception as error:
            # Whatever it is, it would have ended the job: it is what a rehearsal looks for.
            words = (str(error).splitlines() or [""])[0]
            self.found.breaks.append(Break(stage, f"{type(error).__name__}: {words}", _where(error)))
        self.found.seconds[stage] = round(time.monotonic() - began, 2)

    def _check(self) -> None:
        try:
            self.found.folded += check_before(self.config)
        except ConfigError as error:
            real = [problem for problem in error.problems if not _of_this_machine(problem)]
            self.found.absent += [f"{p.path}: {p.message}" for p in error.problems if p not in real]
            if real:
                raise ConfigError(real) from error

    def _read_rows(self, model: StandIn) -> None:
        if self.found.absent and any("data_args" in line for line in self.found.absent):
            return
        # As it is run, for a role may name the model itself.
        folded = self._folding(model, ray=False).apply(self.config, self.folder / "rows")
        assert isinstance(folded, TrainerKeys)
        text = load_text(folded)
        self.found.rows = read_rows(self.config, text)
        if not model.own_tokenizer:
            # Lengths in other tokens say nothing.
            self.found.rows = [RowFaults(r.section, r.rows, r.bad, 0, r.examples, r.error) for r in self.found.rows]

    def _folding(self, model: StandIn, *, ray: bool) -> Folding:
        sums = self.config.needs_rewards and any("data_args" in line for line in self.found.absent)
        config = self.config.model_copy(update={"validation": None}) if sums else self.config
        folding = fold(config, model, ray=ray)
        if self.config.answers_prompts:
            folding.changes |= {"actor_train.data_args.filter_overlong_prompts": True}
            folding.changes |= {"actor_train.data_args.on_bad_row": "skip"}
            if sums:
                folding.changes |= {f"actor_train.data_args.{key}": value for key, value in _PROBLEMS.items()}
                folding.changes["rewards"] = _REWARDS
                folding.removed |= {"validation", "actor_train.data_args.domain_interleave_probs"}
                folding.removed |= {f"actor_train.data_args.{key}" for key in ("ground_truth", "tag")}
                folding.notes.append("Its data are not on this machine: it answered sums of arithmetic.")
        return folding

    def _run(self, folding: Folding, name: str, *, watch: bool) -> None:
        folder = self.folder / name
        config = folding.apply(self.config, folder)
        keys = KeyWatch(config)
        start = runner(kind_for(config).run)
        if watch:
            with keys.watching():
                start(config)
            left = [key for key in keys.unread() if key in KeyWatch(self.config).written]
            self.found.unread = [key for key in left if not folding.touches(key)]
            self.found.unknown = sorted(key for key in KeyWatch(self.config).written if folding.touches(key))
        else:
            start(config)
        for stage, seconds in _stage_seconds(folder).items():
            self.found.seconds[f"{name}: {stage}"] = seconds


def _of_this_machine(problem: Problem) -> bool:
    """Tell whether a problem is that something is not here: a package, a model, a file, a device."""
    return isinstance(problem, Absent) or problem.path.endswith(("file_name", "model_name_or_path", "pretrain"))


def _stage_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds of each stage of the last step of a run."""
    path = folder / "logs" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    found: dict[str, float] = {}
    for row in rows:
        found |= {key.partition("/")[2]: round(value, 3) for key, value in row.items()
                  if key.startswith("time/") and key not in _SUMS}  # fmt: skip
    return found


def _where(error: BaseException) -> str:
    """Return the innermost line of this library that an error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/roll/" in frame.filename]
    ours = [frame for frame in frames if "/rehearsal/" not in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('/roll/')[2]}:{ours[-1].lineno}" if ours else ""
