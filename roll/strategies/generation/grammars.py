"""Which tokens may come next where a completion has to follow a grammar: llguidance reads both, here for engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from roll.generation import GenerationRequest, SamplingError, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Grammars:
    """Holds completions to the grammars of their requests.

    Args:
        tokenizer: Returns the policy's tokenizer; ``None`` if nobody asks for a grammar.
        vocabulary: Number of logits, which may be more than the tokenizer has tokens.
    """

    def __init__(self, tokenizer: Callable[[], PreTrainedTokenizerBase] | None, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._tokens: Any = None

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request whose grammar cannot be followed.

        Raises:
            SamplingError: It is no grammar, or there is no tokenizer that llguidance reads.
        """
        if not request.sampling.grammar:
            return
        where = f"request {request.request_id!r} has a grammar"
        if self._tokenizer is None:
            raise SamplingError(f"{where}, and the engine was given no tokenizer: make it with tokenizer=...")
        from llguidance import LLMatcher

        problem = LLMatcher.validate_grammar(request.sampling.grammar)
        if problem:
            raise SamplingError(f"{where} that is none: {problem}")
        try:
            self._read()
        except (TypeError, ValueError) as error:
            raise SamplingError(f"{where}, and llguidance cannot read the policy's tokenizer: {error}") from error

    def hold(self, sampling: SamplingParams) -> Held:
        """Return what follows a completion from its first token on; the grammar was checked."""
        from llguidance import LLMatcher

        tokens = self._read()
        return Held(LLMatcher(tokens, sampling.grammar), sampling.stop_token_ids or (tokens.eos_token,), tokens)

    def _read(self) -> Any:
        if self._tokens is None:
            from llguidance.hf import from_tokenizer

            assert self._tokenizer is not None
            tokenizer: Any = self._tokenizer()
            self._tokens = from_tokenizer(tokenizer, n_vocab=self._vocabulary)
        return self._tokens


class Held:
    """A completion that is held to a grammar.

    Args:
        matcher: Where it stands.
        ends: What may be drawn once it is complete, and not before.
        tokens: The tokens, as llguidance has them.
    """

    def __init__(self, matcher: Any, ends: tuple[int, ...], tokens: Any) -> None:
        self._matcher = matcher
        self._ends = list(ends)
        self._tokens = tokens

    def forbidden(self) -> torch.Tensor:
        """Return which tokens may not come next, bool ``[vocabulary]``; all but one at most."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        words = allocate_token_bitmask(1, self._tokens.vocab_size)
        fill_next_token_bitmask(self._matcher, words, 0)
        bits = np.unpackbits(words.view(np.uint8), count=self._tokens.vocab_size, bitorder="little")
        allowed = bits.astype(bool)
        allowed[[*self._ends, self._tokens.eos_token]] = False
        if self._matcher.is_accepting() or not allowed.any():
            allowed[self._ends] = True
        return torch.from_numpy(~allowed)

    def take(self, token: int) -> None:
        """Go on behind a token that was drawn; one that ends a completion leaves nothing to go on from."""
        if token not in self._ends:
            self._matcher.consume_token(token)
