"""The configuration of learning from preferences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, Literal

from roll.config.dpo_keys import DPOKeys
from roll.config.errors import Problem
from roll.config.worker import WorkerConfig

_COLUMNS: Final = {"prompt": "prompt_key", "messages": "chosen_key and rejected_key"}
_WITHOUT_REFERENCE: Final = ("simpo", "orpo")
_BETAS: Final = {"simpo": 2.0}
"""The usual ones that are not 0.1."""
_READ_BY: Final = {
    "label_smoothing": ("sigmoid", "sigmoid_norm", "robust"),
    "simpo_gamma": ("simpo",),
    "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
    "completion_key": ("kto",),
    "label_key": ("kto",),
}
"""Keys that only some losses read."""


class DPOConfig(DPOKeys):
    """Everything that ``examples/start_dpo_pipeline.py`` reads."""

    program: ClassVar[str] = "examples/start_dpo_pipeline.py"

    @property
    def strength(self) -> float:
        """The beta of the loss."""
        return _BETAS.get(self.loss_type, 0.1) if self.beta is None else self.beta

    @property
    def supervised_weight(self) -> float:
        """The weight of the negative log-likelihood of chosen answers."""
        return float(self.loss_type == "orpo") if self.sft_loss_coef is None else self.sft_loss_coef

    @property
    def reference_kind(self) -> Literal["model", "adapters", "stored"] | None:
        """Where log-probs of the reference come from; ``None`` where the loss has none."""
        if self.loss_type in _WITHOUT_REFERENCE:
            return None
        if self.reference_log_probs != "auto":
            return self.reference_log_probs
        adapted = self.actor_train.model_args.lora_rank is not None and self.reference is None
        return "adapters" if adapted else "model"

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the policy, and the reference where it is a model of its own."""
        yield from super().roles()
        if self.reference_kind == "model":
            yield "reference", self.reference or self.actor_train

    def identity(self) -> dict[str, Any]:
        """Return the keys that must not change when the run is resumed."""
        kind = {"loss_type": self.loss_type, "beta": self.strength, "reference_log_probs": self.reference_kind}
        return {**super().identity(), **kind}

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from self.unread_columns(_COLUMNS)
        if self.beta == 0:
            yield Problem("beta", "at 0 nothing is learned.", "use a number above 0, such as 0.1.", self.beta)
        if self.label_smoothing >= 0.5:
            fix = "use less than 0.5; or swap chosen_key and rejected_key."
            yield Problem("label_smoothing", "half of the labels or more would be wrong.", fix, self.label_smoothing)
        kind, key = self.reference_kind, "reference_log_probs"
        if kind == "adapters" and self.actor_train.model_args.lora_rank is None:
            fix = "set actor_train.model_args.lora_rank, or reference_log_probs: model."
            yield Problem(key, "the policy has no adapters to switch off.", fix, kind)
        if kind in ("adapters", "stored") and self.reference is not None:
            fix = "remove the section reference, or set reference_log_probs: model."
            yield Problem("reference", f"with reference_log_probs: {kind} the policy is its own reference.", fix)
        if kind == "stored" and self.loss_type == "kto":
            fix = "set reference_log_probs: model, or adapters with lora_rank."
            what = "kto compares answers with other prompts too, which change with the order of rows."
            yield Problem(key, what, fix, kind)
        if self.loss_type == "kto" and self.rows_per_step < 2:
            fix = "raise per_device_train_batch_size or gradient_accumulation_steps."
            what = "kto compares an answer with other prompts of its step, which has one row."
            yield Problem("actor_train.training_args.per_device_train_batch_size", what, fix, self.rows_per_step)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect."""
        yield from super().cautions()
        for key, losses in _READ_BY.items():
            if key in self.model_fields_set and self.loss_type not in losses:
                yield f"{key}: has no effect with loss_type: {self.loss_type}; {' and '.join(losses)} read it."
        if self.reference_kind is None:
            for key in ("reference", "reference_log_probs"):
                if getattr(self, key) not in (None, "auto"):
                    yield f"{key}: has no effect, since {self.loss_type} compares with no reference."
