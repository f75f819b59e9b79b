"""After new weights: does every engine answer as the trainer would?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from roll.config import SamplingConfig
from roll.distributed.weight_sync.probes import Answer, Probes, batch_of, differences
from roll.generation import Completion, GenerationRequest
from roll.schedulers.replicas import GenerationClient, ReplicaDown
from roll.strategies.fingerprints import Deviation, Fingerprints, deviations
from roll.workers.loading import number_format

DIFFERENCE: Final = "weight_sync/probe_difference"

FULL_PRECISION: Final = 1e-3
"""Most that log-probs of the probes differ by rounding where trainer and engine compute in fp32."""

HALF_PRECISION: Final = 0.5
"""The same where one of them computes in bf16 or fp16."""

_TENSOR_TOLERANCE: Final = {True: 1e-5, False: 1e-2}
"""Most that fingerprints of a tensor differ by rounding, relative to the largest value, with fp32 and without."""

_SHOWN: Final = 8


class WeightCheckError(RuntimeError):
    """An engine does not answer with the weights that it was given; what it samples must not be trained on."""


class CheckedEngines(Protocol):
    """What the check needs of :class:`roll.pipelines.roles.engines.EngineRole`."""

    def clients(self) -> Sequence[GenerationClient]:
        """Return a client for each engine, in order of rank."""
        ...

    async def fingerprints(self, rank: int) -> Fingerprints | None:
        """Return those of an engine's weights; ``None`` if it cannot tell."""
        ...


class CheckedTrainer(Protocol):
    """What the check needs of :class:`roll.pipelines.roles.models.TrainRole`."""

    async def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]``."""
        ...

    async def fingerprints(self, dtype: torch.dtype | None) -> Fingerprints:
        """Return those of the weights, rounded to the type in which they travel."""
        ...


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is asked and what is tolerated.

    Attributes:
        probes: What engines are asked. Without prompts nothing is checked.
        tolerance: Most that a log-prob may differ; ``None`` leaves differences alone.
        exact: Whether trainer and engines compute in fp32.
        wire_dtype: Type in which weights travel; ``None`` for that which they have.
        compare_tensors: Whether to compare all tensors each time, not only to say which of them differ.
        trainer_sleeps: Whether the trainer's weights are not on its devices while engines work. Then the answers wait
            for the next update.
    """

    probes: Probes
    tolerance: float | None
    exact: bool = True
    wire_dtype: torch.dtype | None = None
    compare_tensors: bool = False
    trainer_sleeps: bool = False


