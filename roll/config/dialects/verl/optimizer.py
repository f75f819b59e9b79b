"""verl: the ``optim`` section of a role that is trained."""

from __future__ import annotations

from typing import Any

from roll.config.dialects.rows import SCHEDULES, Look, Row, Sets, Unused, choices, no_effect, plain
from roll.config.errors import FixableError


def optimizer_rows(section: str, target: str, *, of_demonstrations: bool = False) -> tuple[Row, ...]:
    """Return the rows of an ``optim`` section.

    Args:
        section: The guide's section.
        target: The native one.
        of_demonstrations: Whether only trainers of demonstrations have the section.
    """
    rows = _rows(section, target)
    return tuple(_demonstrated(row) for row in rows) if of_demonstrations else rows


def _demonstrated(row: Row) -> Row:
    """Return a row that counts in supervised fine-tuning only."""
    if not row.targets:
        return row
    plainly, targets = row.convert, row.targets

    def convert(value: Any, look: Look) -> Any:
        if not look.demonstrates:
            return Unused("a key of supervised fine-tuning")
        outcome = value if plainly is None else plainly(value, look)
        return outcome if isinstance(outcome, Sets | Unused) else Sets(dict.fromkeys(targets, outcome))

    return Row(row.key, note=f"SFT: {', '.join(f'`{path}`' for path in targets)}", convert=convert)


def _rows(section: str, target: str) -> tuple[Row, ...]:
    return (
        *plain(
            section,
            target,
            lr="learning_rate",
            weight_decay="weight_decay",
            lr_warmup_steps_ratio="warmup_ratio",
        ),
        Row(f"{section}.lr_warmup_steps", f"{target}.warmup_steps", "below 0 leaves it to the ratio", _warmup_steps),
        Row(
            f"{section}.warmup_style",
            f"{target}.lr_scheduler_type",
            "`constant` is `constant_with_warmup`",
            choices(SCHEDULES),
        ),
        Row(
            f"{section}.lr_scheduler_type",
            f"{target}.lr_scheduler_type",
            "`constant` is `constant_with_warmup`",
            choices(SCHEDULES),
        ),
        Row(
            f"{section}.lr_scheduler",
            f"{target}.lr_scheduler_type",
            "`constant` is `constant_with_warmup`",
            choices(SCHEDULES),
        ),
        Row(f"{section}.warmup_steps_ratio", f"{target}.warmup_ratio"),
        Row(
            f"{section}.lr_decay_style",
            f"{target}.lr_scheduler_type",
            "`constant` is `constant_with_warmup`",
            choices({**SCHEDULES, "WSD": "wsd"}),
        ),
        Row(
            f"{section}.betas",
            (f"{target}.adam_beta1", f"{target}.adam_beta2"),
            "",
            lambda value, look: _betas(value, look, target),
        ),
        Row(f"{section}.clip_grad", "max_grad_norm", "one limit for actor and critic"),
        Row(f"{section}.min_lr", f"{target}.min_lr_ratio", "over `lr`", _min_lr(section)),
        *no_effect("the optimiser is AdamW", f"{section}.optimizer", f"{section}.optimizer_impl"),
        *no_effect(
            "the schedule begins at 0 and ends with the run",
            f"{section}.lr_warmup_init",
            f"{section}.lr_decay_steps",
            f"{section}.num_cycles",
            f"{section}.lr_wsd_decay_steps",
            f"{section}.lr_wsd_decay_style",
        ),
        *no_effect("the weight decay is the same in every step", f"{section}.weight_decay_incr_style"),
        *no_effect(
            "a run that is resumed goes on with its own schedule", f"{section}.use_checkpoint_opt_param_scheduler"
        ),
        *no_effect(
            "where the optimiser keeps its states is the strategy's to say", f"{section}.override_optimizer_config"
        ),
        Row(f"{section}.min_lr_ratio", f"{target}.min_lr_ratio", "null is 0", lambda value, look: value or 0.0),
        *no_effect("the run lasts `max_steps`", f"{section}.total_training_steps"),
    )


def _warmup_steps(value: Any, look: Look) -> Any:
    return Unused() if isinstance(value, int) and value < 0 else value


def _betas(value: Any, look: Look, target: str) -> Any:
    if not isinstance(value, list) or len(value) != 2:
        raise FixableError("AdamW has two betas.", "write a list of two numbers, such as [0.9, 0.999].")
    return Sets({f"{target}.adam_beta1": value[0], f"{target}.adam_beta2": value[1]})


def _min_lr(section: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        peak = look(f"{section}.lr")
        if not all(isinstance(rate, int | float) and not isinstance(rate, bool) for rate in (value, peak)) or not peak:
            raise FixableError("it is a share of the peak here, and there is none.", f"set {section}.lr.")
        return value / peak

    return convert
