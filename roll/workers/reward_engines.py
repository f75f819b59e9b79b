"""Models that verifiers grade with: reward models, and the policy itself as a judge."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from roll.config import ConfigError, Problem
from roll.config.grading_keys import GradedKeys, RewardConfig
from roll.generation import GenerationRequest, SamplingParams
from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import DTYPES
from roll.rendering import spoken
from roll.rewards.process_reward_model import SEPARATOR
from roll.schedulers.generation import GenerationScheduler
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier
from roll.strategies.training.pytorch.step_classifier import StepClassifier
from roll.workers.loading import Text, device

JUDGE_TOKENS = 512

Load = Callable[[str, RewardConfig, Mapping[str, Any]], dict[str, Any]]
"""Loads a reward model from a folder; is given the keys of its domain, and the options of its verifier."""


def reward_resources(config: GradedKeys, domain: str, text: Text, generation: GenerationScheduler) -> Mapping[str, Any]:
    """Return what the verifiers of a domain may use beside their options.

    Raises:
        ConfigError: If a reward model cannot be loaded.
    """
    loaders = {"reward_model": _answers, "process_reward_model": _steps}
    models = [_loaded(config, domain, name, load) for name, load in loaders.items() if _uses(config, domain, name)]
    found = {name: resource for model in models for name, resource in model.items()}
    return {"judge": policy_judge(text, generation, config.sequence_length), **found}


def is_judged_by_policy(config: GradedKeys) -> bool:
    """Whether a verifier asks the engine that samples the responses."""
    terms = (reward.terms(domain).get("llm_judge") for domain, reward in config.rewards.items())
    return any(term is not None and term.options.get("engine") == "policy" for term in terms)


def policy_judge(text: Text, generation: GenerationScheduler, sequence_length: int) -> Callable[[str], Any]:
    """Return a judge that answers with the current policy, greedily."""
    sampling = SamplingParams(max_new_tokens=JUDGE_TOKENS, temperature=0.0)
    numbers = itertools.count()

    async def judge(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        ids = text.renderer.initial_ids(messages)
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
                messages=messages if text.renderer.text_only else None,
            )
        )
        return spoken(completion, text.renderer)

    return judge


def _loaded(config: GradedKeys, domain: str, verifier: str, load: Load) -> dict[str, Any]:
    """Load the reward model of a domain: its own, else ``reward_pretrain``; return what its verifier is given."""
    reward = config.rewards[domain]
    path, key = reward.model_args.model_name_or_path, f"rewards.{domain}.model_args.model_name_or_path"
    if path is None:
        path, key = config.reward_pretrain, "reward_pretrain"
    if path is None:
        fix = f"set reward_pretrain, or rewards.{domain}.model_args.model_name_or_path."
        raise ConfigError([Problem(key, f"domain {domain} is graded by a reward model, and none is named.", fix)])
    try:
        return load(resolve_pretrain(path), reward, reward.terms(domain)[verifier].options)
    except ModelNotFoundError as error:
        raise ConfigError([Problem(key, error.message, error.fix, path)]) from error
    except ValueError as error:
        fix = "name a sequence classifier; of several outputs, the option label of reward_model names the score."
        if verifier == "process_reward_model":
            fix = "name a token classifier: what pipeline: reward_model writes with supervision: process."
        raise ConfigError([Problem(key, str(error), fix, path)]) from error


def _answers(path: str, reward: RewardConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    classifier = SequenceClassifier.load(
        path,
        dtype=DTYPES[reward.model_args.dtype],
        device=str(device()),
        batch_size=reward.infer_batch_size,
        label=options.get("label"),
        max_length=options.get("max_length"),
    )
    return {"score": classifier.score, "render": classifier.render, "infer_batch_size": reward.infer_batch_size}


def _steps(path: str, reward: RewardConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    classifier = StepClassifier.load(
        path,
        separator=options.get("separator", SEPARATOR),
        dtype=DTYPES[reward.model_args.dtype],
        device=str(device()),
        batch_size=reward.infer_batch_size,
    )
    return {"score_steps": classifier.score_steps, "infer_batch_size": reward.infer_batch_size}


def _uses(config: GradedKeys, domain: str, verifier: str) -> bool:
    return domain in config.rewards and verifier in config.rewards[domain].terms(domain)
