"""Models that verifiers grade with: reward models, and the policy itself as a judge."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from roll.config import ConfigError, Problem
from roll.config.grading_keys import GradedKeys, RewardConfig
from roll.config.judges import judging
from roll.generation import GenerationRequest, SamplingParams
from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import DTYPES
from roll.models.number_format import own_format
from roll.rendering import spoken
from roll.rewards.process_reward_model import SEPARATOR
from roll.schedulers.generation import GenerationScheduler
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier
from roll.strategies.training.pytorch.step_classifier import StepClassifier
from roll.workers.environment import sampling_params
from roll.workers.loading import Text, as_scaled, device, load_text

JUDGE_SAMPLING: Final = SamplingParams(max_new_tokens=512, temperature=0.0)
"""Of the policy as its own judge."""

Load = Callable[[str, RewardConfig, Mapping[str, Any]], dict[str, Any]]
"""Loads a reward model from a folder; is given the keys of its domain, and the options of its verifier."""


def reward_resources(
    config: GradedKeys,
    domain: str,
    text: Text,
    generation: GenerationScheduler,
    judges: Mapping[str, GenerationScheduler] = MappingProxyType({}),
) -> Mapping[str, Any]:
    """Return what the verifiers of a domain may use beside their options.

    Args:
        config: The run.
        domain: Whose verifiers.
        text: Of the policy.
        generation: Samples from the policy.
        judges: Samples from each judge that the domain asks, by name.

    Raises:
        ConfigError: If a reward model cannot be loaded, or the tokenizer of a judge.
    """
    loaders = {"reward_model": _answers, "process_reward_model": _steps}
    models = [_loaded(config, domain, name, load) for name, load in loaders.items() if _uses(config, domain, name)]
    found = {name: resource for model in models for name, resource in model.items()}
    asked = {name: _judge(config, name, scheduler) for name, scheduler in judges.items()}
    own = judge(text, generation, config.sequence_length, JUDGE_SAMPLING)
    return {"judge": own, "judges": asked, **found}


def judges_of(config: GradedKeys, domain: str) -> list[str]:
    """Return the judges that the verifiers of a domain ask."""
    term = config.rewards[domain].terms(domain).get("llm_judge") if domain in config.rewards else None
    engine = None if term is None else term.options.get("engine")
    return [engine] if isinstance(engine, str) and engine in config.judges else []


def _judge(config: GradedKeys, name: str, generation: GenerationScheduler) -> Callable[[str], Any]:
    its = judging(config, name)
    sampling = sampling_params(its.actor_infer.generating_args)
    return judge(load_text(its), generation, its.sequence_length, sampling)


def is_judged_by_policy(config: GradedKeys) -> bool:
    """Whether a verifier asks the engine that samples the responses."""
    terms = (reward.terms(domain).get("llm_judge") for domain, reward in config.rewards.items())
    return any(term is not None and term.options.get("engine") == "policy" for term in terms)


def judge(
    text: Text, generation: GenerationScheduler, sequence_length: int, sampling: SamplingParams
) -> Callable[[str], Any]:
    """Return what answers a prompt as a judge.

    Args:
        text: Tokenizer and renderer of its model.
        generation: Samples from it.
        sequence_length: Most tokens of prompt and reply.
        sampling: Of its replies.
    """
    numbers = itertools.count()

    async def answer(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        ids = text.renderer.initial_ids(messages)
        room = min(sampling.max_new_tokens, sequence_length - len(ids))
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

    return answer


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
        folder = resolve_pretrain(as_scaled(path, reward.model_args))
        return load(folder, reward, reward.terms(domain)[verifier].options)
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
        dtype=_dtype(path, reward),
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
        dtype=_dtype(path, reward),
        device=str(device()),
        batch_size=reward.infer_batch_size,
    )
    return {"score_steps": classifier.score_steps, "infer_batch_size": reward.infer_batch_size}


def _dtype(path: str, reward: RewardConfig) -> torch.dtype:
    chosen = reward.model_args.dtype
    return DTYPES[own_format(path) if chosen == "auto" else chosen]


def _uses(config: GradedKeys, domain: str, verifier: str) -> bool:
    return domain in config.rewards and verifier in config.rewards[domain].terms(domain)
