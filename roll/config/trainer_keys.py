"""The keys of every run that trains a model, whatever it learns from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from roll.config.checkpoint_checks import megatron_problems
from roll.config.env_manager import CustomEnvConfig
from roll.config.errors import Problem
from roll.config.optimizer_checks import optimizer_problems
from roll.config.run import RunConfig
from roll.config.worker import DataArgs, ModelArgs, NonNegativeFloat, TrainWorkerConfig, WorkerConfig

Head = Literal["language", "value", "score"]
"""What a model has behind its backbone: a vocabulary; one number per token; one number for a whole text."""

NAMED_BLOCKS: Final = (
    *("deepspeed_zero", "deepspeed_zero2", "deepspeed_zero2_cpuoffload"),
    *("deepspeed_zero3", "deepspeed_zero3_cpuoffload"),
)
"""Keys that exist to be interpolated: what refers to none of them means the same without them."""


class TrainerKeys(RunConfig):
    """The model that is trained, and how; reinforcement learning adds what samples (:class:`roll.config.RLConfig`)."""

    needs_rewards: ClassVar[bool] = False
    """Whether there is no other score than that of verifiers."""

    pretrain: str = Field(
        "toy",
        description="The policy: `toy`, `toy_math`, `toy_sokoban`, `toy_larger_sokoban`, `toy_choices`, `toy_mixed`, "
        "`toy_duel`, `toy_tools`, `toy_countdown`, `toy_taxi`, `toy_shallow`, `smollm2`, a path or a hub id.",
    )
    actor_train: TrainWorkerConfig = Field(default_factory=TrainWorkerConfig, description="The policy being trained.")
    optimizer_from: Annotated[Path, Field(strict=False)] | None = Field(
        None,
        description="Checkpoint of another run whose optimiser, with its weights, the run begins with; schedule and "
        "learning rate are those of this run. null: `pretrain` with a new optimiser.",
    )
    max_grad_norm: NonNegativeFloat = Field(1.0, description="Gradient norm is clipped to this; 0 is off.")
    l2: NonNegativeFloat = Field(0.0, description="L2 penalty on the weights, as a loss term.")

    # NAMED_BLOCKS
    deepspeed_zero: dict[str, Any] | None = Field(None, description="DeepSpeed options, stage 0.")
    deepspeed_zero2: dict[str, Any] | None = Field(None, description="DeepSpeed options, stage 2.")
    deepspeed_zero2_cpuoffload: dict[str, Any] | None = Field(
        None, description="DeepSpeed options, stage 2 with the optimiser in main memory."
    )
    deepspeed_zero3: dict[str, Any] | None = Field(None, description="DeepSpeed options, stage 3.")
    deepspeed_zero3_cpuoffload: dict[str, Any] | None = Field(
        None, description="DeepSpeed options, stage 3 with weights and optimiser in main memory."
    )

    @property
    def policy(self) -> TrainWorkerConfig:
        """The keys of the model that is trained."""
        return self.actor_train

    @property
    def policy_head(self) -> Head:
        """What it has behind its backbone."""
        return self.head("actor_train")

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the run has."""
        yield "actor_train", self.actor_train

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        if self.optimizer_from is not None:
            yield from optimizer_problems("optimizer_from", self.actor_train)
        if (asked := self.checkpoint_config.megatron_model) != "never":
            yield from megatron_problems("checkpoint_config.megatron_model", asked, self.actor_train)

    @property
    def total_optimizer_steps(self) -> int:
        """Optimiser steps of the whole run: those of the schedule of the learning rate."""
        return self.max_steps

    @property
    def training_temperature(self) -> float:
        """The temperature whose log-probs are trained."""
        return 1.0

    @property
    def compared_temperature(self) -> float:
        """The temperature at which distributions are compared."""
        return self.training_temperature

    @property
    def chat_template_key(self) -> str:
        """The key that names the chat template of every conversation with the policy."""
        return "actor_train.data_args.template"

    @property
    def conversation_args(self) -> DataArgs:
        """The section that says how every conversation with the policy is written."""
        return self.actor_train.data_args

    @property
    def chat_template(self) -> str | None:
        """The chat template; ``None`` for the one of the tokenizer."""
        chosen = self.conversation_args.template
        return None if chosen == "native" else chosen

    @property
    def answers_prompts(self) -> bool:
        """Whether a training step answers prompts of data files."""
        return False

    @property
    def image_key_of_rows(self) -> str | None:
        """The key by which rows of data files show pictures; ``None`` where they show none."""
        return None

    @property
    def played_tags(self) -> set[str]:
        """The tags of training and evaluation."""
        return set()

    def tags(self) -> dict[str, CustomEnvConfig]:
        """Return every tag of the configuration."""
        return {}

    def section_of(self, tag: str) -> str | None:
        """Return the section that says what a tag is; ``None`` for one of the library or of a module."""
        return None

    def smallest_sizes(self) -> Iterator[tuple[str, Any]]:
        """Yield sizes with which a step of such a run has little to do and does everything: key paths and values."""
        yield "actor_train.data_args.max_samples", 16

    def role(self, name: str) -> WorkerConfig:
        """Return the keys of a role that the run uses; one without keys of its own has those of the trained policy."""
        return dict(self.roles()).get(name) or self.actor_train

    def model_args(self, role: str) -> ModelArgs:
        """Return how a role loads its model: what it leaves open of the policy's model is what ``actor_train`` says."""
        own, policy = self.role(role).model_args, self.actor_train.model_args
        # An engine samples from the policy as it is trained, whatever its own keys name.
        samples = role == "actor_infer"
        if not samples and self.model_path(role) != self.model_path("actor_train"):
            return own
        changes: dict[str, Any] = {"dtype": policy.dtype} if own.dtype == "auto" else {}
        if samples or (own.rope_scaling is None and own.rope_theta is None):
            changes |= {"rope_scaling": policy.rope_scaling, "rope_theta": policy.rope_theta}
        return own.model_copy(update=changes) if changes else own

    def head(self, role: str) -> Head:
        """Return what the model of a role has behind its backbone."""
        return "value" if role == "critic" else "language"

    def model_path(self, role: str) -> str:
        """Return the path or hub id of the model that ``role`` loads."""
        worker = dict(self.roles()).get(role)
        named = None if worker is None else worker.model_args.model_name_or_path
        return self.pretrain if named is None else named

    def model_key(self, role: str) -> str:
        """Return the key that says so."""
        worker = dict(self.roles()).get(role)
        named = worker is not None and worker.model_args.model_name_or_path is not None
        return f"{role}.model_args.model_name_or_path" if named else "pretrain"
