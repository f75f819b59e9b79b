"""Operators of Data-Juicer, by their names and with their own options: on rows of tasks, and on groups."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from roll.common.spelling import closest, did_you_mean
from roll.operators.dataset_rows import through_dataset
from roll.operators.experience import sound_members
from roll.operators.registry import OperatorAbsentError, Registered, TaskRow
from roll.trajectories.model import Trajectory, TrajectoryGroup

_EXTRA: Final = "pip install 'roll-rl[data-juicer]'"
_LISTED: Final = "They are listed at https://datajuicer.github.io/data-juicer."
_IN_THIS_PROCESS: Final = {"auto_op_parallelism": False, "num_proc": None}
_OF_FILES: Final = ("image_", "video_", "audio_")
_STATS: Final = "__dj__stats__"
_ITS_OWN: Final = "__dj__"


def change_rows(rows: Sequence[TaskRow], *, op: str, **options: Any) -> list[TaskRow]:
    """Apply an operator of Data-Juicer to rows; what a filter measures becomes columns (``text_len``).

    Args:
        rows: The rows.
        op: Its name: ``text_length_filter``, ``clean_links_mapper``, ``document_deduplicator``, …
        **options: Its options, ``text_key`` (which column it reads) among them.

    Raises:
        ValueError: There is none of this name, it has no such option, it makes other rows, or a package is missing.
    """
    operator = _built(op, options)
    left = through_dataset(rows, operator.run)
    return [TaskRow(row.number, row.key, _without_its_own(row.columns)) for row in left]


def keep_groups(
    groups: Sequence[TrajectoryGroup], *, op: str, share: float = 1.0, **options: Any
) -> list[TrajectoryGroup]:
    """Keep groups of which a filter of Data-Juicer lets enough members through; what it measures becomes metrics.

    It sees a row for each sound member: ``text`` (all that it said), ``query`` and ``response`` (what it read first and
    said last), ``score``. Groups without a sound member stay.

    Args:
        groups: The groups.
        op: The name of a filter: ``text_length_filter``, ``llm_quality_score_filter``, …
        share: The least share of sound members that it lets through, in (0, 1].
        **options: Its options.

    Raises:
        ValueError: There is no such filter or share, it has no such option, or a package is missing.
    """
    operator = _built_filter(op, share, options)
    members = [(group, member) for group in groups for member in sound_members(group)]
    rows = [TaskRow(place, member.group_id, _said(member)) for place, (_, member) in enumerate(members)]
    measured = through_dataset(rows, lambda dataset: operator.run(dataset, reduce=False))
    left = through_dataset(measured, operator.run)  # what is measured is not measured again
    for row in measured:
        numbers = row.columns.get(_STATS) or {}
        found = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
        members[row.number][1].metrics.update(found)
    passed = {id(members[row.number][1]) for row in left}

    def stays(group: TrajectoryGroup) -> bool:
        sound = sound_members(group)
        return not sound or sum(id(member) in passed for member in sound) / len(sound) >= share

    return [group for group in groups if stays(group)]


def _said(member: Trajectory) -> dict[str, Any]:
    responses = [turn.response for turn in member.turns]
    return {
        "text": "\n".join(responses),
        "query": member.turns[0].observation if member.turns else "",
        "response": responses[-1] if responses else "",
        "score": member.score,
    }


def _without_its_own(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns with what was measured beside the others, and without what Data-Juicer notes for itself."""
    theirs = {name: value for name, value in columns.items() if not name.startswith(_ITS_OWN)}
    return {**theirs, **(columns.get(_STATS) or {})}


def _built(op: str, options: Mapping[str, Any]) -> Any:
    """Return an operator of Data-Juicer.

    Raises:
        ValueError: Data-Juicer is not installed, has none of this name, or that has no such option.
    """
    found = _classes().get(op)
    if found is None or op.startswith(_OF_FILES):
        names = [name for name in _classes() if not name.startswith(_OF_FILES)]
        close = " or ".join(map(repr, closest(op, names)))
        raise ValueError(
            f"Data-Juicer has no operator {op!r} on text. {f'Did you mean {close}?' if close else _LISTED}"
        )
    known = {*inspect.signature(found.__init__).parameters, *found._BASE_PARAMS} - {"self", "args", "kwargs"}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ValueError(f"{op} has no option {unknown[0]!r}. {did_you_mean(unknown[0], known)}")
    try:
        return found(**{**_IN_THIS_PROCESS, **options})
    except Exception as error:  # whatever the operator raises, it is about its options
        raise ValueError(f"{op} cannot be made of {dict(options)}: {type(error).__name__}: {error}") from error


def _built_filter(op: str, share: float, options: Mapping[str, Any]) -> Any:
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    built = _built(op, options)
    if not isinstance(built, importlib.import_module("data_juicer.ops").Filter):
        raise ValueError(f"{op} is no filter: what a policy said is not changed, and whole groups are kept or dropped")
    return built


def _classes() -> Mapping[str, Any]:
    """Return the operators of Data-Juicer, by name.

    Raises:
        OperatorAbsentError: It, or a package that it needs, is not installed.
    """
    try:
        _forbid_installing()
        operators: Mapping[str, Any] = importlib.import_module("data_juicer.ops").OPERATORS.modules
    except ImportError as error:
        raise OperatorAbsentError(f"it needs Data-Juicer, which cannot be imported ({error}). Try: {_EXTRA}") from error
    importlib.import_module("loguru").logger.disable("data_juicer")
    return operators


def _forbid_installing() -> None:
    """Refuse what Data-Juicer does where a package is missing: it would change the environment of the run.

    Its operators call pip for themselves, also with ``--force-reinstall``, and other versions of packages that are in
    use come with that.
    """

    def refuse(package: str, pip_args: object = None) -> None:
        raise ImportError(f"it needs the package {package}, which is not installed. Try: pip install {package!r}")

    importlib.import_module("data_juicer.utils.lazy_loader").LazyLoader._install_package = staticmethod(refuse)


def _check_rows(*, op: str, **options: Any) -> None:
    _built(op, options)


def _check_groups(*, op: str, share: float = 1.0, **options: Any) -> None:
    _built_filter(op, share, options)


DATA_JUICER: Final = Registered(change_rows, "tasks", _check_rows)
DATA_JUICER_GROUPS: Final = Registered(keep_groups, "experience", _check_groups)
