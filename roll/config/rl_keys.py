"""The keys that every run of reinforcement learning has: the algorithm, and the models that it compares with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from roll.config.algorithm import AlgorithmConfig, SamplerCorrection
from roll.config.experience import ExperienceConfig, Mode
from roll.config.expert import ExpertConfig
from roll.config.sampling_keys import SamplingKeys
from roll.config.serving import ServeConfig
from roll.config.worker import TrainWorkerConfig, WorkerConfig

_OTHER_ROLES: Final = ("reference", "critic", "reward")


class RLKeys(SamplingKeys, AlgorithmConfig):
    """The keys of reinforcement learning; :class:`roll.config.rl.RLConfig` adds what they mean together."""

    mode: Mode = Field(
        "both",
        description="`both`: samples and learns, with `experience` also again from what it sampled before; `explore`: "
        "samples into the store `experience`; `train`: learns from what is there; `bench`: evaluates the checkpoints "
        "of another run as they appear; `serve`: answers for the policy as the servers of OpenAI and Anthropic do.",
    )
    serve: ServeConfig = Field(default_factory=ServeConfig, description="Where `mode: serve` answers.")
    experience: ExperienceConfig | None = Field(
        None, description="Where groups lie between what samples and what learns (`mode`); a path alone is a folder."
    )
    data_plane: Literal["auto", "driver", "workers"] = Field(
        "auto",
        description="`cluster: ray`: where the tokens of episodes and answers go. `driver`: through the program "
        "itself; `workers`: from workers with environments, and those that grade, to a worker that learns for it, so "
        "that the program needs no more memory for larger steps; `auto`: `workers` from 4 million tokens per step on, "
        "where nothing of the run is on the program's machine alone.",
    )
    reference: WorkerConfig | None = Field(
        None,
        description="Frozen policy that divergence is measured from. null: with `lora_rank`, the policy with its "
        "adapters switched off, which takes no second model.",
    )
    expert: ExpertConfig | None = Field(
        None,
        description="What experts wrote, beside what is sampled (`policy_loss`: `mix`, `chord`, `luffy`). null: none.",
    )
    critic: TrainWorkerConfig | None = Field(None, description="Value model (`adv_estimator: gae`).")
    reward: WorkerConfig | None = Field(None, description="Reward model.")

    @property
    def is_own_reference(self) -> bool:
        """Whether divergence is measured from the policy itself, with its LoRA adapters switched off."""
        adapted = self.actor_train.model_args.lora_rank is not None
        # Over a whole vocabulary it is computed from what a second model has in front of its output layer.
        return self.needs_reference and self.reference is None and adapted and self.kl_penalty != "full"

    @property
    def learns_from_store(self) -> bool:
        """Whether it learns from what other runs sampled, if it learns: nothing is sampled for training."""
        return self.mode in ("train", "bench", "serve")

    @property
    def leased_per_step(self) -> int | None:
        """Trajectories that a step learns from, where that is another number than a step samples."""
        if self.experience is None or self.mode in ("explore", "bench", "serve"):
            return None
        return self.experience.train_batch_size

    @property
    def replays(self) -> bool:
        """Whether it learns from what it sampled before, through a store of its own."""
        return self.mode == "both" and self.experience is not None and self.experience.type != "memory"

    @property
    def is_stale(self) -> bool:
        """Whether what is learned from may be of older weights than those that are trained."""
        return super().is_stale or self.learns_from_store or self.replays

    @property
    def correction(self) -> SamplerCorrection:
        """The correction that acts: the one that was set, else on where samples may be stale."""
        chosen = self.sampler_correction
        if self.is_stale and "mode" not in chosen.model_fields_set and self.old_log_probs != "sampler":
            return chosen.model_copy(update={"mode": "tis"})
        return chosen

    @property
    def epochs_per_rollout(self) -> int:
        """Passes over each rollout batch."""
        return self.ppo_epochs

    def expert_rows_beside(self, sampled: int) -> int:
        """Return the rows of experts that learn in one optimiser step with so many sampled trajectories."""
        return 0 if self.expert is None else self.expert.rows_beside(sampled)

    def roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the name and keys of every role that the run has."""
        yield from super().roles()
        for name in _OTHER_ROLES:
            worker = getattr(self, name)
            if worker is not None:
                yield name, worker

    def model_path(self, role: str) -> str:
        """Return the path or hub id of the model that ``role`` loads."""
        worker = dict(self.roles()).get(role)
        named = None if worker is None else worker.model_args.model_name_or_path
        if named is None and role in ("critic", "reward"):
            named = self.reward_pretrain
        return super().model_path(role) if named is None else named

    def model_key(self, role: str) -> str:
        """Return the key that says so."""
        key = super().model_key(role)
        named = key != "pretrain" or role not in ("critic", "reward") or self.reward_pretrain is None
        return key if named else "reward_pretrain"
