"""From the ``data_args`` section to pairs of answers as tokens, or to judged ones: every row read and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from roll.config.errors import FixableError
from roll.config.pair_keys import PairKeys
from roll.config.worker import DataArgs
from roll.data.custom import CustomRows
from roll.data.errors import DataError
from roll.data.loading import Source, open_sources
from roll.data.preference_rows import Judged, Pair, PreferenceColumns, PreferenceReader
from roll.data.report import FileCounts, LoadReport
from roll.data.supervised import AddRow, DemonstrationTable, fill
from roll.rendering.supervised import TokenSequence
from roll.runs.layout import TRAJECTORIES
from roll.trajectories.pairs import group_pairs
from roll.trajectories.store import read_trajectories

EncodePreference = Callable[[Pair | Judged], list[TokenSequence]]
"""The sequences of a row: of a pair the chosen answer and the rejected one, of a judged answer one."""


class PreferenceTable(DemonstrationTable):
    """The tokens of all pairs, or of all judged answers, in file order; rows are pairs, or answers."""

    def __init__(self, args: DataArgs, limit: int) -> None:
        super().__init__(args, limit)
        self._desirable: list[bool] = []
        self._margins: list[float] = []

    def add_pair(self, sequences: list[TokenSequence], margin: float) -> None:
        """Append the chosen and the rejected answer, and by how much the former is better."""
        self.add(sequences)
        self._margins.append(margin)

    def add_judged(self, sequences: list[TokenSequence], desirable: bool) -> None:
        """Append a judged answer."""
        self.add(sequences)
        self._desirable.append(desirable)

    @property
    def longest(self) -> int:
        """Most tokens that a row takes in one pass: of a pair both answers, the shorter one padded to the longer."""
        return max(len(one) * max(len(ids) for ids, _ in one) for one in map(self.sequences, range(len(self))))

    def chosen(self, row: int) -> list[bool]:
        """Return of each sequence of a row whether it is the better answer, or desirable."""
        return [self._desirable[row]] if self._desirable else [True, False]

    def margin(self, row: int) -> float:
        """Return by how much the chosen answer of a pair is better; 0 where nothing says so."""
        return self._margins[row]

    @property
    def judged(self) -> bool:
        """Whether rows are judged answers, not pairs."""
        return bool(self._desirable)


def load_preferences(args: DataArgs, keys: PairKeys, encode: EncodePreference) -> PreferenceTable:
    """Read all rows of a section. A folder among its files is a run, whose groups are pairs: the best and the worst.

    Args:
        args: The ``data_args`` section.
        keys: Which columns hold what, and how long a sequence may be.
        encode: Makes tokens of a row.

    Raises:
        DataError: If a file or a row cannot be used; the message names place and fix.
    """
    table = PreferenceTable(args, keys.sequence_length)

    def of_file(rows: Source) -> AddRow:
        reader = PreferenceReader(PreferenceColumns.of(keys, rows.columns, rows.name), args.system_prompt)

        def add(row: Mapping[str, Any]) -> None:
            if keys.takes_judged:
                _add_judged(table, reader.judged(row), encode)
            else:
                _add_pair(table, reader.pair(row), encode)

        return add

    fill(table, _sources(args, keys.pair_margin, table.report), of_file)
    return table


def mismatched(
    asked: tuple[np.ndarray, np.ndarray], answered: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what was asked in one sequence with the answer of another: token ids and flags, ``[tokens]`` each.

    Args:
        asked: Token ids and flags; tokens before the first flag are what was asked.
        answered: Tokens from its first flag on are the answer.
    """
    (question, question_flags), (answer, answer_flags) = asked, answered
    end, begin = int(question_flags.argmax()), int(answer_flags.argmax())
    ids = np.concatenate([question[:end], answer[begin:]])
    return ids, np.concatenate([np.zeros(end, np.bool_), answer_flags[begin:]])


def _add_pair(table: PreferenceTable, pair: Pair, encode: EncodePreference) -> None:
    sequences = encode(pair)
    kept = table.fitted(sequences)
    if not kept:
        return
    if len(kept) != len(sequences):
        raise FixableError(
            "of one answer no token is left to compare.", "give it text within `sequence_length` tokens."
        )
    table.add_pair(kept, pair.margin)


def _add_judged(table: PreferenceTable, answers: list[Judged], encode: EncodePreference) -> None:
    made = [(answer.desirable, table.fitted(encode(answer))) for answer in answers]
    for desirable, sequences in made:
        if sequences:
            table.add_judged(sequences, desirable)


def _sources(args: DataArgs, margin: float, report: LoadReport) -> Iterator[Source]:
    """Yield the files of a section, and the pairs of the runs among them."""
    names = args.file_name or []
    runs = [] if args.custom_cls is not None else [name for name in names if Path(name).expanduser().is_dir()]
    if len(runs) < len(names) or not names:
        files = [name for name in names if name not in runs] or None
        yield from open_sources(args.model_copy(update={"file_name": files}), report)
    for name in runs:
        yield _run_pairs(Path(name).expanduser(), margin, args.max_samples, report)


def _run_pairs(run: Path, margin: float, most: int | None, report: LoadReport) -> CustomRows:
    """Return the pairs of the groups that a run sampled to train on.

    Raises:
        DataError: It stored none, or all members of every group have the same score.
    """
    files = sorted((run / TRAJECTORIES).glob("step=*.parquet"))
    if not files:
        fix = "name the folder of a run that stored what it sampled (trajectory_dump_steps), or a file."
        raise DataError("this folder holds no trajectories.", fix, file=str(run))
    rows: list[Mapping[str, Any]] = [row for file in files for row in group_pairs(read_trajectories(file), margin)]
    if not rows:
        fix = "lower pair_margin, or use a run with groups of several members that do not all score the same."
        raise DataError("no group has members whose scores differ enough.", fix, file=str(run))
    found = CustomRows(str(run), rows, most)
    report.files.append(FileCounts(str(run), read=len(found)))
    return found
