"""Completions that have to follow a grammar: what may be drawn, with which log-probs, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hf_infer_support import engine_for, full_log_probs, qwen, run_all
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import Qwen3ForCausalLM

from roll.generation import Completion, GenerationRequest, SamplingError, SamplingParams
from roll.models.loading import load_tokenizer
from roll.replay.scoring import score
from roll.strategies.generation.openai_endpoint.options import refusals as of_an_endpoint
from roll.strategies.generation.sglang.limits import refusals as of_sglang
from roll.strategies.generation.vllm.limits import refusals as of_vllm

TOKENIZER: Any = load_tokenizer("toy")
VOCABULARY = len(TOKENIZER) + 5
"""More logits than tokens, as models have whose vocabulary is padded."""

STOP = TOKENIZER.eos_token_id
SCHEMA = {
    "type": "object",
    "properties": {"move": {"enum": ["up", "down"]}, "sure": {"type": "boolean"}},
    "required": ["move", "sure"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = f"start: %json {json.dumps(SCHEMA)}"


def request(number: int, **sampling: Any) -> GenerationRequest:
    given = {"max_new_tokens": 60, "grammar": GRAMMAR, "stop_token_ids": (STOP,)} | sampling
    return GenerationRequest(f"r{number}", [3, 1, 4, 1 + number], SamplingParams(**given), seed=number)


@pytest.fixture(scope="module")
def policy() -> Any:
    torch.manual_seed(1)
    small = qwen().config
    small.vocab_size = VOCABULARY
    return Qwen3ForCausalLM(small).eval()


def completions(policy: Any, *requests: GenerationRequest, **options: Any) -> list[Completion]:
    return run_all(engine_for(policy, tokenizer=lambda: TOKENIZER, **options), list(requests))


def read(completion: Completion) -> Any:
    assert completion.finish_reason == "stop" and completion.token_ids[-1] == STOP
    return json.loads(TOKENIZER.decode(completion.token_ids[:-1]))


def test_every_completion_follows_and_ends_where_it_is_complete(policy: Any) -> None:
    found = [read(each) for each in completions(policy, *(request(number) for number in range(12)))]

    assert all(set(each) == {"move", "sure"} and each["move"] in ("up", "down") for each in found)
    assert len({json.dumps(each) for each in found}) > 1, "they are drawn, and not all the same"


def test_log_probs_are_those_of_the_tokens_that_are_allowed(policy: Any) -> None:
    (completion,) = completions(policy, request(5, temperature=0.7))
    log_probs = full_log_probs(policy, request(5).prompt_ids, completion, temperature=0.7)
    matcher = LLMatcher(from_tokenizer(TOKENIZER, n_vocab=VOCABULARY), GRAMMAR)
    for place, token in enumerate(completion.token_ids):
        # Asked token by token, as the engine does not. Where the text is certain, so are its tokens.
        allowed = [t for t in range(VOCABULARY) if t != STOP and matcher.validate_tokens([t]) == 1]
        allowed = (matcher.compute_ff_tokens() or allowed)[: 1 if matcher.compute_ff_tokens() else None]
        allowed = [STOP] if matcher.is_accepting() else allowed
        expected = log_probs[place, token] - log_probs[place, allowed].logsumexp(0)
        assert completion.logprobs[place] == pytest.approx(float(expected), abs=2e-5)
        matcher.consume_token(token)


def test_a_replay_scores_them_as_they_were_drawn(policy: Any) -> None:
    asked = request(5, temperature=0.7)
    (completion,) = completions(policy, asked)
    again = score(policy, asked, completion.token_ids, lambda: TOKENIZER)
    assert again == pytest.approx(completion.logprobs, abs=2e-5)


def test_others_in_the_batch_and_guesses_ahead_change_nothing(policy: Any) -> None:
    free = request(9, grammar="", max_new_tokens=9)
    alone = [completions(policy, each)[0] for each in (request(2), free)]
    for options in ({}, {"draft_tokens": 3}, {"layout": "padded"}):
        beside = completions(policy, request(2), request(3), free, **options)
        assert [beside[0].token_ids, beside[2].token_ids] == [each.token_ids for each in alone]


def test_a_completion_that_is_cut_says_so_and_one_that_is_complete_ends_early(policy: Any) -> None:
    (cut,) = completions(policy, request(4, max_new_tokens=3))
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 3)

    (complete,) = completions(policy, request(4, min_new_tokens=50))
    assert read(complete)["move"] in ("up", "down")


def test_without_a_stop_token_the_tokenizers_own_ends_it(policy: Any) -> None:
    (completion,) = completions(policy, request(4, stop_token_ids=()))
    text = TOKENIZER.decode(completion.token_ids, skip_special_tokens=True)
    assert text.startswith('{"move":') and STOP in completion.token_ids


def test_what_cannot_be_followed_is_refused_before_it_runs(policy: Any) -> None:
    with pytest.raises(SamplingError, match="that is none"):
        completions(policy, request(1, grammar='start: %json {"type": "strong"}'))
    with pytest.raises(SamplingError, match="tokenizer=..."):
        run_all(engine_for(policy), [request(1)])


@pytest.mark.parametrize("refusals", [of_vllm, of_sglang, of_an_endpoint])
def test_engines_without_text_refuse_it(refusals: Any) -> None:
    assert [each.key for each in refusals(SamplingParams(grammar=GRAMMAR))] == ["grammar"]
    assert not list(refusals(SamplingParams()))
