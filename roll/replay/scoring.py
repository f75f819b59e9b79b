"""Log-probs of stored tokens under the distributions that an engine draws from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roll.generation import GenerationRequest
from roll.strategies.generation.grammars import Grammars
from roll.strategies.generation.hf_infer.sampling import adjusted, forbid, penalise
from roll.strategies.pictures import PictureEncoder


def score(
    model: PreTrainedModel,
    request: GenerationRequest,
    completion: Sequence[int],
    tokenizer: Callable[[], PreTrainedTokenizerBase] | None = None,
) -> list[float]:
    """Return the natural-log probability of each token of a completion, as the engine would report it.

    Args:
        model: The policy.
        request: What was asked: prompt and sampling.
        completion: Tokens that answer it, whoever drew them.
        tokenizer: Returns the policy's tokenizer, where the request has a grammar.

    Raises:
        SamplingError: The grammar cannot be followed.
    """
    tokens = [*request.prompt_ids, *completion]
    count, before = len(completion), len(request.prompt_ids)
    with torch.inference_mode():
        ids = torch.tensor([tokens], device=model.device)
        inputs = {"input_ids": ids}
        if request.pictures:
            inputs = PictureEncoder(model).shown(ids, [request.pictures]).padded()
        logits = model(**inputs, use_cache=False).logits[0, before - 1 : -1].float()
        sampling = request.sampling
        if sampling.repetition_penalty != 1.0:
            rows = range(count)
            seen = [tokens[: before + row] for row in rows]
            logits = penalise(logits, dict.fromkeys(rows, sampling.repetition_penalty), seen)
        early = range(min(count, sampling.min_new_tokens))
        if sampling.grammar:
            logits = forbid(logits, _outside(request, completion, Grammars(tokenizer, logits.shape[-1])))
        elif early and sampling.stop_token_ids:
            logits = forbid(logits, dict.fromkeys(early, torch.tensor(sampling.stop_token_ids)))
        logits = adjusted(
            logits,
            np.full(count, sampling.temperature, np.float64),
            np.full(count, sampling.top_k, np.int64),
            np.full(count, sampling.top_p, np.float64),
            np.full(count, sampling.min_p, np.float64),
        )
        chosen = torch.tensor(list(completion), device=model.device)
        return torch.log_softmax(logits, dim=-1).gather(1, chosen[:, None]).squeeze(1).tolist()


def _outside(request: GenerationRequest, completion: Sequence[int], grammars: Grammars) -> dict[int, torch.Tensor]:
    """Return what the grammar of a request forbids at each token of a completion."""
    grammars.check(request)
    held = grammars.hold(request.sampling)
    forbidden = {}
    for place, token in enumerate(completion):
        forbidden[place] = held.forbidden()
        held.take(token)
    return forbidden
