"""Continuous batching without asyncio: admit requests into slots, step all of them, hand back what finished."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from roll.generation import Completion, GenerationRequest, fold_seed
from roll.generation.pictures import marked
from roll.strategies.generation.hf_infer.model_runner import ModelRunner
from roll.strategies.generation.hf_infer.prefix_index import BLOCK, PrefixIndex
from roll.strategies.generation.hf_infer.sampling import forbid, penalise, sample, uniforms
from roll.strategies.generation.hf_infer.slots import Slot, SlotPool, common_prefix
from roll.strategies.generation.stop_strings import StopStrings


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way.

    Attributes:
        request: What was asked.
        tokens: Prompt and sampled tokens; marks of pictures in place of those that stand for them, so that equal tokens
            show the same.
        limit: Length at which sampling ends.
        seed: The request's seed in 64 bits.
        slot: Its slot once admitted.
        computed: Leading tokens whose keys and values are in the slot.
        cached: Prompt tokens that were there at admission.
        logprobs: Of the sampled tokens.
        versions: Oldest and newest weights used; ``None`` before the first sampled token.
        finish_reason: Set when it ended.
        serial: Number of its admission.
        prefix_keys: Keys in the prefix index, if it was admitted without a prefix of its own.
    """

    request: GenerationRequest
    tokens: list[int]
    limit: int
    seed: int
    slot: Slot | None = None
    computed: int = 0
    cached: int = 0
    logprobs: list[float] = field(default_factory=list)
    versions: tuple[int, int] | None = None
    finish_reason: str | None = None
    serial: int = 0
    prefix_keys: list[int] = field(default_factory=list)

    def cached_ids(self) -> list[int]:
        """Tokens whose keys and values lie in its slot, as far as it still knows."""
        if self.slot is None:
            return []
        if self.finish_reason is None:
            return self.tokens[: self.computed]
        return [] if self.slot.busy else self.slot.tokens

    @classmethod
    def of(cls, request: GenerationRequest, max_length: int) -> Sequence:
        """Start from a request; sampling ends at ``max_new_tokens`` or where the slot is full."""
        prompt = marked(request.prompt_ids, request.pictures)
        limit = min(len(prompt) + request.sampling.max_new_tokens, max_length)
        return cls(request, prompt, limit, fold_seed(request.seed))

    @property
    def token_ids(self) -> list[int]:
        """Prompt and sampled tokens as the vocabulary has them."""
        return [*self.request.prompt_ids, *self.tokens[len(self.request.prompt_ids) :]]

    def completion(self, version: int) -> Completion:
        """Return the result so far; ``version`` is reported if nothing was sampled."""
        return Completion(
            token_ids=self.tokens[len(self.request.prompt_ids) :],
            logprobs=self.logprobs,
            finish_reason=self.finish_reason or "abort",
            policy_version=self.versions or (version, version),
            cached_tokens=self.cached,
        )


