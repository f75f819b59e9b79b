"""The keys of the algorithm: PPO, advantages, rewards and losses, shared by every reinforcement-learning pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from roll.config.base import ConfigModel, NameList
from roll.config.worker import NonNegative, NonNegativeFloat, Positive

ADVANTAGE_ESTIMATORS: Final[Mapping[str, str]] = {
    "gae": "generalised advantage estimation, needs a critic",
    "reinforce": "discounted return",
    "grpo": "score against mean and deviation of the group",
    "rloo": "score against the mean of the others in the group",
    "reinforce_plus_plus": "discounted return, whitened over the batch",
    "reinforce_plus_plus_baseline": "score minus the group's mean, whitened over the batch",
    "remax": "score minus the greedy episode's",
    "opo": "score minus the group's length-weighted mean",
    "gigpo": "group term of the episode plus group term of equal states",
    "step_wise_grpo": "the group's advantage of the last step for all steps",
    "step_reinforce": "discounted return per turn minus the group's mean at that turn",
    "opmd": "score minus the group's mean or soft maximum",
}
"""Names of ``adv_estimator`` and what they mean."""

GROUP_ESTIMATORS: Final = frozenset(
    {"grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gigpo", "step_wise_grpo", "step_reinforce", "opmd"}
)
"""Estimators that compare the members of a group: with a group of one every advantage is 0."""

POLICY_LOSSES: Final[tuple[str, ...]] = (
    "ppo",
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
    "sft",
    "mix",
)
"""Names of ``policy_loss``."""

LOSS_AGGREGATIONS = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

_KL_ALIASES: Final = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


class AlgorithmConfig(ConfigModel):
    """How trajectories become gradients."""

    # PPO
    ppo_epochs: Positive = Field(1, description="Passes over each rollout batch.")
    mini_batches: Positive | None = Field(
        None,
        description="Optimiser steps per pass over the rollout batch. null: rollout batch / "
        "(`per_device_train_batch_size` · `gradient_accumulation_steps` · data-parallel width).",
    )
    max_grad_norm: NonNegativeFloat = Field(1.0, description="Gradient norm is clipped to this; 0 is off.")
    l2: NonNegativeFloat = Field(0.0, description="L2 penalty on the weights, as a loss term.")
    lambd: Annotated[float, Field(ge=0, le=1)] = Field(0.95, description="Lambda of `gae`.")
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Discount per token (`gae`, `reinforce`).")
    pg_clip: Annotated[float, Field(gt=0)] = Field(0.2, description="Clip range of the probability ratio.")
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
    kl_penalty: Literal["kl", "abs", "mse", "low_var_kl", "full"] = Field(
        "kl",
        description="Estimate of the divergence from the reference (`k1`, `k2`, `k3` are `kl`, `mse`, `low_var_kl`).",
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

    # Rewards
    use_reward_scaling: bool = Field(False, description="Divide rewards by a running deviation.")
    use_reward_norm: bool = Field(False, description="Subtract the running mean too; with `use_reward_scaling`.")
    reward_norm: Literal["batch", "group", "running"] | None = Field(
        None, description="Normalise scores over the batch, the prompt group, or running statistics."
    )
    reward_shift: bool = Field(False, description="In `reward_norm`, only subtract the mean.")
    reward_scale: bool = Field(False, description="In `reward_norm`, only divide by the deviation.")
    reward_clip: Annotated[float, Field(gt=0)] | None = Field(None, description="Clip rewards to ± this.")
    whiten_rewards: bool = Field(False, description="Whiten rewards before advantages are computed.")
    add_len_reward: bool = Field(False, description="Add a reward for the length of a response.")
    difficulty_loss_weight: bool = Field(False, description="Weigh samples by how hard their prompt is.")
    length_loss_weight: bool = Field(False, description="Weigh samples by their length.")

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

    # Loss
    policy_loss: str = Field("ppo", description=f"Policy loss: {', '.join(f'`{name}`' for name in POLICY_LOSSES)}.")
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
        return _KL_ALIASES.get(value, value) if isinstance(value, str) else value

    @property
    def clip_low(self) -> float:
        """Clip range of the ratio downwards."""
        return self.pg_clip if self.pg_clip_low is None else self.pg_clip_low

    @property
    def clip_high(self) -> float:
        """Clip range of the ratio upwards."""
        return self.pg_clip if self.pg_clip_high is None else self.pg_clip_high

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
