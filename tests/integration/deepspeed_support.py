"""What ranks do with `deepspeed_train`, and a plain training loop in one process that they must agree with."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import yaml
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel, get_cosine_schedule_with_warmup

from roll.models.critic import load_critic
from roll.models.loading import load_model
from roll.models.lora import add_adapters
from roll.pipelines.learning.objective import PolicyObjective
from roll.pipelines.learning.value_objective import ValueObjective
from roll.strategies.base import Loss
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.adapters import merged_named_parameters
from roll.strategies.training.deepspeed.infer import DeepSpeedInferStrategy
from roll.strategies.training.deepspeed.memory import DeviceMemory
from roll.strategies.training.deepspeed.train import DeepSpeedTrainStrategy
from roll.strategies.training.deepspeed.weights import stream_weights
from roll.strategies.training.ranks import Ranks
from roll.strategies.training.supervised import SupervisedLoss

VOCABULARY = 491
LONGEST = 18
PRESETS = Path(__file__).parents[2] / "roll" / "presets" / "config"


def preset(name: str) -> dict[str, Any]:
    """Return the options that a file of `examples/config` holds."""
    options: dict[str, Any] = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())[name]
    return options


@dataclass(frozen=True)
class ZeroCase:
    """A training run of the toy policy, or of a critic made of it; in fp32, which is what DeepSpeed trains in.

    Attributes:
        config: DeepSpeed's configuration.
        shares: Rows of each rank; their sum is the number of rows of the whole batch.
        critic: Train a value model.
        lora: Rank of LoRA adapters; ``None`` trains all weights.
        dropout: Of the attention.
        train: Changes to the training options.
        silent: No row has an advantage, so that none contributes.
        likelihood: Maximise the likelihood of responses, with every row computed, also those without one.
        loader: Whether the strategy is given a function that loads the model.
    """

    config: dict[str, Any] = field(default_factory=dict)
    shares: tuple[int, ...] = (4, 4)
    critic: bool = False
    lora: int | None = None
    dropout: float = 0.0
    train: dict[str, Any] = field(default_factory=dict)
    silent: bool = False
    likelihood: bool = False
    loader: bool = True

    def model(self) -> PreTrainedModel:
        model = load_critic("toy") if self.critic else load_model("toy")
        model.config.attention_dropout = self.dropout
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = self.dropout
        return model if self.lora is None else add_adapters(model, self.lora)

    def options(self) -> TrainOptions:
        given = dict(
            learning_rate=1e-3,
            weight_decay=0.1,
            epsilon=1e-4,
            max_grad_norm=0.1,
            lr_scheduler_type="cosine",
            total_steps=12,
            max_tokens_per_microbatch=40,
            temperature=1.0 if self.critic else 3.0,
        )
        return TrainOptions(**{**given, **self.train})

    def trainer(self) -> DeepSpeedTrainStrategy:
        model = self.model if self.loader else self.model()
        predicts = "values" if self.critic else "log_probs"
        return DeepSpeedTrainStrategy(model, self.options(), predicts=predicts, config=self.config)

    def loss(self) -> Loss:
        if self.critic:
            return ValueObjective(clip=0.2, aggregation="token-mean")
        if self.likelihood:
            return SupervisedLoss()
        options = {"clip_low": 0.2, "clip_high": 0.3}
        if self.silent:
            return PolicyObjective(options=options)
        return PolicyObjective(options=options, entropy_weight=0.01, kl_weight=0.05, aggregation="seq-mean-token-mean")

    def share(self, batch: TensorDict) -> TensorDict:
        """Return the rows of this rank."""
        start = sum(self.shares[: Ranks().rank])
        return batch[start : start + self.shares[Ranks().rank]]

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
            return scale * torch.randn(rows, LONGEST, generator=noise) * mask

        columns = {"input_ids": ids, "response_mask": mask, "lengths": lengths}
        columns["advantages"] = random(0.0 if self.silent else 3.0)
        columns |= {"values": random(0.5), "returns": random(1.0)}
        old = (-7.0 * mask) + random(0.7)  # Near what the toy says of random tokens.
        columns |= {"old_log_probs": old, "ref_log_probs": old + random(0.3)}
        return TensorDict(columns, batch_size=[rows])


@dataclass
class Outcome:
    """What a run left behind, as NumPy arrays."""

    steps: list[dict[str, float]]
    outputs: np.ndarray
    parameters: dict[str, np.ndarray]


def forbid_compiling() -> None:
    """Let every attempt of DeepSpeed to compile an operator fail."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    def refuse(builder: OpBuilder, verbose: bool = True) -> None:
        raise AssertionError(f"{builder.NAME} would be compiled")

    OpBuilder.jit_load = refuse


