"""A trainer, engines beside it, and what can go wrong between them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from roll.distributed.weight_sync.probes import Probes
from roll.pipelines.roles.weight_check import CheckOptions, WeightCheck, WeightCheckError
from roll.strategies.base import WeightUpdate
from roll.strategies.fingerprints import Fingerprints, fingerprint
from roll.strategies.training.adapters import merged_named_parameters
from roll.strategies.training.pytorch.scoring import Scorer

Tensors = dict[str, Tensor]
Fault = Callable[[Tensors, Tensors], Tensors]
"""From the weights before an update and after it to those that an engine gets."""

STEP = 3e-4
"""How far an optimiser step moves a weight."""

Q, K = (f"model.layers.1.self_attn.{part}_proj.weight" for part in "qk")
MISSING = "model.layers.0.mlp.down_proj.weight"


TINY_VOCABULARY = 97


class Trainer:
    """The trainer's side of a check, with a model of this process; with adapters, engines get them merged."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._scorer = Scorer(model)

    async def compute_log_probs(self, batch: TensorDict) -> Tensor:
        return self._scorer.compute_log_probs(batch)

    async def fingerprints(self, dtype: torch.dtype | None) -> Fingerprints:
        return {name: fingerprint(tensor, dtype) for name, tensor in self.weights().items()}

    def weights(self) -> Tensors:
        """Return copies of what engines get."""
        return {name: tensor.clone() for name, tensor in merged_named_parameters(self.model)}

    def step(self, seed: int, size: float = STEP) -> None:
        """Move every weight that is trained as far as an optimiser step would."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator).sign(), alpha=size)


class Engines:
    """The engines' side of a check: strategies of this process."""

    def __init__(self, *strategies: Any) -> None:
        self.strategies = strategies

    def clients(self) -> Sequence[Any]:
        return self.strategies

    async def fingerprints(self, rank: int) -> Fingerprints | None:
        tell = getattr(self.strategies[rank], "fingerprints", None)
        return None if tell is None else await tell()

    async def update(self, version: int, tensors: Tensors) -> None:
        for strategy in self.strategies:
            await strategy.update_weights(WeightUpdate(version, list(tensors.items())))


def probes(vocabulary: int, max_length: int = 512) -> Probes:
    """Return what engines are asked."""
    return Probes.of(range(5, vocabulary), max_length, 1.0)


def check_of(trainer: Any, engines: Any, asked: Probes, tolerance: float | None = 1e-3, **options: Any) -> WeightCheck:
    """Return the check of a run in full precision."""
    return WeightCheck(engines, trainer, CheckOptions(asked, tolerance, **options))


async def publish(check: WeightCheck, engines: Engines, version: int, tensors: Tensors) -> dict[str, float]:
    """Give engines weights, as a run does, and check them."""
    await check.prepare()
    await engines.update(version, tensors)
    return await check.run(version)


def found(check: WeightCheck) -> str:
    """Return what the check has found; nothing where it lets the run go on."""
    try:
        check.require()
    except WeightCheckError as error:
        return str(error)
    return ""


def nothing_wrong(before: Tensors, after: Tensors) -> Tensors:
    return after


def old_weights(before: Tensors, after: Tensors) -> Tensors:
    return before


def one_missing(before: Tensors, after: Tensors) -> Tensors:
    return {**after, MISSING: before[MISSING]}


def swapped(before: Tensors, after: Tensors) -> Tensors:
    """Exchange as many rows of q and k as both have."""
    rows = min(len(after[Q]), len(after[K]))
    q, k = after[Q].clone(), after[K].clone()
    q[:rows], k[:rows] = after[K][:rows], after[Q][:rows]
    return {**after, Q: q, K: k}


FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "old weights under a new version": (old_weights, ("model.embed_tokens.weight", "of 24 tensors, 24 differ")),
    "one missing tensor": (one_missing, (MISSING, "of 24 tensors, 1 differ")),
    "swapped q and k": (swapped, (Q, K, "of 24 tensors, 2 differ")),
}
"""Faults of weights by name, and what is said of them; of the toy model."""


def in_turn(run: Callable[[Any], Any], trainer: Trainer, engines: Engines, asked: Probes) -> Iterator[tuple[str, str]]:
    """Plant each fault and yield it with what was found; the right weights before and after it are let through."""
    version = 100
    for name, (fault, _words) in FAULTS.items():
        for spoil in (nothing_wrong, fault, nothing_wrong):
            before = trainer.weights()
            trainer.step(version)
            version += 1
            check = check_of(trainer, engines, asked)
            run(publish(check, engines, version, spoil(before, trainer.weights())))
            yield (name if spoil is fault else ""), found(check)


def tiny_model() -> PreTrainedModel:
    """Return a model for tests that need many updates."""
    torch.manual_seed(0)
    sizes = {"vocab_size": TINY_VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()


def same_engine_of_its_own(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model for an engine."""
    return copy.deepcopy(model).requires_grad_(False)


def run_async(coroutine: Any) -> Any:
    """Run on an event loop of its own."""
    return asyncio.run(asyncio.wait_for(coroutine, 60))
