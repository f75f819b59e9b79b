"""What an engine is asked for, and what it answers: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roll.generation.pictures import Picture


class SamplingError(ValueError):
    """An engine cannot draw tokens as a request asks for; others of its requests are answered."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn.

    Order of application, as in vLLM: repetition penalty, stop tokens that come too early, the grammar, logits /
    temperature, then min-p, then top-k, then top-p, then renormalise.

    Attributes:
        max_new_tokens: Upper bound on sampled tokens, the stop token included.
        temperature: 0 means greedy (log-probs are then those of the untempered distribution).
        top_p: Keep the smallest set of tokens whose probability reaches this, in (0, 1].
        top_k: Keep the k most likely tokens; 0 or -1 keeps all.
        min_p: Keep tokens that are at least this share as likely as the likeliest, in [0, 1]; 0 keeps all.
        stop_token_ids: Sampling ends after one of these is drawn; it stays in the completion.
        repetition_penalty: Of every token that the prompt or the completion already has, a positive logit is divided by
            this and a negative one multiplied (Keskar et al. 2019, "CTRL"); 1 changes nothing.
        stop_strings: Sampling ends with the token that completes one of these in the completion's text, special tokens
            written out; it stays in the completion.
        min_new_tokens: Before so many tokens are sampled, no stop token is drawn and no stop string ends it.
        grammar: What the text of a completion has to be, as a grammar that llguidance reads; a stop token is drawn only
            once it is complete, and then in spite of ``min_new_tokens``. Empty for any text.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    stop_strings: tuple[str, ...] = ()
    min_p: float = 0.0
    min_new_tokens: int = 0
    grammar: str = ""

    def within(self, max_new_tokens: int, stop_token_ids: Iterable[int] = ()) -> SamplingParams:
        """Return these for a place with room for ``max_new_tokens``, where ``stop_token_ids`` end a completion too."""
        stop = tuple(dict.fromkeys((*stop_token_ids, *self.stop_token_ids)))
        most = min(max_new_tokens, self.max_new_tokens)
        least = min(self.min_new_tokens, most)
        return replace(self, max_new_tokens=most, min_new_tokens=least, stop_token_ids=stop)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for a completion: token ids in.

    Attributes:
        request_id: Unique among running requests.
        prompt_ids: The whole prompt, history included (an engine finds the shared prefix itself).
        sampling: How to sample.
        seed: Keys the sampling noise. The same seed, prompt and weights give the same tokens whenever and beside
            whatever the request runs.
        session: Requests of one trajectory share it, so that an engine keeps their prefix; ``None`` for none.
        priority: Smaller runs earlier when slots are scarce.
        messages: The conversation, for engines that take it instead of tokens; ``None`` for all others.
        pictures: What the placeholder tokens of the prompt stand for, in the order of their places.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    seed: int = 0
    session: str | None = None
    priority: int = 0
    messages: Sequence[Mapping[str, str]] | None = None
    pictures: Sequence[Picture] = ()


@dataclass(slots=True)
class Completion:
    """What an engine returns: ids and exact sampler log-probabilities out.

    Attributes:
        token_ids: Sampled tokens, including the stop token if one was drawn.
        logprobs: Natural-log probability of each token under the distribution it was drawn from.
        finish_reason: ``"stop"``, ``"length"`` or ``"abort"``.
        policy_version: Oldest and newest weights used.
        cached_tokens: Prompt tokens whose keys and values were reused.
        text: What was said, by an engine that answers text and has no tokens; ``None`` from all others.
        problem: Why it was aborted, where that is known.
        waited: Seconds until an engine had room for the request, as far as the scheduler made it wait.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    policy_version: tuple[int, int] = (0, 0)
    cached_tokens: int = 0
    text: str | None = None
    problem: str = ""
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """Tokens that are there already: how likely is each of them, after those before it?

    Attributes:
        request_id: Unique among running requests.
        token_ids: The whole sequence.
        start: The first token that is scored, counted from 0; all after it are too. Nothing is before the first token,
            so it is at least 1.
        most_named: How many of the likeliest tokens are named at each place; 0 for none.
    """

    request_id: str
    token_ids: list[int]
    start: int = 1
    most_named: int = 0


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What an engine says of the tokens of a :class:`ScoringRequest` from its ``start`` on.

    Natural logarithms of probabilities over the whole vocabulary, at temperature 1.

    Attributes:
        log_probs: One for each token.
        named_ids: For each token, the likeliest ones in its place, likeliest first; empty lists where none are named.
        named_log_probs: Their log-probs.
    """

    log_probs: list[float]
    named_ids: list[list[int]]
    named_log_probs: list[list[float]]


Generate = Callable[[GenerationRequest], Awaitable[Completion]]
"""What callers are given: an engine's ``generate``, or that of a scheduler before engines."""
