"""ROLL's keys of distillation: a student, its teachers, and how they are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from roll.config.base import ConfigModel
from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, choices, impossible, no_effect
from roll.config.dialects.upstream_roll.roles import role_rows
from roll.config.validation import sections
from roll.config.worker import TrainWorkerConfig, WorkerConfig

_STRATEGIES: Final = {"fsdp2_train": "fsdp_train", "fsdp2_infer": "fsdp_infer"}
_OBJECTIVES: Final = {"js_divergence": "jsd", "jsd": "jsd", "kl_div": "forward_kl"}


def _named_rows(role: str, native: str, kind: type[ConfigModel]) -> tuple[Row, ...]:
    """Return rows of the keys that have another role's name before them, and those of ROLL's own."""
    measured = _measurable(role, native) if role != "student_infer" else ()
    taken = {row.key for row in measured}
    own = tuple(row for row in role_rows(role, native) if row.key not in taken)
    known = {row.key for row in (*own, *measured)}
    options = f"{role}.strategy_args.strategy_config"
    rest = () if measured else (Row(f"{options}.*", f"{native}.strategy_args.strategy_config.*"),)
    return (
        *own,
        *measured,
        *(
            Row(f"{role}.{path}", f"{native}.{path}")
            for path in _leaves(kind)
            if f"{role}.{path}" not in known and not path.endswith("strategy_config") and path != "data_args.file_name"
        ),
        *rest,
    )


def _leaves(kind: type[ConfigModel]) -> Iterator[str]:
    inner = dict(sections(kind))
    for prefix, model in inner.items():
        for name in model.model_fields:
            path = f"{prefix}.{name}" if prefix else name
            if path not in inner:
                yield path


def _measurable(role: str, native: str) -> tuple[Row, ...]:
    """Return rows that train or score with FSDP a model that ROLL spreads by Megatron: the vocabulary is compared."""
    name, options = f"{role}.strategy_args.strategy_name", f"{role}.strategy_args.strategy_config"

    def strategy(value: Any, look: Look) -> Any:
        if not isinstance(value, str) or not value.startswith("megatron"):
            return _STRATEGIES.get(value, value) if isinstance(value, str) else value
        note = "a student and its teachers are compared by fsdp_train and deepspeed_train alone"
        return Sets({f"{native}.strategy_args.strategy_name": value.replace("megatron", "fsdp")}, note=note)

    def option(value: Any, look: Look) -> Any:
        if str(look(name)).startswith("megatron"):
            return Unused("an option of Megatron, and the role has FSDP")
        return Sets({f"{native}.strategy_args.strategy_config.*": value})

    return (
        Row(name, f"{native}.strategy_args.strategy_name", "FSDP for Megatron", strategy),
        Row(f"{options}.*", f"{native}.strategy_args.strategy_config.*", "", option),
    )


def _questions(value: Any, look: Look) -> Any:
    """Let the student answer the questions of its files, one an episode: what it answers is compared."""
    sampling = look("student_infer.generating_args.max_new_tokens") or look("sequence_length") or 1024
    training = {key: look(f"student.training_args.{key}") or 1 for key in _STEP}
    episodes = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    tag = "custom_envs.questions"
    values = {
        f"{tag}.env_type": "problems",
        f"{tag}.env_config.file_name": value,
        f"{tag}.max_steps": 1,
        f"{tag}.agent_template": "{observation}",
        "train_env_manager.tags": ["questions"],
        "val_env_manager.tags": ["questions"],
    }
    fills = {"train_env_manager.group_size": 1, "eval_steps": 0, "rollout_batch_size": episodes * 8}
    note = "the student answers the questions itself, and is compared with the teacher on its answers"
    return Sets(values, {**fills, f"{tag}.max_tokens_per_step": sampling}, note)


_STEP: Final = ("per_device_train_batch_size", "gradient_accumulation_steps")


def _whole(reason: str, instead: str) -> Any:
    return lambda value, look: Unused("it is so here") if value in (1, 1.0) else Impossible(reason, instead)


def _prompts_too(value: Any, look: Look) -> Any:
    return Unused("what the student answered is compared, and not what it was asked")


DISTILLATION: Final[tuple[Row, ...]] = (
    Row("student_pretrain", "pretrain"),
    Row("teacher_pretrain", "teacher.model_args.model_name_or_path"),
    Row("kd_objective", "divergence", "", choices(_OBJECTIVES)),
    Row("logits_topk", "teacher_top_k", "0 is all", lambda value, look: Unused() if value == 0 else value),
    Row(
        "distill_loss_weight", (), "only 1", _whole("nothing is imitated beside the teacher", "pipeline: sft for that")
    ),
    Row("kd_temperature", (), "only 1", _whole("distributions are compared as they are", "")),
    Row("teacher_temperature", (), "only 1", _whole("distributions are compared as they are", "")),
    Row("distill_on_prompt", (), "the student's own answers", _prompts_too),
    Row("question_key", "actor_train.data_args.prompt"),
    Row("answer_key", "actor_train.data_args.ground_truth"),
    *no_effect("what teachers say travels with their scores", "logits_transfer_backend"),
    *no_effect("actor_train.data_args.template is that of every prompt", "tag_to_template"),
    Row("student.data_args.file_name", "custom_envs.questions.env_config.file_name", "", _questions),
    *_named_rows("student", "actor_train", TrainWorkerConfig),
    *_named_rows("student_train", "actor_train", TrainWorkerConfig),
    *_named_rows("student_infer", "actor_infer", WorkerConfig),
    *_named_rows("teacher.*", "teachers.*", WorkerConfig),
    Row("teacher.*.tag_included", "teachers.*.tag_included"),
    Row("teacher.*.opd_kl_coef", (), "only 1", _whole("teachers weigh the same", "")),
    *impossible("teachers weigh the same", "opd_kl_coef"),
)
"""Keys of ROLL's distillation pipelines."""
