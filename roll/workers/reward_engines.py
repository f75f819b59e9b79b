"""Models that verifiers grade with: reward models, and the policy itself as a judge."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from roll.config import ConfigError, Problem
from roll.config.grading_keys import GradedKeys
from roll.generation import GenerationRequest, SamplingParams
from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import DTYPES
from roll.schedulers.generation import GenerationScheduler
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier
from roll.workers.loading import Text, device

JUDGE_TOKENS = 512


def reward_resources(config: GradedKeys, domain: str, text: Text, generation: GenerationScheduler) -> Mapping[str, Any]:
    """Return what the verifiers of a domain may use beside their options.

    Raises:
        ConfigError: If a reward model cannot be loaded.
    """
    model = _reward_model(config, domain) if _uses(config, domain, "reward_model") else {}
    return {"judge": policy_judge(text, generation, config.sequence_length), **model}


def is_judged_by_policy(config: GradedKeys) -> bool:
    """Whether a verifier asks the engine that samples the responses."""
    terms = (reward.terms(domain).get("llm_judge") for domain, reward in config.rewards.items())
    return any(term is not None and term.options.get("engine") == "policy" for term in terms)


def policy_judge(text: Text, generation: GenerationScheduler, sequence_length: int) -> Callable[[str], Any]:
    """Return a judge that answers with the current policy, greedily."""
    sampling = SamplingParams(max_new_tokens=JUDGE_TOKENS, temperature=0.0)
    numbers = itertools.count()

    async def judge(prompt: str) -> str:
        ids = text.renderer.initial_ids([{"role": "user", "content": prompt}])
        room = min(JUDGE_TOKENS, sequence_length - len(ids))
        if room < 1:
            raise ValueError(
                f"the judge's prompt has {len(ids)} tokens and leaves no room for a verdict in sequence_length "
                f"{sequence_length}: raise it, or shorten the judge's prompt"
            )
        completion = await generation.generate(
            GenerationRequest(
                request_id=f"judge-{next(numbers)}",
                prompt_ids=ids,
                sampling=sampling.within(room, text.renderer.stop_token_ids),
                seed=int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "big"),
            )
        )
        return text.renderer.decode(completion.token_ids)

    return judge


def _reward_model(config: GradedKeys, domain: str) -> dict[str, Any]:
    """Load the reward model of a domain: its own, else ``reward_pretrain``."""
    reward = config.rewards[domain]
    path, key = reward.model_args.model_name_or_path, f"rewards.{domain}.model_args.model_name_or_path"
    if path is None:
        path, key = config.reward_pretrain, "reward_pretrain"
    if path is None:
        fix = f"set reward_pretrain, or rewards.{domain}.model_args.model_name_or_path."
        raise ConfigError([Problem(key, f"domain {domain} is graded by a reward model, and none is named.", fix)])
    options = reward.terms(domain)["reward_model"].options
    try:
        classifier = SequenceClassifier.load(
            resolve_pretrain(path),
            dtype=DTYPES[reward.model_args.dtype],
            device=str(device()),
            batch_size=reward.infer_batch_size,
            label=options.get("label"),
            max_length=options.get("max_length"),
        )
    except ModelNotFoundError as error:
        raise ConfigError([Problem(key, error.message, error.fix, path)]) from error
    except ValueError as error:
        fix = "name a sequence classifier; of several outputs, the option label of reward_model names the score."
        raise ConfigError([Problem(key, str(error), fix, path)]) from error
    return {"score": classifier.score, "render": classifier.render, "infer_batch_size": reward.infer_batch_size}


def _uses(config: GradedKeys, domain: str, verifier: str) -> bool:
    return domain in config.rewards and verifier in config.rewards[domain].terms(domain)
