"""The keys of the algorithm: PPO, advantages, rewards and losses, shared by every reinforcement-learning pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from roll.config.base import ConfigModel, NameList
from roll.config.errors import FixableError
from roll.config.worker import NonNegative, NonNegativeFloat, Positive

ADVANTAGE_ESTIMATORS: Final[Mapping[str, str]] = {
    "gae": "generalised advantage estimation, needs a critic",
    "reinforce": "discounted return",
    "grpo": "score against mean and deviation of the group",
    "grpo_passk": "the group's best against its second best, for pass@k",
    "gpg": "score minus the group's mean, divided by the share of scores that are not 0",
    "rloo": "score against the mean of the others in the group",
    "reinforce_plus_plus": "discounted return, whitened over the batch",
    "reinforce_plus_plus_baseline": "score minus the group's mean, whitened over the batch",
    "remax": "score minus the greedy episode's",
    "opo": "score minus the group's length-weighted mean",
    "gigpo": "group term of the episode plus group term of equal states",
    "step_wise_grpo": "the group's advantage of the last step for all steps",
    "agentic_reinforce": "discounted return per turn",
    "step_reinforce": "discounted return per turn minus the group's mean at that turn",
    "opmd": "score minus the group's mean or soft maximum",
    "asymre": "score minus a baseline below the group's mean",
    "rec": "score against the group's mean, of failures no more than there are successes",
}
"""Names of ``adv_estimator`` and what they mean."""

GROUP_ESTIMATORS: Final = frozenset(
    {
        "grpo",
        "grpo_passk",
        "gpg",
        "rloo",
        "reinforce_plus_plus_baseline",
        "opo",
        "gigpo",
        "step_wise_grpo",
        "step_reinforce",
        "opmd",
        "asymre",
        "rec",
    }
)
"""Estimators that compare the members of a group: with a group of one every advantage is 0."""

POLICY_LOSSES: Final[tuple[str, ...]] = (
    "ppo",
    "clip_cov",
    "kl_cov",
    "gspo",
    "gspo_segment",
    "cispo",
    "topr",
    "tis",
    "kimi15",
    "vanilla",
    "sapo",
    "gmpo",
    "opmd",
    "opmd_kimi",
    "opmd_pairwise",
    "sppo",
    "rec",
    "sft",
    "mix",
    "chord",
    "luffy",
)
"""Names of ``policy_loss``."""

LOSS_AGGREGATIONS = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

ALGORITHM_TYPES = Literal["ppo", "grpo", "opmd", "asymre", "sppo", "rec", "dpo", "sft", "mix", "mix_chord", "luffy"]

KL_ALIASES: Final[Mapping[str, str]] = {
    "k1": "kl",
    "k2": "mse",
    "k3": "low_var_kl",
    "k1+": "kl+",
    "k2+": "mse",
    "k3+": "low_var_kl+",
    "mse+": "mse",
}
"""Other names of ``kl_penalty``. ``mse`` has its own gradient, so that ``mse+`` is no other estimate."""

UNBIASED_BY_RATIO: Final = ("kl", "low_var_kl")
"""Estimates whose gradient ``use_bias_correction_kl`` makes that of the divergence: their mean is the divergence."""


class OverlongBuffer(ConfigModel):
    """Soft punishment of responses that come close to the limit (DAPO)."""

    enable: bool = Field(False, description="Subtract the punishment from the score.")
    len: Positive = Field(512, description="Tokens before the response limit over which it grows from 0.")
    penalty_factor: NonNegativeFloat = Field(1.0, description="Punishment at the limit.")


class SamplerCorrection(ConfigModel):
    """Weights against the mismatch r = trainer's / sampler's probability (other kernels, precision, older weights)."""

    mode: Literal["tis", "mask", "geometric_sequence"] | None = Field(
        None,
        description="`tis`: weight min(r, `cap`); `mask`: 1 where r lies in [`low`, `high`], else 0; "
        "`geometric_sequence`: the same for whole sequences by their geometric mean. null only reports. Unset, it is "
        "`tis` where sampling runs ahead (`async_generation_ratio`) or weights are held back "
        "(`model_update_frequency`).",
    )
    level: Literal["token", "segment", "sequence", "geometric"] = Field(
        "token", description="r of a token, product over its turn (`segment`) or sequence, or geometric mean."
    )
    cap: Annotated[float, Field(gt=0)] = Field(2.0, description="Largest weight of `tis`.")
    low: NonNegativeFloat = Field(0.5, description="Smallest r that the masks keep.")
    high: Annotated[float, Field(gt=0)] = Field(
        2.0, description="Largest r that the masks keep.", validate_default=True
    )

    @field_validator("high")
    @classmethod
    def _ordered(cls, high: float, info: ValidationInfo) -> float:
        return _not_below(high, info, "low")


def _not_below(high: float, info: ValidationInfo, low_key: str) -> float:
    """Refuse an upper bound below the lower one, which was validated before it."""
    low = info.data.get(low_key)
    if low is not None and high < low:
        raise FixableError(f"it is below {low_key} {low}.", f"use {low} or more, or lower {low_key}.")
    return high


class AlgorithmConfig(ConfigModel):
    """How trajectories become gradients."""

    algorithm_type: ALGORITHM_TYPES | None = Field(
        None, description="A named set of estimator, loss and aggregation: fills what is not set. null: none."
    )

    # PPO
    ppo_epochs: Positive = Field(1, description="Passes over each rollout batch.")
    lambd: Annotated[float, Field(ge=0, le=1)] = Field(0.95, description="Lambda of `gae`.")
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="Discount per token (`gae`, `reinforce`), or per turn (`agentic_reinforce`)."
    )
    pg_clip: Annotated[float, Field(gt=0)] = Field(
        0.2,
        description="Clip range of the probability ratio. Not set: the range of the loss (`gspo` 3e-4 and 4e-4, "
        "`gmpo` 0.4, others 0.2).",
    )
    pg_clip_low: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Clip range downwards. null: `pg_clip`."
    )
    pg_clip_high: Annotated[float, Field(gt=0)] | None = Field(None, description="Clip range upwards. null: `pg_clip`.")
    dual_clip_loss: bool | Annotated[float, Field(gt=1)] = Field(
        False, description="Bound the loss of negative advantages by c·|A|; true is c = 3, a number above 1 is c."
    )
    value_clip: Annotated[float, Field(gt=0)] | None = Field(
        0.2, description="Clip range of the critic's values. null is off."
    )
    critic_warmup: NonNegative = Field(0, description="Steps in which only the critic is trained.")
    old_log_probs: Literal["recompute", "sampler"] = Field(
        "recompute", description="Denominator of the ratio: computed by the trainer, or taken from the sampler."
    )

    # Kullback-Leibler term
    kl_penalty: Literal["kl", "abs", "mse", "low_var_kl", "kl+", "abs+", "low_var_kl+", "full"] = Field(
        "kl",
        description="Estimate of the divergence from the reference (`k1`, `k2`, `k3` are `kl`, `mse`, `low_var_kl`); "
        "`+` behind it keeps the value and takes the gradient of `mse`.",
    )
    init_kl_coef: NonNegativeFloat = Field(
        0.0, description="Initial weight of the divergence in the reward; above 0 it needs a `reference`."
    )
    add_token_level_kl: bool = Field(
        False, description="Charge the divergence in the reward at each token; false charges its sum at the last one."
    )
    target_kl: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Divergence at which the adaptive controller aims. null keeps the weight fixed."
    )
    kl_horizon: Positive = Field(10_000, description="Samples over which the adaptive controller reacts.")
    use_kl_loss: bool = Field(False, description="Add the divergence to the loss; needs a `reference`.")
    kl_loss_coef: NonNegativeFloat = Field(0.0, description="Weight of the divergence in the loss.")
    use_bias_correction_kl: bool = Field(
        False,
        description="Weigh the divergence in the loss by the ratio to the policy that sampled (`kl` and `low_var_kl`), "
        "which makes its gradient unbiased.",
    )

    # Rewards
    use_reward_scaling: bool = Field(
        False, description="Divide scores by the deviation of all scores so far; short for `reward_norm: running`."
    )
    use_reward_norm: bool = Field(False, description="Subtract their mean too; with `use_reward_scaling`.")
    reward_norm: Literal["batch", "group", "running"] | None = Field(
        None, description="Normalise scores over the batch, the prompt group, or all scores so far."
    )
    reward_shift: bool = Field(False, description="In `reward_norm`, only subtract the mean.")
    reward_scale: bool = Field(False, description="In `reward_norm`, only divide by the deviation.")
    reward_clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Clip scores to ± this, before `reward_norm`."
    )
    whiten_rewards: bool = Field(
        False, description="Whiten what the estimator reads (token rewards, turn rewards, scores) over the batch."
    )
    add_len_reward: bool = Field(
        False,
        description="Add 0.5 for the shortest response of a group to -0.5 for the longest; at most 0 where the score "
        "is not positive.",
    )
    overlong_buffer: OverlongBuffer = Field(
        default_factory=OverlongBuffer, description="Soft punishment of responses near the limit."
    )

    # What the loss sees
    difficulty_loss_weight: bool = Field(
        False, description="Weigh samples in the policy loss, 0.5 for the easiest prompt to 1.5 for the hardest."
    )
    length_loss_weight: bool = Field(
        False, description="Weigh samples in the policy loss, 1.5 for the shortest to 0.5 for the longest."
    )
    max_len_mask: bool = Field(False, description="Leave responses that were cut off at the limit out of the loss.")
    difficulty_mask: bool = Field(
        False,
        description="Leave samples out of the loss whose difficulty is outside the thresholds; difficulty is 1 - the "
        "mean score of the group, each score clamped to [0, 1].",
    )
    difficulty_low_threshold: Annotated[float, Field(ge=0, le=1)] = Field(0.1, description="Smallest difficulty kept.")
    difficulty_high_threshold: Annotated[float, Field(ge=0, le=1)] = Field(
        0.95, description="Largest difficulty kept.", validate_default=True
    )
    sampler_correction: SamplerCorrection = Field(
        default_factory=SamplerCorrection, description="Correction for a sampler that differs from the trainer."
    )

    # Advantages
    adv_estimator: str = Field(
        "grpo",
        description="Advantage estimator: " + "; ".join(f"`{k}` ({v})" for k, v in ADVANTAGE_ESTIMATORS.items()) + ".",
    )
    whiten_advantages: bool = Field(False, description="Whiten advantages over the batch.")
    advantage_clip: Annotated[float, Field(gt=0)] | None = Field(None, description="Clip advantages to ± this.")
    step_reward_gamma: Annotated[float, Field(ge=0, le=1)] = Field(
        0.95, description="Discount per turn (`step_reinforce`, `gigpo`)."
    )
    step_reward_weight: NonNegativeFloat = Field(1.0, description="Weight of the per-turn term (`gigpo`).")
    norm_adv_by_std_in_grpo: bool = Field(
        True,
        description="Divide by the group's deviation (`grpo`, `grpo_passk`, `gigpo`, `step_wise_grpo`); false is Dr. "
        "GRPO.",
    )
    advantage_options: dict[str, Any] = Field(
        default_factory=dict, description="Further options of the estimator by name (`ddof`, `eps`, `tau`, …)."
    )

    # Loss
    policy_loss: str = Field("ppo", description=f"Policy loss: {', '.join(f'`{name}`' for name in POLICY_LOSSES)}.")
    policy_loss_options: dict[str, Any] = Field(
        default_factory=dict, description="Further options of the policy loss by name (`tau`, `cap`, `level`, …)."
    )
    loss_agg_mode: LOSS_AGGREGATIONS = Field("seq-mean-token-mean", description="How token losses become one number.")
    rl_loss_coef: NonNegativeFloat = Field(1.0, description="Weight of the policy loss.")
    entropy_loss_coef: float = Field(0.0, description="Weight of the entropy bonus.")
    sft_loss_coef: NonNegativeFloat = Field(0.0, description="Weight of a supervised loss on positive samples.")
    use_topr_loss: bool = Field(False, description="Use the `topr` policy loss (Tapered Off-Policy REINFORCE).")
    algorithm_modules: NameList = Field(
        default_factory=list, description="Python modules to import that register estimators or losses of your own."
    )

    @field_validator("kl_penalty", mode="before")
    @classmethod
    def _kl_alias(cls, value: Any) -> Any:
        return KL_ALIASES.get(value, value) if isinstance(value, str) else value

    @field_validator("reward_scale")
    @classmethod
    def _one_half_of_normalisation(cls, scale: bool, info: ValidationInfo) -> bool:
        if scale and info.data.get("reward_shift"):
            raise FixableError(
                "reward_shift (mean only) and reward_scale (deviation only) exclude each other.",
                "set both to false for mean and deviation.",
            )
        return scale

    @field_validator("difficulty_high_threshold")
    @classmethod
    def _thresholds_ordered(cls, high: float, info: ValidationInfo) -> float:
        return _not_below(high, info, "difficulty_low_threshold")

    @property
    def clip_low(self) -> float | None:
        """Clip range of the ratio downwards; ``None`` where the user set none, for that of the loss."""
        return self._clip("pg_clip_low")

    @property
    def clip_high(self) -> float | None:
        """Clip range of the ratio upwards; ``None`` where the user set none, for that of the loss."""
        return self._clip("pg_clip_high")

    def _clip(self, side: str) -> float | None:
        own: float | None = getattr(self, side)
        if own is not None:
            return own
        return self.pg_clip if "pg_clip" in self.model_fields_set else None

    @property
    def dual_clip(self) -> float | None:
        """The bound c of the dual-clip loss, ``None`` when it is off."""
        if isinstance(self.dual_clip_loss, bool):
            return 3.0 if self.dual_clip_loss else None
        return self.dual_clip_loss

    @property
    def policy_loss_name(self) -> str:
        """Name of the policy loss; ``use_topr_loss`` is another way to write ``topr``."""
        return "topr" if self.use_topr_loss else self.policy_loss

    @property
    def kl_in_reward(self) -> Literal["off", "token", "sequence"]:
        """Where the divergence is charged in the reward."""
        if self.init_kl_coef == 0:
            return "off"
        return "token" if self.add_token_level_kl else "sequence"

    @property
    def needs_reference(self) -> bool:
        """Whether a term compares the policy with a reference model."""
        return self.use_kl_loss or self.init_kl_coef > 0
