"""ROLL's keys of distillation: a student, its teachers, and how they are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from roll.config.base import ConfigModel
from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, choices, impossible, no_effect
from roll.config.dialects.upstream_roll.roles import role_rows
from roll.config.validation import sections
from roll.config.worker import TrainWorkerConfig, WorkerConfig

_OBJECTIVES: Final = {"js_divergence": "jsd", "jsd": "jsd", "kl_div": "forward_kl"}


def _named_rows(role: str, native: str, kind: type[ConfigModel]) -> tuple[Row, ...]:
    """Return rows of the keys that have another role's name before them, and those of ROLL's own."""
    own = role_rows(role, native)
    known = {row.key for row in own}
    options = f"{role}.strategy_args.strategy_config.*"
    return (
        *own,
        *(
            Row(f"{role}.{path}", f"{native}.{path}")
            for path in _leaves(kind)
            if f"{role}.{path}" not in known and not path.endswith("strategy_config")
        ),
        Row(options, f"{native}.strategy_args.strategy_config.*"),
    )


def _leaves(kind: type[ConfigModel]) -> Iterator[str]:
    inner = dict(sections(kind))
    for prefix, model in inner.items():
        for name in model.model_fields:
            path = f"{prefix}.{name}" if prefix else name
            if path not in inner:
                yield path


def _whole(reason: str, instead: str) -> Any:
    return lambda value, look: Unused("it is so here") if value in (1, 1.0) else Impossible(reason, instead)


def _column(native: str, elsewhere: str) -> Any:
    """Return what names a column of answered rows, or of prompts where the student answers."""

    def convert(value: Any, look: Look) -> Any:
        return Sets({native if look.demonstrates else elsewhere: value})

    return convert


DISTILLATION: Final[tuple[Row, ...]] = (
    Row("student_pretrain", "pretrain"),
    Row("teacher_pretrain", "teacher.model_args.model_name_or_path"),
    Row("kd_objective", "divergence", "", choices(_OBJECTIVES)),
    Row("logits_topk", "teacher_top_k", "0 is all", lambda value, look: Unused() if value == 0 else value),
    Row("kd_temperature", "kd_temperature"),
    Row("teacher_temperature", (), "only 1", _whole("both distributions are softened alike", "kd_temperature")),
    Row(
        "question_key",
        ("prompt_key", "actor_train.data_args.prompt"),
        "",
        _column("prompt_key", "actor_train.data_args.prompt"),
    ),
    Row(
        "answer_key",
        ("response_key", "actor_train.data_args.ground_truth"),
        "",
        _column("response_key", "actor_train.data_args.ground_truth"),
    ),
    *no_effect("what teachers say travels with their scores", "logits_transfer_backend"),
    *no_effect("actor_train.data_args.template is that of every prompt", "tag_to_template"),
    *_named_rows("student", "actor_train", TrainWorkerConfig),
    *_named_rows("student_train", "actor_train", TrainWorkerConfig),
    *_named_rows("student_infer", "actor_infer", WorkerConfig),
    *_named_rows("teacher.*", "teachers.*", WorkerConfig),
    Row("teacher.*.tag_included", "teachers.*.tag_included"),
    Row("teacher.*.opd_kl_coef", (), "only 1", _whole("teachers weigh the same", "")),
    *impossible("teachers weigh the same", "opd_kl_coef"),
)
"""Keys of ROLL's distillation pipelines."""
