"""Every row of the data of a job, read before it starts: those that will fail, and prompts that are too long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roll.config import ConfigError, RunConfig
from roll.config.prompt_keys import PromptKeys
from roll.config.trainer_keys import TrainerKeys
from roll.config.worker import DataArgs
from roll.data.report import LoadReport
from roll.pipelines.checks.data_files import missing_files
from roll.pipelines.sampling.prompt_data import load_data
from roll.workers.loading import Text


@dataclass(frozen=True, slots=True)
class RowFaults:
    """What is wrong with the rows of a section.

    Attributes:
        section: Its key path.
        rows: Rows that were read.
        bad: Rows that cannot be used.
        too_long: Prompts that are longer than they may be.
        examples: The first bad rows: file, line, and why.
        error: What ends reading whatever is done about rows.
    """

    section: str
    rows: int = 0
    bad: int = 0
    too_long: int = 0
    examples: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether every row can be used."""
        return not (self.bad or self.too_long or self.error)


def absent_files(config: RunConfig) -> list[str]:
    """Return the data files that are not on this machine, each with its key."""
    return [f"{problem.path}: {problem.value}" for problem in missing_files(config)]


def read_rows(config: TrainerKeys, text: Text) -> list[RowFaults]:
    """Read all rows of all files of a run that answers prompts.

    Args:
        config: With the files and lengths of the job itself.
        text: What makes tokens of text: the tokenizer of the job, or one in place of it.
    """
    return list(_faults(config, text)) if config.answers_prompts else []


def _faults(config: TrainerKeys, text: Text) -> Iterator[RowFaults]:
    assert isinstance(config, PromptKeys)
    lenient = {"on_bad_row": "skip", "filter_overlong_prompts": True, "truncation": "error"}
    training = config.actor_train.model_copy(update={"data_args": _with(config.actor_train.data_args, lenient)})
    changes: dict[str, object] = {"actor_train": training}
    if config.validation is not None:
        args = _with(config.validation.data_args, lenient)
        changes["validation"] = config.validation.model_copy(update={"data_args": args})
    try:
        data = load_data(config.model_copy(update=changes), text)
    except ConfigError as error:
        yield from (RowFaults(problem.path, error=problem.message) for problem in error.problems)
        return
    yield _faults_of("actor_train.data_args", data.train.report)


def _with(args: DataArgs, changes: Mapping[str, object]) -> DataArgs:
    return args.model_copy(update=dict(changes))


def _faults_of(section: str, report: LoadReport) -> RowFaults:
    too_long = sum(domain.filtered for domain in report.domains.values())
    return RowFaults(section, report.read, report.skipped, too_long, tuple(report.examples))
