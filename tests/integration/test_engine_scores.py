"""What every engine says of given tokens that can: log-probs over the whole vocabulary, and the likeliest tokens."""

from __future__ import annotations

import asyncio

import pytest
import torch
from engines import MAX_LENGTH, MOST_NAMED, EngineUnderTest, random_prompt

from roll.generation import ScoringRequest, TokenScores
from roll.strategies.base import ScoresTokens


@pytest.fixture
def scoring(engine: EngineUnderTest) -> EngineUnderTest:
    """An engine that scores tokens."""
    if not engine.about.scores_tokens:
        assert not isinstance(engine.engine, ScoresTokens)
        pytest.skip("does not score tokens")
    return engine


def check(engine: EngineUnderTest, request: ScoringRequest, got: TokenScores) -> None:
    """What is said of every place is what the model says there."""
    tokens, start = torch.tensor(request.token_ids), request.start
    true = engine.says.distributions(request.token_ids)[start - 1 :]
    own = true.gather(1, tokens[start:].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(got.log_probs), own, rtol=0, atol=1e-4)
    ids, log_probs = torch.tensor(got.named_ids), torch.tensor(got.named_log_probs)
    assert ids.shape == log_probs.shape == (len(own), request.most_named)
    if request.most_named:
        torch.testing.assert_close(log_probs, true.gather(1, ids), rtol=0, atol=1e-4)
        # Those that are named are the likeliest, and in this order.
        torch.testing.assert_close(log_probs, true.topk(request.most_named).values, rtol=0, atol=1e-4)


def test_given_tokens_are_scored_as_the_model_says_in_a_crowd(scoring: EngineUnderTest) -> None:
    assert isinstance(scoring.engine, ScoresTokens) and scoring.engine.vocabulary == scoring.vocabulary
    continued = [5, 6, 7, *scoring.says.greedy([5, 6, 7], 30)]
    sequences = [continued, *(random_prompt(2 + 17 * number, number) for number in range(12))]
    requests = [
        ScoringRequest(f"s{number}", ids, start=max(1, len(ids) // 3), most_named=number % (MOST_NAMED + 1))
        for number, ids in enumerate(sequences)
    ]

    async def crowd() -> list[TokenScores]:
        return list(await asyncio.gather(*(scoring.engine.score(request) for request in requests)))

    # A second time much of it may be cached.
    for _ in range(2):
        for request, got in zip(requests, scoring.run(crowd()), strict=True):
            check(scoring, request, got)


def test_a_sequence_may_be_as_long_as_any_and_is_scored_beside_completions(scoring: EngineUnderTest) -> None:
    longest = ScoringRequest("longest", random_prompt(MAX_LENGTH, 1), most_named=1)

    async def both() -> TokenScores:
        sampled = asyncio.create_task(scoring.engine.generate(scoring.request([5, 6], max_new_tokens=20)))
        scores = await scoring.engine.score(longest)
        assert len((await sampled).token_ids) == 20
        return scores

    check(scoring, longest, scoring.run(both()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start": 0}, "start is 0"),
        ({"start": 3}, "from 1 to 2"),
        ({"token_ids": [5, 6, 100_000]}, "outside the vocabulary"),
        ({"token_ids": [5] * (MAX_LENGTH + 1)}, "more than the engine's max_length"),
        ({"most_named": MOST_NAMED + 1}, f"made for 0 to {MOST_NAMED}"),
    ],
)
def test_what_cannot_be_scored_is_refused(scoring: EngineUnderTest, changes: dict[str, object], said: str) -> None:
    request = ScoringRequest(**{"request_id": "no", "token_ids": [5, 6, 7], **changes})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        scoring.run(scoring.engine.score(request))
