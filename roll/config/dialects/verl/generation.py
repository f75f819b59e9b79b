"""verl: ``data`` of its programs that answer files, ``main_generation``, and that grade answers, ``main_eval``."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import Look, Row, Sets, Unused, no_effect
from roll.config.dialects.verl.rewards import built_in_rewards

_VALIDATION: Final = "validation"


def measures(look: Look) -> bool:
    """Tell whether a policy or its answers are measured, and nothing is trained."""
    return look.kind_has("recorded")


def _files(value: Any, look: Look) -> Any:
    if not measures(look):
        return Unused("a key of programs that answer files")
    answered = look("data.response_key") is not None
    columns = {
        f"{_VALIDATION}.data_args.messages": look("data.prompt_key", "prompt"),
        f"{_VALIDATION}.data_args.ground_truth": f"{look('data.reward_model_key', 'reward_model')}.ground_truth",
        f"{_VALIDATION}.data_args.tag": look("data.data_source_key", "data_source"),
    }
    values = {f"{_VALIDATION}.data_args.file_name": value}
    if answered:
        values["recorded"] = value
    return Sets(values, {**columns, **built_in_rewards(look)})


def _if_measured(native: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        return Sets({native: value}) if measures(look) else Unused("a key of programs that answer files")

    return convert


def _column(value: Any, look: Look) -> Any:
    return Unused("" if measures(look) else "a key of programs that grade answers")


GENERATION_ROWS: Final = (
    Row("data.path", note="evaluation: `validation.data_args.file_name`, with verl's columns", convert=_files),
    Row(
        "data.n_samples",
        note="evaluation: `validation.generating_args.num_return_sequences`",
        convert=_if_measured(f"{_VALIDATION}.generating_args.num_return_sequences"),
    ),
    Row("data.batch_size", note="evaluation: `val_batch_size`", convert=_if_measured("val_batch_size")),
    *(
        Row(
            f"data.{name}",
            note="a column, with `data.path`",
            convert=_column,
            agrees=f"{_VALIDATION}.data_args.{native}",
        )
        for name, native in (("data_source_key", "tag"), ("reward_model_key", "ground_truth"))
    ),
    *no_effect("answers are written to `output_dir`", "data.output_path"),
)
"""The keys of programs that measure."""
