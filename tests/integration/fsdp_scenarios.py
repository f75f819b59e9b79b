"""What ranks and a single process both do, so that the results can be compared."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForTokenClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from roll.models.lora import add_adapters
from roll.pipelines.learning.objective import PolicyObjective
from roll.pipelines.learning.value_objective import ValueObjective
from roll.strategies.base import Loss
from roll.strategies.jobs import TrainOptions
from roll.strategies.parking import Parking
from roll.strategies.training.pytorch.loading import load_on_first_rank
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.ranks import Ranks
from roll.strategies.training.supervised import SupervisedLoss

VOCABULARY = 61
LONGEST = 18


@dataclass(frozen=True)
class Case:
    """A training run.

    Attributes:
        shares: Rows of each data rank; their sum is the number of rows of the whole batch.
        critic: Train a value model.
        experts: A mixture of experts.
        window: Tokens that a token sees; ``None`` for all before it.
        heads: Attention heads.
        key_heads: Heads of keys and values.
        tied: Whether head and embeddings are one parameter.
        dropout: Of the attention.
        double: float64 weights: differences are then those of the method, not of rounding.
        train: Changes to the training options.
        fsdp: Sharding options.
        lora: Rank of adapters; ``None`` trains all weights.
        silent: Ranks whose rows have no advantage, so that they contribute nothing.
        imitates: Learn from demonstrations.
    """

    shares: tuple[int, ...] = (4, 4)
    critic: bool = False
    experts: bool = False
    window: int | None = None
    heads: int = 4
    key_heads: int = 2
    tied: bool = True
    dropout: float = 0.0
    double: bool = True
    train: dict[str, Any] = field(default_factory=dict)
    fsdp: dict[str, Any] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    lora: int | None = None
    imitates: bool = False

    def model(self, seed: int = 3) -> PreTrainedModel:
        torch.manual_seed(seed)
        sizes: dict[str, Any] = dict(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=8,
            intermediate_size=25,
            max_position_embeddings=64,
            initializer_range=0.2,
            pad_token_id=None,
            tie_word_embeddings=self.tied,
            attention_dropout=self.dropout,
            num_labels=1,
            classifier_dropout=0.0,
        )
        model: PreTrainedModel
        if self.experts:
            experts = dict(num_experts=4, num_experts_per_tok=1, moe_intermediate_size=12)
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, experts_implementation="eager"))
        elif self.window is not None:
            model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=self.window))
        elif self.critic:
            model = Qwen3ForTokenClassification(Qwen3Config(**sizes))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**sizes))
        return model.double() if self.double else model

    def trainer(self, seed: int = 3) -> FsdpTrainStrategy:
        options = dict(
            learning_rate=1e-2,
            weight_decay=0.1,
            epsilon=1e-4,
            max_grad_norm=0.1,
            lr_scheduler_type="cosine",
            total_steps=12,
            max_tokens_per_microbatch=40,
        )
        load = self.model if seed == 3 else lambda: self.model(seed)
        model = load_on_first_rank(load, self.adapt) if self.fsdp.get("meta_init") else load()
        if not self.fsdp.get("meta_init"):
            self.adapt(model)
        return FsdpTrainStrategy(
            model,
            TrainOptions(**{**options, **self.train}),
            predicts="values" if self.critic else "log_probs",
            fsdp=FsdpOptions.from_mapping(self.fsdp),
        )

    def adapt(self, model: PreTrainedModel) -> None:
        if self.lora is not None:
            add_adapters(model, self.lora)

    def loss(self) -> Loss:
        if self.critic:
            return ValueObjective(clip=0.2, aggregation="token-mean")
        if self.imitates:
            return SupervisedLoss()
        options = {"clip_low": 0.2, "clip_high": 0.3}
        if self.silent:
            return PolicyObjective(options=options)
        return PolicyObjective(options=options, entropy_weight=0.01, kl_weight=0.05, aggregation="seq-mean-token-mean")

    def share(self, batch: TensorDict) -> TensorDict:
        """Return the rows of this rank; all of them where there is one process."""
        ranks = Ranks()
        return batch if ranks.size == 1 else batch[self.rows(ranks.rank // self.fsdp.get("ulysses_size", 1))]

    def rows(self, rank: int) -> slice:
        start = sum(self.shares[:rank])
        return slice(start, start + self.shares[rank])

    def batch(self, seed: int = 0) -> TensorDict:
        """Rows of unequal length with unequal masks; one without a response."""
        rows, noise = sum(self.shares), torch.Generator().manual_seed(seed)
        lengths = torch.randint(4, LONGEST + 1, (rows,), generator=noise)
        lengths[0] = LONGEST
        inside = torch.arange(LONGEST).expand(rows, LONGEST) < lengths.unsqueeze(1)
        ids = torch.randint(1, VOCABULARY, (rows, LONGEST), generator=noise).masked_fill(~inside, 0)
        # The later a row, the more of it is trained: means of ranks are not the mean of all.
        dense = torch.linspace(0.1, 0.9, rows).unsqueeze(1)
        mask = (torch.rand(rows, LONGEST, generator=noise) < dense) & inside
        mask[:, 0], mask[:, 2], mask[1] = False, True, False

        def random(scale: float) -> Tensor:
            return scale * torch.randn(rows, LONGEST, generator=noise, dtype=torch.float64) * mask

        columns = {"input_ids": ids, "response_mask": mask, "lengths": lengths, "advantages": random(3.0)}
        for rank in self.silent:
            columns["advantages"][self.rows(rank)] = 0.0
        columns |= {"values": random(0.5), "returns": random(1.0)}
        old = (-4.0 * mask) + random(0.7)
        columns |= {"old_log_probs": old, "ref_log_probs": old + random(0.3)}
        return TensorDict(columns, batch_size=[rows])


@dataclass
class Outcome:
    """What a run left behind, as NumPy arrays."""

    steps: list[dict[str, float]]
    outputs: np.ndarray
    parameters: dict[str, np.ndarray]
    speaks: bool = True


def outcome(trainer: FsdpTrainStrategy, case: Case, steps: list[dict[str, float]]) -> Outcome:
    share = case.share(case.batch(77))
    outputs = trainer.compute_values(share) if case.critic else trainer.compute_log_probs(share)
    parameters = {name: tensor.numpy().copy() for name, tensor in trainer.named_parameters()}
    return Outcome(steps, outputs.numpy().copy(), parameters, trainer.speaks)


def take_steps(trainer: FsdpTrainStrategy, case: Case, batches: list[TensorDict]) -> list[dict[str, float]]:
    return [trainer.train_step(case.share(batch), case.loss()) for batch in batches]


def train(case: Case, batches: list[TensorDict], save_to: Path | None = None) -> Outcome:
    trainer = case.trainer()
    torch.manual_seed(11 + Ranks().rank)
    steps = take_steps(trainer, case, batches)
    if save_to is not None:
        # Scoring leaves weights gathered, which are not what is to be written.
        outcome(trainer, case, steps)
        trainer.save_checkpoint(save_to)
        trainer.save_hf(save_to / "hf")
        if case.lora is not None:
            trainer.save_adapters(save_to / "adapters")
    return outcome(trainer, case, steps)


def resume(case: Case, directory: Path, batches: list[TensorDict], steps_before: int = 0) -> Outcome:
    """Load a checkpoint into other weights, of a trainer that has taken steps of its own, and go on."""
    trainer = case.trainer(seed=99)
    torch.manual_seed(1000)
    take_steps(trainer, case, [case.batch(50 + step) for step in range(steps_before)])
    outcome(trainer, case, [])
    trainer.load_checkpoint(directory)
    return outcome(trainer, case, take_steps(trainer, case, batches))


def train_with_given_totals(case: Case, batches: list[TensorDict]) -> Outcome:
    trainer, loss = case.trainer(), case.loss()
    steps = [trainer.train_step(case.share(batch), loss, loss.totals(batch)) for batch in batches]
    return outcome(trainer, case, steps)


def train_with_breaks(case: Case, batches: list[TensorDict]) -> Outcome:
    """Between steps, score, stream the weights, hand the device over and take it back."""
    trainer, steps = case.trainer(), []
    for batch in batches:
        trainer.compute_log_probs(case.share(batch))
        for _ in trainer.named_parameters():
            pass
        trainer.offload()
        trainer.reload()
        steps += take_steps(trainer, case, [batch])
    return outcome(trainer, case, steps)


def survive_a_bad_step(case: Case, batches: list[TensorDict]) -> tuple[str, Outcome]:
    """Take a step, then one that is not finite on the last rank, then the others."""
    trainer = case.trainer()
    steps = take_steps(trainer, case, batches[:1])
    bad = batches[1].clone()
    bad["advantages"][-1] = float("inf")
    message = ""
    try:
        take_steps(trainer, case, [bad])
    except FloatingPointError as error:
        message = str(error)
    return message, outcome(trainer, case, steps + take_steps(trainer, case, batches[1:]))


def reference_first(case: Case, batches: list[TensorDict]) -> tuple[np.ndarray, Outcome]:
    """Score with the adapters switched off before anything else is computed, then train."""
    trainer = case.trainer()
    with trainer.adapters_disabled():
        reference = trainer.compute_log_probs(case.share(batches[0])).numpy().copy()
    return reference, outcome(trainer, case, take_steps(trainer, case, batches))


def park_between_steps(case: Case, batches: list[TensorDict]) -> tuple[list[int], Outcome]:
    """Give all memory of weights, buffers and optimiser states back between steps, and take it again."""
    trainer, steps, left = case.trainer(), [], []
    for batch in batches:
        steps += take_steps(trainer, case, [batch])
        parking = Parking()
        states = [value for state in trainer.optimizer.state.values() for value in state.values()]
        tensors = [*trainer.model.parameters(), *trainer.model.buffers(), *states]
        parking.park(tensors)
        local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
        left.append(sum(t.untyped_storage().nbytes() for t in local))
        parking.restore()
    return left, outcome(trainer, case, steps)


def score(case: Case, batch: TensorDict) -> np.ndarray:
    """Score with a frozen model that is only ever scored with."""
    scorer = Scorer(case.model().requires_grad_(False).eval(), max_tokens_per_microbatch=40, fsdp=FsdpOptions())
    return scorer.compute_log_probs(case.share(batch)).numpy().copy()


def shard_sizes(case: Case) -> tuple[int, int]:
    """Return how many numbers this rank holds, and how many the model has."""
    trainer = case.trainer()
    own = sum(p.to_local().numel() for p in trainer.model.parameters())  # type: ignore[attr-defined]
    return own, sum(p.numel() for p in trainer.model.parameters())


def tensors_alive_while_streaming(case: Case) -> int:
    """Return how many parameters of a stream exist at once, at most, if the reader keeps none."""
    seen: list[weakref.ref[Tensor]] = []
    most = 0
    for _, tensor in case.trainer().named_parameters():
        seen.append(weakref.ref(tensor))
        del tensor
        most = max(most, sum(reference() is not None for reference in seen))
    return most


def train_in_bf16(case: Case, batch: TensorDict) -> dict[str, Any]:
    trainer = case.trainer()
    seen: dict[str, str] = {}
    heads = {"score": trainer.model.score} if case.critic else {}
    for name, module in {"mlp": trainer.model.base_model.layers[0].mlp.down_proj, **heads}.items():
        module.register_forward_hook(lambda *a, name=name: seen.update({name: str(a[2].dtype)}))
    before = dict(trainer.named_parameters())
    metrics = take_steps(trainer, case, [batch])[0]
    after = dict(trainer.named_parameters())
    moved = all(not torch.equal(after[name], before[name]) for name in before)
    return {"seen": seen, "loss": metrics["loss"], "moved": moved, "stored": {str(p.dtype) for p in after.values()}}


def score_states(case: Case, batch: TensorDict) -> np.ndarray:
    scorer = Scorer(case.model().eval(), fsdp=FsdpOptions.from_mapping(case.fsdp))
    return scorer.compute_states(case.share(batch)).numpy().copy()


def data_places(case: Case) -> tuple[int, int, bool]:
    trainer = case.trainer()
    return trainer.data_rank, trainer.data_size, trainer.speaks


def step_with_other_rows(case: Case) -> str:
    try:
        case.trainer().train_step(case.batch(Ranks().rank), case.loss())
    except ValueError as error:
        return str(error)
    return ""


def construction_error(case: Case, other_weights: bool = False) -> str:
    try:
        case.trainer(seed=99 if other_weights and Ranks().rank == 1 else 3)
    except ValueError as error:
        return str(error)
    return ""


def loading_error() -> str:
    def load() -> PreTrainedModel:
        raise OSError("no such folder")

    try:
        load_on_first_rank(load)
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