class WeightCheck:
    """Asks every engine a few fixed prompts and compares its log-probs with the trainer's.

    The order of calls: :meth:`prepare`, new weights, :meth:`run`; whoever calls holds the trainer's weights at rest
    from the new weights to the end of :meth:`run`. A run goes on until :meth:`require` says otherwise, so that the step
    in which a difference is found is reported and can be saved.

    Args:
        engines: Sample.
        trainer: Sent the weights.
        options: What is asked.
    """

    def __init__(self, engines: CheckedEngines, trainer: CheckedTrainer, options: CheckOptions) -> None:
        self._engines = engines
        self._trainer = trainer
        self._options = options
        self._answers: list[Answer] = []
        self._engine_tensors: dict[int, Fingerprints | None] = {}
        self._version = 0
        self._failure: WeightCheckError | None = None

    async def prepare(self) -> None:
        """Leave a prompt in the prefix cache of every engine: one that keeps it over new weights gives itself away."""
        if not self._options.probes.prompts or self._options.trainer_sleeps:
            return
        request = self._options.probes.first_request()
        await asyncio.gather(*(_ask(client, request) for client in self._engines.clients()))

    async def run(self, version: int) -> dict[str, float]:
        """Ask every engine, which was just given the weights ``version``, and compare.

        Returns:
            ``weight_sync/probe_difference``, the largest difference of a log-prob; nothing where the trainer's weights
            are not at hand: :meth:`late` compares then.
        """
        if not self._options.probes.prompts:
            return {}
        self._version = version
        asked = [
            (rank, client, request)
            for rank, client in enumerate(self._engines.clients())
            for request in self._options.probes.requests(version)
        ]
        completions = await asyncio.gather(*(_ask(client, request) for _, client, request in asked))
        self._answers = [
            Answer(rank, request.prompt_ids, completion)
            for (rank, _, request), completion in zip(asked, completions, strict=True)
            if completion is not None
        ]
        for _, client, request in asked:
            if request.session is not None:
                await client.release(request.session)
        if not self._options.trainer_sleeps:
            return await self.late()
        # When the trainer's weights are back, the engines' are gone.
        ranks = {answer.engine for answer in self._answers}
        self._engine_tensors = {rank: await self._engines.fingerprints(rank) for rank in sorted(ranks)}
        return {}

    async def late(self) -> dict[str, float]:
        """Compare answers that nobody has compared yet; returns as :meth:`run`."""
        answers, self._answers = self._answers, []
        if not answers:
            return {}
        worst = differences(answers, await self._trainer.compute_log_probs(batch_of(answers)))
        sent = await self._sent() if self._options.compare_tensors else None
        for rank, difference in worst.items():
            reason = self._reason([answer for answer in answers if answer.engine == rank], difference)
            if reason is not None or sent is not None:
                await self._compare(rank, reason, sent or await self._sent())
        return {DIFFERENCE: max(worst.values())}

    def require(self) -> None:
        """Go on only if all engines had their weights.

        Raises:
            WeightCheckError: If one had not.
        """
        if self._failure is not None:
            raise self._failure

    def _reason(self, answers: list[Answer], difference: float) -> str | None:
        """Return what is wrong with the answers of one engine, if anything is."""
        versions = {answer.completion.policy_version for answer in answers} - {(self._version, self._version)}
        if versions:
            return f"it sampled with version {min(versions)[0]}"
        cached = max(map(_cached, answers))
        tolerance = self._options.tolerance
        # Not ">": what is no number differs too.
        differs = tolerance is not None and not difference <= tolerance
        gap = f"log-probs of {len(answers)} fixed prompts differ by up to {difference:.2g}"
        if cached:
            return f"it kept its prefix cache, and answered from {cached} tokens in it ({gap})"
        return f"{gap}, where {tolerance:g} is tolerated" if differs else None

    async def _sent(self) -> Fingerprints:
        return await self._trainer.fingerprints(self._options.wire_dtype)

    async def _compare(self, rank: int, reason: str | None, sent: Fingerprints) -> None:
        """Compare the tensors of an engine, whose answers are wrong for a reason, or right; note what is wrong."""
        held = self._engine_tensors
        has = held[rank] if rank in held else await self._engines.fingerprints(rank)
        found, compared = deviations(sent, has or {}, _TENSOR_TOLERANCE[self._options.exact])
        if self._failure is not None or (reason is None and not found):
            return
        answers = f"does not answer as the trainer does: {reason}" if reason else "does not have the trainer's weights"
        self._failure = WeightCheckError(
            f"After the weights of step {self._version}, engine {rank} {answers}. {_named(found, compared)} "
            "The trainer's own weights are not touched by this. If the engine is meant to compute otherwise "
            "(quantised, for example), set weight_sync.tolerance; weight_sync.verify=false checks nothing."
        )


def _named(found: Sequence[Deviation], compared: int) -> str:
    """Return a sentence about the tensors that differ."""
    if not compared:
        return "The engine cannot say which tensors differ."
    if not found:
        return (
            f"All {compared} tensors that can be compared are the same in both: the engine has the weights, and "
            "computes something else from them."
        )
    shown = ", ".join(map(str, found[:_SHOWN])) + (f" and {len(found) - _SHOWN} more" if found[_SHOWN:] else "")
    return f"Of {compared} tensors, {len(found)} differ, layer by layer: {shown}."


def check_options(
    config: SamplingConfig, token_ids: Sequence[int], wire_dtype: torch.dtype | None, shared: bool
) -> CheckOptions:
    """Return what a run checks.

    Args:
        config: The run.
        token_ids: Tokens of text, to draw prompts from.
        wire_dtype: Type in which weights travel.
        shared: Whether trainer and engines take turns on the same devices.
    """
    sync, infer = config.weight_sync, config.actor_infer
    exact = {number_format(config, role) for role in ("actor_train", "actor_infer")} == {"fp32"}
    tolerance = sync.tolerance
    if tolerance is None and not _is_quantised(infer.strategy_args.strategy_config):
        tolerance = FULL_PRECISION if exact else HALF_PRECISION
    temperature = infer.generating_args.temperature
    probes = Probes.of(token_ids, config.sequence_length, temperature) if sync.verify else Probes()
    return CheckOptions(probes, tolerance, exact, wire_dtype, sync.compare_tensors, shared)


def _is_quantised(strategy_config: Mapping[str, Any] | None) -> bool:
    """Return whether an engine computes with rounder numbers than it is given, in vLLM's words or SGLang's."""
    options = strategy_config or {}
    return any(options.get(key) not in (None, "auto") for key in ("quantization", "kv_cache_dtype", "torchao_config"))


def _cached(answer: Answer) -> int:
    """Return how much of a prompt was cached; less than half of it may be shared with another prompt by chance."""
    cached = answer.completion.cached_tokens
    return cached if 2 * cached >= len(answer.prompt_ids) else 0


async def _ask(client: GenerationClient, request: GenerationRequest) -> Completion | None:
    """Return an engine's answer; ``None`` of one that is gone, which gets the weights when it is made again."""
    try:
        return await client.generate(request)
    except ReplicaDown:
        return None
