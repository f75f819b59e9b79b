"""What SGLang says of given tokens, as the library says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.generation import ScoringRequest, TokenScores
from roll.strategies.generation.sglang.errors import GenerationError


def scores_of(meta: Mapping[str, Any], request: ScoringRequest) -> TokenScores:
    """Return what the ``meta_info`` of an answer says of the tokens of a request from its ``start`` on.

    Raises:
        GenerationError: It says nothing, or something of other tokens.
    """
    # Of each token from the one before ``start`` on: log-prob (none of that one), id, text.
    own = (meta.get("input_token_logprobs") or [])[1:]
    if [entry[1] for entry in own] != request.token_ids[request.start :]:
        why = meta.get("finish_reason")
        raise GenerationError(f"sglang scored {len(own)} other tokens than those of {request.request_id!r} ({why})")
    named = (meta.get("input_top_logprobs") or [])[1:] if request.most_named else [[]] * len(own)
    if [len(entries) for entries in named] != [request.most_named] * len(own):
        raise GenerationError(f"sglang did not name {request.most_named} tokens everywhere in {request.request_id!r}")
    return TokenScores(
        [float(entry[0]) for entry in own],
        [[int(entry[1]) for entry in entries] for entries in named],
        [[float(entry[0]) for entry in entries] for entries in named],
    )