def plain_run(case: ZeroCase, batches: list[TensorDict]) -> Outcome:
    """Train in one process: whole logits, whole batches, torch's AdamW; none of the code of a strategy."""
    model, options = case.model().train(), case.options()
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    rest = [p for p in model.parameters() if p.requires_grad and p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, eps=options.epsilon)
    schedule = get_cosine_schedule_with_warmup(optimizer, options.warmup_steps, options.total_steps)
    steps = []
    for batch in batches:
        loss = case.loss()
        value, metrics = loss(*plain_outputs(case, model, batch), batch, loss.totals(batch))
        metrics = {name: float(share.detach()) for name, share in metrics.items()}
        if options.l2:
            penalty = 0.5 * options.l2 * sum(p.double().square().sum() for p in decayed)
            value, metrics["loss/l2"] = value + penalty, float(penalty.detach())
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm or float("inf"))
        rate = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        steps.append({"loss": float(value.detach()), **metrics, "grad_norm": float(norm), "learning_rate": rate})
    with torch.no_grad():
        outputs, _ = plain_outputs(case, model.eval(), case.batch(77))
    parameters = {name: p.detach().numpy().copy() for name, p in merged_named_parameters(model)}
    return Outcome(steps, outputs.numpy().copy(), parameters)


def plain_outputs(case: ZeroCase, model: PreTrainedModel, batch: TensorDict) -> tuple[Tensor, Tensor | None]:
    """Return log-probs and entropies, or values, of a whole batch, 0 outside its mask."""
    ids, mask = batch["input_ids"], batch["response_mask"]
    columns = torch.arange(ids.shape[1]).expand_as(ids)
    logits = model(input_ids=ids, attention_mask=(columns < batch["lengths"].unsqueeze(1)).long()).logits
    before = logits[:, :-1]
    if case.critic:
        return torch.nn.functional.pad(before.squeeze(-1), (1, 0)) * mask, None
    log_probs = torch.log_softmax(before / case.options().temperature, -1)
    chosen = log_probs.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return torch.nn.functional.pad(chosen, (1, 0)) * mask, torch.nn.functional.pad(entropy, (1, 0)) * mask


def outcome(trainer: DeepSpeedTrainStrategy, case: ZeroCase, steps: list[dict[str, float]]) -> Outcome:
    share = case.share(case.batch(77))
    outputs = trainer.compute_values(share) if case.critic else trainer.compute_log_probs(share)
    parameters = {name: tensor.float().cpu().numpy().copy() for name, tensor in trainer.named_parameters()}
    return Outcome(steps, outputs.cpu().numpy().copy(), parameters)


def take_steps(trainer: DeepSpeedTrainStrategy, case: ZeroCase, batches: list[TensorDict]) -> list[dict[str, float]]:
    return [trainer.train_step(case.share(batch), case.loss()) for batch in batches]


def train(case: ZeroCase, batches: list[TensorDict], save_to: Path | None = None) -> Outcome:
    forbid_compiling()
    trainer = case.trainer()
    torch.manual_seed(11 + Ranks().rank)
    with patch("subprocess.Popen") as program:
        steps = take_steps(trainer, case, batches)
    program.assert_not_called()
    muon = sys.modules["deepspeed.runtime.zero.muon.original_muon"]
    assert not hasattr(muon.muon_update, "_torchdynamo_orig_callable"), "PyTorch's compiler was imported"
    if save_to is not None:
        trainer.save_checkpoint(save_to)
        trainer.save_hf(save_to / "hf")
    result = outcome(trainer, case, steps)
    trainer.close()
    return result


def save_and_go_on(case: ZeroCase, directory: Path, batches: list[TensorDict]) -> Outcome:
    """Take three steps, save, and take the others: what a resumed run must equal."""
    trainer = case.trainer()
    torch.manual_seed(11 + Ranks().rank)
    take_steps(trainer, case, batches[:3])
    trainer.save_checkpoint(directory)
    result = outcome(trainer, case, take_steps(trainer, case, batches[3:]))
    trainer.close()
    return result


def resume(case: ZeroCase, directory: Path, batches: list[TensorDict]) -> Outcome:
    """Load a checkpoint into a trainer that has taken steps of its own, and go on."""
    trainer = case.trainer()
    torch.manual_seed(1000)
    take_steps(trainer, case, [case.batch(50)])
    trainer.load_checkpoint(directory)
    result = outcome(trainer, case, take_steps(trainer, case, batches))
    trainer.close()
    return result


def take_over(case: ZeroCase, directory: Path, batches: list[TensorDict]) -> Outcome:
    """Begin with the optimiser of a checkpoint, and go on."""
    trainer = case.trainer()
    trainer.load_optimizer(directory)
    result = outcome(trainer, case, take_steps(trainer, case, batches))
    trainer.close()
    return result


def loading_error(case: ZeroCase, directory: Path) -> str:
    trainer = case.trainer()
    try:
        trainer.load_checkpoint(directory)
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    finally:
        trainer.close()
    return ""