StepResults = list[tuple[Sequence, int, int | None, float]]


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made."""

    generated_tokens: int = 0
    prefill_tokens: int = 0
    forward_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    slot_steps: int = 0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0
    requests: int = 0


class Engine:
    """Slots, running sequences and the step that advances them. Not thread-safe; one owner drives it.

    Args:
        runner: The model.
        max_slots: Most sequences in the cache.
        max_prefill_tokens: Most prompt tokens per step. Running sequences take their step beside them, so a long prompt
            delays a running one by at most one such step.
        stop_strings: Finds texts that end completions.
    """

    def __init__(
        self, runner: ModelRunner, *, max_slots: int, max_prefill_tokens: int, stop_strings: StopStrings
    ) -> None:
        self.runner = runner
        self.stop_strings = stop_strings
        self.max_prefill_tokens = max_prefill_tokens
        self.version = 0
        self.counters = Counters()
        self.pool = SlotPool(max_slots)
        self.active: dict[str, Sequence] = {}
        self._prefixes: PrefixIndex[Sequence] = PrefixIndex()

    def admit(self, sequence: Sequence) -> bool:
        """Give ``sequence`` a slot, keeping the prefix its session has there; ``False`` if all slots are busy."""
        slot = self.pool.acquire(sequence.request.session)
        if slot is None:
            return False
        # The last token runs again even if it is cached: its logits are what the first draw needs.
        sequence.cached = min(common_prefix(slot.tokens, sequence.tokens), len(sequence.tokens) - 1)
        sequence.slot, sequence.computed = slot, sequence.cached
        self.counters.cached_tokens += sequence.cached
        self.counters.requests += 1
        sequence.serial = self.counters.requests
        if sequence.cached == 0:
            sequence.prefix_keys = PrefixIndex.keys(sequence.tokens)
            for length, key in enumerate(sequence.prefix_keys, start=1):
                owner = self._prefixes.owner(key)
                gone = owner is None or (owner.finish_reason is not None and len(owner.cached_ids()) < length * BLOCK)
                if gone:
                    self._prefixes.add(key, sequence)
        self.active[sequence.request.request_id] = sequence
        return True

    def end(self, sequence: Sequence, reason: str) -> None:
        """Take ``sequence`` out; its slot keeps the prefix if a session owns it."""
        sequence.finish_reason = reason
        if self.active.pop(sequence.request.request_id, None) is not None:
            assert sequence.slot is not None
            self.pool.finish(sequence.slot, sequence.tokens[: sequence.computed])

    def step(self) -> StepResults:
        """Run one forward pass; changes nothing but the cache and counters, so that it may run in another thread.

        Returns:
            For each sequence that took part: itself, its new ``computed``, and the sampled token (``None`` while its
            prompt is not through) with its log-probability.
        """
        started = time.perf_counter()
        with torch.inference_mode():
            rows = self._rows()
            if not rows:  # all were aborted before this step, in its thread, began
                return []
            logits = self.runner.forward(
                np.array([self._slot_of(sequence) for sequence, _ in rows], dtype=np.int64),
                np.array([sequence.computed for sequence, _ in rows], dtype=np.int64),
                np.array([count for _, count in rows], dtype=np.int64),
                [sequence.tokens[sequence.computed : sequence.computed + count] for sequence, count in rows],
                [sequence.request.pictures for sequence, _ in rows],
            )
            forwarded = time.perf_counter()
            complete = [
                i for i, (sequence, count) in enumerate(rows) if sequence.computed + count == len(sequence.tokens)
            ]
            drawn = self._sample(logits, [rows[i][0] for i in complete], complete)
        counters = self.counters
        counters.steps += 1
        counters.slot_steps += len(rows)
        counters.forward_seconds += forwarded - started
        counters.sampling_seconds += time.perf_counter() - forwarded
        results: StepResults = []
        for i, (sequence, count) in enumerate(rows):
            counters.forward_tokens += count
            counters.prefill_tokens += count if not sequence.logprobs or count > 1 else 0
            token, logprob = drawn.get(i, (None, 0.0))
            results.append((sequence, sequence.computed + count, token, logprob))
        return results

    def _rows(self) -> list[tuple[Sequence, int]]:
        """Choose the sequences of the next step and how many tokens each runs."""
        rows = []
        budget = self.max_prefill_tokens
        # A copy: with a step in a thread, an abort may take a sequence out meanwhile.
        for sequence in list(self.active.values()):
            if sequence.computed == 0 and sequence.prefix_keys and not self._take_prefix(sequence):
                continue
            count = len(sequence.tokens) - sequence.computed
            if count > 1:
                count = min(count, budget)
                budget -= count
            if count > 0:
                rows.append((sequence, count))
        return rows

    def _take_prefix(self, sequence: Sequence) -> bool:
        """Copy the longest prefix that another sequence has; ``False`` if it is worth waiting for one being computed.

        Only a sequence admitted earlier is waited for, so that two never wait for each other.
        """
        for length in range(len(sequence.prefix_keys), 0, -1):
            owner = self._prefixes.owner(sequence.prefix_keys[length - 1])
            if owner is None or owner is sequence or owner.slot is None:
                continue
            wanted = sequence.tokens[: length * BLOCK]
            running = owner.request.request_id in self.active and owner.finish_reason is None
            if owner.cached_ids()[: len(wanted)] == wanted:
                shared = min(common_prefix(owner.cached_ids(), sequence.tokens), len(sequence.tokens) - 1)
                self.runner.copy_prefix(owner.slot.index, self._slot_of(sequence), shared)
                sequence.computed = shared
                sequence.cached = max(sequence.cached, min(shared, len(sequence.request.prompt_ids)))
                self.counters.cached_tokens += shared
                return True
            if running and owner.serial < sequence.serial and owner.tokens[: len(wanted)] == wanted:
                return False
        return True

    @staticmethod
    def _slot_of(sequence: Sequence) -> int:
        assert sequence.slot is not None
        return sequence.slot.index

    def _sample(
        self, logits: torch.Tensor, sequences: list[Sequence], rows: list[int]
    ) -> dict[int, tuple[int | None, float]]:
        """Draw a token for each of ``sequences``, which are the given rows of ``logits``."""
        if not sequences:
            return {}
        if len(rows) < logits.shape[0]:
            logits = logits.index_select(0, torch.tensor(rows, device=logits.device))
        params = [sequence.request.sampling for sequence in sequences]
        penalties = {i: p.repetition_penalty for i, p in enumerate(params) if p.repetition_penalty != 1.0}
        if penalties:
            logits = penalise(logits, penalties, [sequence.token_ids for sequence in sequences])
        early = {i: s.request.sampling.stop_token_ids for i, s in enumerate(sequences) if _is_early(s)}
        if early:
            logits = forbid(logits, early)
        noise = uniforms(
            np.array([sequence.seed for sequence in sequences], dtype=np.uint64),
            np.array([len(sequence.logprobs) for sequence in sequences], dtype=np.uint64),
        )
        tokens, logprobs = sample(
            logits,
            np.array([p.temperature for p in params], dtype=np.float64),
            np.array([p.top_k for p in params], dtype=np.int64),
            np.array([p.top_p for p in params], dtype=np.float64),
            noise,
            np.array([p.min_p for p in params], dtype=np.float64),
        )
        return {row: (token, logprob) for row, token, logprob in zip(rows, tokens, logprobs, strict=True)}

    def apply(self, results: StepResults) -> list[Sequence]:
        """Book the results of a step; returns the sequences that ended with it."""
        ended: list[Sequence] = []
        for sequence, computed, token, logprob in results:
            if sequence.finish_reason is not None:  # aborted while the step ran
                continue
            sequence.computed = computed
            if token is None:
                continue
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            oldest = self.version if sequence.versions is None else sequence.versions[0]
            sequence.versions = (oldest, self.version)
            self.counters.generated_tokens += 1
            if token in sequence.request.sampling.stop_token_ids or self._completes_text(sequence):
                self.end(sequence, "stop")
            elif len(sequence.tokens) >= sequence.limit:
                self.end(sequence, "length")
            if sequence.finish_reason is not None:
                ended.append(sequence)
        return ended

    def _completes_text(self, sequence: Sequence) -> bool:
        texts = sequence.request.sampling.stop_strings
        if not texts or _is_early(sequence):
            return False
        completion = sequence.tokens[len(sequence.request.prompt_ids) :]
        return self.stop_strings.end(completion, texts, known=len(completion) - 1) is not None

    def drop_prefixes(self) -> None:
        """Forget all cached keys and values; running sequences compute theirs again."""
        self.pool.drop_prefixes()
        self._prefixes.clear()
        for sequence in self.active.values():
            sequence.computed = 0

    def reset(self) -> None:
        """End everything that runs, without results, and forget all prefixes."""
        for sequence in list(self.active.values()):
            sequence.computed = 0
            self.end(sequence, "abort")
        self._prefixes.clear()
        self.pool.drop_prefixes()


def _is_early(sequence: Sequence) -> bool:
    """Tell whether a completion has not the least tokens yet that it is to have."""
    return len(sequence.logprobs) < sequence.request.sampling.min_new_tokens
