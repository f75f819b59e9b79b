"""Continuous batching without asyncio: admit requests into slots, step all of them, hand back what finished."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from roll.generation import Completion, GenerationRequest, fold_seed
from roll.generation.pictures import marked
from roll.strategies.generation.grammars import Grammars, Held
from roll.strategies.generation.hf_infer.drafts import Drafts
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
        reach: How many tokens are guessed ahead the next time: one more than were right the last time.
        held: What holds it to its grammar; ``None`` without one.
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
    reach: int = 0
    held: Held | None = None

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


Row = tuple[Sequence, int, list[int]]
"""What runs in a step: a sequence, how many tokens of its own that are not in the cache, and the guessed ones after."""

StepResults = list[tuple[Row, int, list[int], list[float]]]
"""Of each row the ``computed`` of its sequence then, and what was sampled, with log-probs: nothing while the prompt is
not through, and more than one token where a guess was right."""


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made."""

    generated_tokens: int = 0
    prefill_tokens: int = 0
    forward_tokens: int = 0
    cached_tokens: int = 0
    guessed_tokens: int = 0
    rightly_guessed_tokens: int = 0
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
        grammars: Hold completions to theirs.
        draft_tokens: Most tokens that are guessed ahead of a sequence and computed in the same step.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        max_slots: int,
        max_prefill_tokens: int,
        stop_strings: StopStrings,
        grammars: Grammars,
        draft_tokens: int = 0,
    ) -> None:
        self.runner = runner
        self.stop_strings = stop_strings
        self._grammars = grammars
        self.max_prefill_tokens = max_prefill_tokens
        self.version = 0
        self.counters = Counters()
        self.pool = SlotPool(max_slots)
        self.active: dict[str, Sequence] = {}
        self._prefixes: PrefixIndex[Sequence] = PrefixIndex()
        # The padded layout has logits of the last token of a row alone.
        self.draft_tokens = draft_tokens if runner.layout == "flat" else 0
        self._drafts = Drafts()

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
        if self.draft_tokens:
            sequence.reach = self.draft_tokens
            self._drafts.add(sequence.tokens, sequence.cached)
        if sequence.request.sampling.grammar:
            sequence.held = self._grammars.hold(sequence.request.sampling)
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
            What came of each sequence that took part.
        """
        started = time.perf_counter()
        with torch.inference_mode():
            rows = self._rows()
            if not rows:  # all were aborted before this step, in its thread, began
                return []
            tokens = [s.tokens[s.computed : s.computed + count] + draft for s, count, draft in rows]
            lengths = [len(each) for each in tokens]
            guessed = [len(draft) for _, _, draft in rows] if self.draft_tokens else []
            logits = self.runner.forward(
                np.array([self._slot_of(sequence) for sequence, _, _ in rows], dtype=np.int64),
                np.array([sequence.computed for sequence, _, _ in rows], dtype=np.int64),
                np.array(lengths, dtype=np.int64),
                tokens,
                [sequence.request.pictures for sequence, _, _ in rows],
                1 + np.array(guessed, dtype=np.int64) if any(guessed) else None,
            )
            forwarded = time.perf_counter()
            drawn = self._sample(logits, rows)
        counters = self.counters
        counters.steps += 1
        counters.slot_steps += len(rows)
        counters.guessed_tokens += sum(guessed)
        counters.forward_tokens += sum(lengths)
        counters.forward_seconds += forwarded - started
        counters.sampling_seconds += time.perf_counter() - forwarded
        return self._results(rows, *drawn)

    def _results(self, rows: list[Row], tokens: list[int], logprobs: list[float]) -> StepResults:
        """Deal what was drawn to the rows, to each up to its first wrong guess: what was drawn later follows a lie."""
        results: StepResults = []
        place = 0
        for row in rows:
            sequence, count, draft = row
            computed, right, end = sequence.computed + count, 0, place
            if computed == len(sequence.tokens):
                while right < len(draft) and draft[right] == tokens[place + right]:
                    right += 1
                end += right + 1
            if count > 1 or not sequence.logprobs:
                self.counters.prefill_tokens += count
            results.append((row, computed + right, tokens[place:end], logprobs[place:end]))
            if end > place:
                place += 1 + len(draft)
                self.counters.rightly_guessed_tokens += right
        return results

    def _rows(self) -> list[Row]:
        """Choose the sequences of the next step and what each runs."""
        rows: list[Row] = []
        budget = self.max_prefill_tokens
        # A copy: with a step in a thread, an abort may take a sequence out meanwhile.
        for sequence in list(self.active.values()):
            if sequence.computed == 0 and sequence.prefix_keys and not self._take_prefix(sequence):
                continue
            missing = len(sequence.tokens) - sequence.computed
            if missing == 1:
                rows.append((sequence, 1, self._draft(sequence) if self.draft_tokens else []))
            elif missing > 1 and budget > 0:
                count = min(missing, budget)
                budget -= count
                rows.append((sequence, count, []))
        return rows

    def _draft(self, sequence: Sequence) -> list[int]:
        """Guess how a sequence goes on that has one token to compute, with room for one more behind the guess."""
        # Each token changes them for those after it.
        if sequence.request.sampling.repetition_penalty != 1.0 or sequence.held is not None:
            return []
        return self._drafts.guess(sequence.tokens, min(sequence.reach, sequence.limit - len(sequence.tokens) - 1))

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

    def _sample(self, logits: torch.Tensor, rows: list[Row]) -> tuple[list[int], list[float]]:
        """Draw what follows each complete row and each of its guesses; returns tokens and their log-probs, in order.

        Args:
            logits: ``[tokens, vocabulary]``: of the last token of each row, and of as many more as were guessed.
            rows: The rows.
        """
        # The sequence of each, and how many of its guesses come before.
        places: list[tuple[Sequence, int]] = []
        wanted: list[bool] = []
        for sequence, count, draft in rows:
            is_complete = sequence.computed + count == len(sequence.tokens)
            wanted.append(is_complete)
            if is_complete:
                places.append((sequence, 0))
            if draft:
                places.extend((sequence, guessed) for guessed in range(1, 1 + len(draft)))
                wanted.extend([True] * len(draft))
        if not places:
            return [], []
        if len(places) < len(wanted):
            logits = logits[torch.tensor(wanted, device=logits.device)]
        params = [sequence.request.sampling for sequence, _ in places]
        penalties = {i: p.repetition_penalty for i, p in enumerate(params) if p.repetition_penalty != 1.0}
        if penalties:
            logits = penalise(logits, penalties, [sequence.token_ids for sequence, _ in places])
        forbidden = {i: tokens for i, place in enumerate(places) if (tokens := _forbidden(*place)) is not None}
        if forbidden:
            logits = forbid(logits, forbidden)
        noise = uniforms(
            np.array([sequence.seed for sequence, _ in places], dtype=np.uint64),
            np.array([len(sequence.logprobs) + guessed for sequence, guessed in places], dtype=np.uint64),
        )
        return sample(
            logits,
            np.array([p.temperature for p in params], dtype=np.float64),
            np.array([p.top_k for p in params], dtype=np.int64),
            np.array([p.top_p for p in params], dtype=np.float64),
            noise,
            np.array([p.min_p for p in params], dtype=np.float64),
        )

    def apply(self, results: StepResults) -> list[Sequence]:
        """Book the results of a step; returns the sequences that ended with it."""
        ended: list[Sequence] = []
        for (sequence, _, draft), computed, tokens, logprobs in results:
            if sequence.finish_reason is not None:  # aborted while the step ran
                continue
            known, sequence.computed = len(sequence.tokens), computed
            for token, logprob in zip(tokens, logprobs, strict=True):
                sequence.tokens.append(token)
                sequence.logprobs.append(logprob)
                if sequence.held is not None:
                    sequence.held.take(token)
                oldest = self.version if sequence.versions is None else sequence.versions[0]
                sequence.versions = (oldest, self.version)
                self.counters.generated_tokens += 1
                if token in sequence.request.sampling.stop_token_ids or self._completes_text(sequence):
                    self.end(sequence, "stop")
                elif len(sequence.tokens) >= sequence.limit:
                    self.end(sequence, "length")
                if sequence.finish_reason is not None:
                    ended.append(sequence)
                    break
            if draft:
                sequence.reach = min(self.draft_tokens, len(tokens))
            if self.draft_tokens:
                self._drafts.add(sequence.tokens, known)
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
        self._drafts.clear()
        for sequence in self.active.values():
            sequence.computed = 0

    def reset(self) -> None:
        """End everything that runs, without results, and forget all prefixes."""
        for sequence in list(self.active.values()):
            sequence.computed = 0
            self.end(sequence, "abort")
        self._prefixes.clear()
        self._drafts.clear()
        self.pool.drop_prefixes()


def _is_early(sequence: Sequence, guessed: int = 0) -> bool:
    """Tell whether a completion has not the least tokens yet that it is to have, with some more that are guessed."""
    return len(sequence.logprobs) + guessed < sequence.request.sampling.min_new_tokens


def _forbidden(sequence: Sequence, guessed: int) -> torch.Tensor | None:
    """Return what may not be drawn behind a completion and some guesses: ids, or a mask; ``None`` for nothing."""
    if sequence.held is not None:
        return sequence.held.forbidden()
    stops = sequence.request.sampling.stop_token_ids
    return torch.tensor(stops) if stops and _is_early(sequence, guessed) else None