def train_with_breaks(case: ZeroCase, batches: list[TensorDict]) -> tuple[list[tuple[int, int]], Outcome]:
    """Between steps, score, stream the weights, hand the memory over in parts and take it back in parts."""
    trainer, steps, parked = case.trainer(), [], []
    for parameter in trainer.model.parameters() if trainer.zero.stage == 0 else ():
        # What transformers has mapped from a file cannot be given back.
        parameter.data = parameter.data.clone()
    # As if the memory of the CPU were that of a device.
    trainer._memory = DeviceMemory(trainer.model, trainer.engine, trainer.optimizer, everywhere=True)
    for batch in batches:
        trainer.compute_log_probs(case.share(batch))
        for _ in trainer.named_parameters():
            pass
        trainer.offload(weights=False)
        trainer.offload()
        parked.append(trainer._memory.parked)
        trainer.reload(optimizer=False)
        trainer.compute_log_probs(case.share(batch))
        assert trainer.offloaded
        trainer.reload()
        steps += take_steps(trainer, case, [batch])
    result = outcome(trainer, case, steps)
    trainer.close()
    return parked, result


def survive_a_bad_step(case: ZeroCase, batches: list[TensorDict]) -> tuple[str, Outcome]:
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
    result = outcome(trainer, case, steps + take_steps(trainer, case, batches[1:]))
    trainer.close()
    return message, result


def score(case: ZeroCase, batch: TensorDict) -> dict[str, np.ndarray]:
    """Score with a frozen model that is only ever scored with."""
    forbid_compiling()
    scorer = DeepSpeedInferStrategy(
        lambda: case.model().requires_grad_(False),
        predicts="values" if case.critic else "log_probs",
        max_tokens_per_microbatch=40,
        temperature=case.options().temperature,
        config=case.config,
        **case.train,
    )
    share = case.share(batch)
    found = {"values": scorer.compute_values(share)} if case.critic else {"log_probs": scorer.compute_log_probs(share)}
    if not case.critic:
        found["states"] = scorer.compute_states(share)
    held = sum(p.numel() for p in scorer.model.parameters())
    scorer.close()
    return {"held": np.array(held), **{name: value.numpy().copy() for name, value in found.items()}}


def diverge(case: ZeroCase, batches: list[TensorDict]) -> np.ndarray:
    """Return how far a trained policy has gone from the policy that it was, which stage 3 shares out too."""
    reference = DeepSpeedInferStrategy(
        lambda: case.model().requires_grad_(False), max_tokens_per_microbatch=40, config=case.config
    )
    trainer = case.trainer()
    trainer.measure_from(reference.model.get_output_embeddings())
    take_steps(trainer, case, batches)
    share = case.share(case.batch(77))
    share["ref_states"] = reference.compute_states(share)
    found = trainer.compute_divergence(share).numpy().copy()
    trainer.close()
    reference.close()
    return found


def plain_divergence(case: ZeroCase, batches: list[TensorDict]) -> np.ndarray:
    """Return the same, from whole logits of whole models."""
    trained = case.model()
    for name, value in plain_run(case, batches).parameters.items():
        trained.get_parameter(name).data.copy_(torch.from_numpy(value))
    batch = case.batch(77)
    with torch.no_grad():
        logits = [m(input_ids=batch["input_ids"]).logits[:, :-1] for m in (trained, case.model())]
    policy, reference = (torch.log_softmax(part / case.options().temperature, -1) for part in logits)
    sums = (policy.exp() * (policy - reference)).sum(-1)
    divergence: np.ndarray = (torch.nn.functional.pad(sums, (1, 0)) * batch["response_mask"]).numpy()
    return divergence


def look_at_sharing(case: ZeroCase, bucket: int) -> dict[str, Any]:
    """Return how many numbers this rank holds, how many the model has, and how many streaming gathers at once."""
    import deepspeed

    trainer, gathered, whole = case.trainer(), [], 0
    gather = deepspeed.zero.GatheredParameters

    def record(parameters: list[Any]) -> Any:
        gathered.append(sum(parameter.ds_numel for parameter in parameters))
        return gather(parameters)

    deepspeed.zero.GatheredParameters = record
    try:
        for _, tensor in stream_weights(trainer.model, bucket):
            whole += tensor.numel()
            held = sum(p.numel() for p in trainer.model.parameters())
    finally:
        deepspeed.zero.GatheredParameters = gather
    later = load_model("toy")
    trainer.close()
    return {"held": held, "whole": whole, "gathered": gathered, "later": sum(p.numel() for p in later.parameters())}


def train_in_bf16(case: ZeroCase, batch: TensorDict, directory: Path) -> dict[str, Any]:
    trainer = case.trainer()
    steps = take_steps(trainer, case, [batch, batch])
    streamed = dict(trainer.named_parameters())
    types = {str(tensor.dtype) for tensor in streamed.values()}
    trainer.save_hf(directory)
    weights = {name: tensor.float().numpy().copy() for name, tensor in streamed.items()}
    trainer.close()
    return {"steps": steps, "types": types, "weights": weights}
