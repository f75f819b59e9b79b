"""The keys of learning from preferences: the loss and the reference."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roll.config.pair_keys import PairKeys
from roll.config.worker import NonNegativeFloat, WorkerConfig


class DPOKeys(PairKeys):
    """The keys of learning from preferences; :class:`roll.config.dpo.DPOConfig` adds what they mean together."""

    loss_type: Literal["sigmoid", "sigmoid_norm", "robust", "ipo", "simpo", "orpo", "kto"] = Field(
        "sigmoid",
        description="The loss: `sigmoid` is DPO (with `label_smoothing` cDPO), `sigmoid_norm` the same of means per "
        "token; `kto` takes single answers with a label instead of pairs.",
    )
    beta: NonNegativeFloat | None = Field(
        None, description="Strength of the pull towards the reference; `orpo`: weight of its term. null: 0.1, simpo 2."
    )
    label_smoothing: NonNegativeFloat = Field(
        0.0, description="Share of pairs that are probably the wrong way round: `sigmoid` (cDPO), `robust`. Below 0.5."
    )
    simpo_gamma: float = Field(0.5, description="`simpo`: margin of rewards that is aimed at.")
    desirable_weight: NonNegativeFloat = Field(1.0, description="`kto`: weight of desirable answers.")
    undesirable_weight: NonNegativeFloat = Field(1.0, description="`kto`: weight of undesirable answers.")
    sft_loss_coef: NonNegativeFloat | None = Field(
        None, description="Weight of the negative log-likelihood of chosen answers, added. null: 0, orpo 1."
    )
    reference_log_probs: Literal["auto", "model", "adapters", "stored"] = Field(
        "auto",
        description="Where log-probs of the reference come from: a second `model` beside the policy, the policy with "
        "its `adapters` switched off, or `stored` ones that the policy computes before its first step. auto: adapters "
        "with `lora_rank`, else model; `simpo` and `orpo` need none.",
    )
    reference: WorkerConfig | None = Field(
        None, description="The reference. null: the policy before training, scored where the policy trains."
    )

    completion_key: str | None = Field(None, description="`kto`: column with an answer.")
    label_key: str | None = Field(None, description="`kto`: column that says whether it is desirable.")

    @property
    def takes_judged(self) -> bool:
        """Whether rows are single answers with a label, instead of pairs."""
        return self.loss_type == "kto"
