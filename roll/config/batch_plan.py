"""What the batch keys amount to: groups → trajectories → optimiser steps → micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from roll.config.env_manager import EnvManagerConfig
from roll.config.sampling_keys import DynamicSampling, SamplingKeys


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The episodes of one training step or evaluation.

    Attributes:
        groups: Groups of environments, by tag in the order of the configuration.
        group_size: Environments of a group.
        episodes_per_environment: Episodes that each environment runs.
        trajectories: Episodes in total.
        most: Groups that may be tried in all; ``None`` where groups are not replaced.
    """

    groups: list[tuple[str, int]]
    group_size: int
    episodes_per_environment: int
    trajectories: int
    most: int | None = None

    @property
    def groups_per_rollout(self) -> list[tuple[str, int]]:
        """Groups of each tag that one rollout plays, where environments play several episodes."""
        return [(tag, count * self.episodes_per_environment) for tag, count in self.groups]

    def short(self) -> str:
        """Return a few words, for a headline."""
        return f"{sum(count for _, count in self.groups)} groups of {self.group_size}"

    def describe(self) -> str:
        """Return one line, for people."""
        count = sum(number for _, number in self.groups)
        tags = ", ".join(f"{tag} {number}" for tag, number in self.groups)
        episodes = f" × {self.episodes_per_environment} episodes" if self.episodes_per_environment > 1 else ""
        refill = f", replacing those without variance from up to {self.most} groups" if self.most else ""
        return f"{count} groups ({tags}) × {self.group_size}{episodes} → {self.trajectories} trajectories{refill}"


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The responses to prompts of one training step or evaluation.

    Attributes:
        prompts: Prompts; ``None`` for all that the files hold.
        responses: Responses to each.
        refill: Prompts that may be tried in all; ``None`` where groups are not replaced.
    """

    prompts: int | None
    responses: int
    refill: int | None = None

    @property
    def trajectories(self) -> int | None:
        """Responses in total, where the number of prompts is known."""
        return None if self.prompts is None else self.prompts * self.responses

    def short(self) -> str:
        """Return a few words, for a headline."""
        return f"{self.prompts} prompts × {self.responses} responses"

    def describe(self) -> str:
        """Return one line, for people."""
        if self.prompts is None:
            return f"every validation prompt × {self.responses} responses"
        refill = f", replacing groups without variance from up to {self.refill} prompts" if self.refill else ""
        return f"{self.prompts} prompts × {self.responses} responses → {self.trajectories} trajectories{refill}"


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """A training step or evaluation that has both.

    Attributes:
        parts: Episodes, and responses to prompts.
    """

    parts: tuple[RolloutPlan, PromptPlan]

    @property
    def trajectories(self) -> int | None:
        """Episodes and responses, where the number of prompts is known."""
        episodes, prompts = self.parts
        return None if prompts.trajectories is None else episodes.trajectories + prompts.trajectories

    def short(self) -> str:
        """Return a few words, for a headline."""
        return " + ".join(part.short() for part in self.parts)

    def describe(self) -> str:
        """Return one line, for people."""
        return "; ".join(part.describe() for part in self.parts)


Sampled = RolloutPlan | PromptPlan | MixedPlan


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How the trajectories of a step become optimiser steps.

    Attributes:
        trajectories: Trajectories of a training step.
        epochs: Passes over them.
        mini_batches: Optimiser steps per pass.
        data_parallel: Model replicas that share a mini-batch.
        per_device_batch: Most samples of one forward/backward pass, unless a token budget limits it.
        max_tokens_per_microbatch: Token budget of one pass, if there is one.
        expert_rows: Rows that experts wrote, of one optimiser step.
    """

    trajectories: int
    epochs: int
    mini_batches: int
    data_parallel: int
    per_device_batch: int
    max_tokens_per_microbatch: int | None
    expert_rows: int = 0

    @property
    def trajectories_per_optimizer_step(self) -> int:
        """Trajectories of one optimiser step, over all replicas."""
        return self.trajectories // self.mini_batches

    @property
    def optimizer_steps(self) -> int:
        """Optimiser steps of one training step."""
        return self.epochs * self.mini_batches

    @property
    def micro_batches(self) -> int:
        """Forward/backward passes per optimiser step on one device, where one trajectory is one sample."""
        rows = self.trajectories_per_optimizer_step + self.expert_rows
        return -(-rows // (self.per_device_batch * self.data_parallel))

    def describe(self) -> str:
        """Return one line, for people."""
        if self.max_tokens_per_microbatch is not None:
            micro = f"micro-batches of at most {self.max_tokens_per_microbatch} tokens"
        else:
            micro = f"{self.micro_batches} micro-batches of at most {self.per_device_batch} samples"
        replicas = f" on each of {self.data_parallel} replicas" if self.data_parallel > 1 else ""
        experts = f" and {self.expert_rows} expert rows" if self.expert_rows else ""
        return (
            f"{self.trajectories} trajectories → {self.epochs} × {self.mini_batches} optimiser steps of "
            f"{self.trajectories_per_optimizer_step}{experts} → {micro}{replicas}"
        )


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The resolved batch plan of a run.

    Attributes:
        train: What a training step samples.
        val: What an evaluation samples; ``None`` where there is none.
        update: Optimiser steps of a training step.
        max_steps: Training steps of the run.
        sequence_length: Most tokens of a sample.
        max_new_tokens: Most tokens of a response.
    """

    train: Sampled
    val: Sampled | None
    update: UpdatePlan
    max_steps: int
    sequence_length: int
    max_new_tokens: int

    @property
    def max_tokens_per_step(self) -> int:
        """Upper bound on the tokens of the trajectories of a training step."""
        return self.update.trajectories * self.sequence_length

    @property
    def total_optimizer_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.max_steps * self.update.optimizer_steps

    def describe(self) -> str:
        """Return a few lines that say what a step is made of."""
        return "\n".join(
            [
                f"rollout   {self.train.describe()}",
                f"tokens    at most {self.sequence_length} per sample, {self.max_new_tokens} per response, "
                f"{self.max_tokens_per_step:,} per step",
                f"update    {self.update.describe()}",
                f"evaluate  {self.val.describe() if self.val else 'never'}",
                f"run       {self.max_steps} steps, {self.total_optimizer_steps} optimiser steps",
            ]
        )


def batch_plan(config: SamplingKeys, train: Sampled, val: Sampled | None, max_new_tokens: int) -> BatchPlan:
    """Return the batch plan of a run.

    Args:
        config: The keys, which have been checked.
        train: What a training step samples.
        val: What an evaluation samples.
        max_new_tokens: Most tokens of a response.
    """
    return BatchPlan(
        train=train,
        val=val,
        update=update_plan(config),
        max_steps=config.max_steps,
        sequence_length=config.sequence_length,
        max_new_tokens=max_new_tokens,
    )


def global_train_batch(config: SamplingKeys) -> int | None:
    """Return the trajectories of one optimiser step as the role's own keys give them, ``None`` where they do not.

    The guide's formula: per-device batch · accumulation · devices / (tensor · pipeline · context parallel size).
    """
    worker = config.actor_train
    accumulation = worker.training_args.gradient_accumulation_steps
    if accumulation is None:
        return None
    return worker.training_args.per_device_train_batch_size * accumulation * worker.data_parallel_size


def update_plan(config: SamplingKeys) -> UpdatePlan:
    """Return how a rollout batch is cut into optimiser steps."""
    by_role = global_train_batch(config)
    if config.mini_batches is not None:
        mini_batches = config.mini_batches
    else:
        mini_batches = 1 if by_role is None else max(1, config.samples_per_step // by_role)
    return UpdatePlan(
        trajectories=config.samples_per_step,
        epochs=config.epochs_per_rollout,
        mini_batches=mini_batches,
        data_parallel=config.actor_train.data_parallel_size,
        per_device_batch=config.actor_train.training_args.per_device_train_batch_size,
        max_tokens_per_microbatch=config.actor_train.training_args.max_tokens_per_microbatch,
        expert_rows=config.expert_rows_beside(config.samples_per_step // mini_batches),
    )


def rollout_plan(
    manager: EnvManagerConfig, batch_size: int, dynamic_sampling: DynamicSampling | None = None
) -> RolloutPlan:
    """Return the episodes of a rollout of ``batch_size`` trajectories."""
    groups = batch_size // manager.group_size
    replacing = dynamic_sampling is not None and dynamic_sampling.enable
    return RolloutPlan(
        groups=manager.groups_per_tag(),
        group_size=manager.group_size,
        episodes_per_environment=batch_size // manager.environments,
        trajectories=batch_size,
        most=groups * dynamic_sampling.max_batches if replacing and dynamic_sampling else None,
    )
