"""Trinity-RFT: ``data_processor``: operators on tasks and on experience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, no_effect, under
from roll.config.dialects.trinity.sections import DATA, STORE, samples
from roll.config.errors import FixableError

_TASKS: Final = "data_processor.task_pipeline"
_PREFERENCES: Final = "human_preference_annotation_mapper"
_EXPERIENCE: Final = "data_processor.experience_pipeline"

_LENGTHS: Final = {"min_len": "least", "max_len": "most"}

_OF_TASKS: Final = {
    "text_length_filter": "length",
    "document_deduplicator": "deduplicate",
}
"""Operators of Data-Juicer, and ours that do the same to rows of tasks and need no package."""


def _operators(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, Mapping) and each.get("name") for each in value):
        raise FixableError("must be a list of operators.", "write [{name: reward_filter, args: {threshold: 0.1}}].")
    return value


def _of_groups(value: Any, look: Look) -> Any:
    """Convert the operators on experience to those on groups; one that there is not is left out."""
    if not value:
        return Unused()
    if not samples(look):
        return Unused("nothing is sampled")
    made: list[dict[str, Any]] = []
    left: list[str] = []
    for operator in _operators(value):
        name, args = str(operator["name"]), operator.get("args") or {}
        found = _of_a_group(name, args)
        made += found
        left += [] if found or name == "pass_rate_calculator" else [name]
    if not made:
        names = ", ".join(left) or "what they compute is a metric"
        return Impossible(f"no operator does it: {names}", "operators: {experience: [{name: score, args: {…}}]}")
    note = f"{', '.join(left)} is left out" if left else "operators decide on whole groups"
    return Sets({"operators.experience": made}, note=note)


def _of_a_group(name: str, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operators of ours that do what one of Trinity-RFT's does."""
    if name == "reward_filter":
        return [{"name": "score", "args": {"least": args.get("threshold", 0.0)}}]
    if name == "reward_std_filter":
        return [{"name": "spread", "args": {"least": max(args.get("threshold", 0.0), 1e-6)}}]
    if name == "reward_shaping_mapper":
        return [
            {
                "name": "reward_shaping",
                "args": {
                    "metric": each.get("stats_key"),
                    "op": str(each.get("op_type", "ADD")).lower().removeprefix("optype."),
                    "weight": each.get("weight", 1.0),
                },
            }
            for each in args.get("reward_shaping_configs") or ()
            if isinstance(each, Mapping)
        ]
    if name == "data_juicer":
        return [
            {"name": "data_juicer_groups", "args": {"op": op, **(options or {})}}
            for each in args.get("operators") or ()
            if isinstance(each, Mapping)
            for op, options in each.items()
        ]
    return []


def _of_rows(value: Any, look: Look) -> Any:
    """Convert the operators of Data-Juicer on rows of tasks: to ours that do the same, or to the adapter."""
    if not value:
        return Unused()
    column = look("buffer.explorer_input.taskset.format.prompt_key", "prompt")
    made: list[dict[str, Any]] = []
    left: list[str] = []
    for operator in _operators(value):
        name, args = str(operator["name"]), operator.get("args") or {}
        ours = _OF_TASKS.get(name)
        if ours == "length":
            made.append(
                {"name": ours, "args": {"column": column, **{_LENGTHS[k]: v for k, v in args.items() if k in _LENGTHS}}}
            )
        elif ours == "deduplicate":
            made.append({"name": ours, "args": {"columns": [column]}})
        elif name == _PREFERENCES:
            left.append(name)
        else:
            made.append({"name": "data_juicer", "args": {"op": name, "text_key": column, **args}})
    if left:
        nearest = "label answers chosen and rejected in roll view, and train on roll view RUN --export-preferences FILE"
        return Impossible("people compare answers in the review, and not in a program beside it", nearest)
    return Sets({"operators.tasks": made})


def _inputs(value: Any, look: Look) -> Any:
    if not value:
        return Unused()
    if any(look(key) is not None for key in ("buffer.explorer_input.taskset.path", f"{STORE}.path")):
        return Unused("rows are those of the task set, and operators change them as they are read")
    return Sets({f"{DATA}.file_name": value})


PIPELINE_ROWS: Final = (
    Row(f"{_EXPERIENCE}.operators", "operators.experience", "filters and shaping of rewards", _of_groups),
    *no_effect(
        "trajectories are kept as parquet", *under(_EXPERIENCE, "save_input", "input_save_path", "inputs", "output")
    ),
    Row(f"{_TASKS}.operators", "operators.tasks", "others than lengths and duplicates need Data-Juicer", _of_rows),
    Row(f"{_TASKS}.inputs", f"{DATA}.file_name", "where the task set names no file", _inputs),
    *no_effect(
        "rows are changed as they are read, in one process, and no file is written",
        *under(_TASKS, "num_process", "config_path", "output", "target_fields", "top_k"),
    ),
    *no_effect("rows are drawn evenly in each epoch; `curriculum` orders them", f"{_TASKS}.priority_weights"),
)
"""The keys of pipelines of data."""
