"""Whether the chosen algorithms fit each other and what is there, found before any model loads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from roll.algorithms import advantages, losses
from roll.algorithms.groups import AlgorithmWarning
from roll.algorithms.registry import LOSSES, Entry, Kind, registry
from roll.common.registry import UnknownNameError
from roll.config import Problem, RLConfig
from roll.config.errors import choose_from
from roll.pipelines.experience.opening import cluster_problems, priority_problems
from roll.pipelines.learning.algorithm_options import (
    estimator_keys,
    estimator_options,
    loss_keys,
    loss_options,
)
from roll.pipelines.learning.score_shaping import ScoreShaping
from roll.pipelines.run.checks import sentence

ESTIMATOR_INPUTS = frozenset(
    {
        "mask",
        "scores",
        "token_rewards",
        "group_ids",
        "turn_ids",
        "trajectory_ids",
        "lengths",
        "state_hashes",
        "baselines",
    }
)
"""What every pipeline can give an estimator; ``values`` need a critic."""

LOSS_INPUTS = frozenset({"turn_ids", "groups"})
"""What a batch can give a policy loss beside log-probs, advantages and mask."""

EXPERT_INPUTS = frozenset({"expert", "step"})
"""What it can give besides where experts wrote some of its rows."""

_BESIDE = frozenset({"mix", "chord"})
_IN_GROUPS = frozenset({"luffy"})
"""Losses that reinforce an expert's answers, as members of the groups of their prompts; the others imitate them."""

_OTHER_DATA = {"dpo": "pairs of preferences", "sft": "demonstrations"}
"""Algorithms that learn from something else than graded responses, and the pipelines that do."""

NORMALISATION = ("reward_norm", "use_reward_scaling", "reward_normalization")
"""Keys that compare scores with one another."""


def algorithm_problems(config: RLConfig) -> Iterator[Problem]:
    """Yield names that are not registered, inputs that are missing, and options that cannot be.

    Estimator and loss are tried on a batch of a few numbers, so that a wrong option, or a wrong shape from a function
    of the user's own, is found here.

    Args:
        config: Estimator, policy loss and their options. ``algorithm_modules`` must have been imported.
    """
    if config.algorithm_type in _OTHER_DATA:
        message = f"it learns from {_OTHER_DATA[config.algorithm_type]}, and this pipeline from what it samples."
        fix = f"use pipeline: {config.algorithm_type}, or grpo, ppo, opmd, or mix with an expert."
        yield Problem("algorithm_type", message, fix, config.algorithm_type)
        return
    available = ESTIMATOR_INPUTS | ({"values"} if config.critic else set())
    yield from _choice_problems(config, "advantage", "adv_estimator", config.adv_estimator, available)
    given = LOSS_INPUTS | (EXPERT_INPUTS if config.expert else set())
    yield from _choice_problems(config, "loss", "policy_loss", config.policy_loss_name, given)
    yield from priority_problems(config.experience)
    if config.mode in ("explore", "train"):
        yield from cluster_problems(config.experience)
        yield from _nccl_problems(config)
    yield from _unread_expert_problems(config)
    yield from _joining_problems(config)
    limit = config.response_limit
    if config.overlong_buffer.enable and config.overlong_buffer.len > limit:
        message = f"a response has at most {limit} tokens."
        fix = f"use at most {limit}, or raise response_length."
        yield Problem("overlong_buffer.len", message, fix, config.overlong_buffer.len)


def _nccl_problems(config: RLConfig) -> Iterator[Problem]:
    """Yield weights that are to travel between GPUs where there are none."""
    if config.experience is None or config.experience.sync is None or config.experience.sync.method != "nccl":
        return
    role = "actor_train" if config.mode == "train" else "actor_infer"
    has_gpu = torch.cuda.is_available() if config.cluster == "local" else getattr(config, role).device_mapping
    if not has_gpu:
        message = f"nccl sends from GPU to GPU, and {role} has none."
        yield Problem("experience.sync.method", message, "use gloo, or memory.", "nccl")


def _choice_problems(
    config: RLConfig, kind: Kind, key: str, name: str, available: frozenset[str] | set[str]
) -> Iterator[Problem]:
    """Check one estimator or loss: its name, its inputs, its options, then a trial."""
    try:
        entry = registry(kind).get(name)
    except UnknownNameError as error:
        yield Problem(key, sentence(error), "use a known name.", name)
        return
    missing = sorted(entry.needs - available)
    if missing:
        if "expert" in missing:
            fix = "add an expert: section (expert: {data_args: {file_name: answers.jsonl}}), or use the ppo loss."
            yield Problem(key, f"{name} learns from what experts wrote, and nothing says where that is.", fix, name)
            return
        fix = "add a critic: section." if missing == ["values"] else "use another one, such as grpo with the ppo loss."
        yield Problem(key, f"{name} needs {', '.join(missing)}, which this pipeline does not provide.", fix, name)
        return
    if "baselines" in entry.needs and (ScoreShaping.from_config(config).normalises or config.whiten_rewards):
        message = f"{name} subtracts the score of a greedy response, which normalised scores no longer compare with."
        yield Problem(key, message, f"leave {', '.join(NORMALISATION)} and whiten_rewards at their defaults.", name)
    own = estimator_keys(name) if kind == "advantage" else loss_keys(name)
    section = "advantage_options" if kind == "advantage" else "policy_loss_options"
    given: Mapping[str, Any] = getattr(config, section)
    problems = list(_option_problems(section, given, entry, own))
    yield from problems or _trial_problems(config, kind, section if given else key, name)


def _unread_expert_problems(config: RLConfig) -> Iterator[Problem]:
    """Yield rows of experts that the policy loss would take for samples of the policy."""
    name = config.policy_loss_name
    if config.expert is None or name not in LOSSES or "expert" in LOSSES.get(name).needs | LOSSES.get(name).uses:
        return
    knowing = ", ".join(one for one in LOSSES.names() if "expert" in LOSSES.get(one).needs)
    yield Problem("expert", f"policy_loss {name} knows no experts.", f"use one of {knowing}, or remove expert.")


def _joining_problems(config: RLConfig) -> Iterator[Problem]:
    """Yield a loss that reads of an expert's rows what they do not have where they stand."""
    if config.expert is None:
        return
    name, join = config.policy_loss_name, config.expert.join
    if name in _IN_GROUPS and join == "batch":
        message = f"{name} reads the advantages of an expert's answers, and rows beside the batch have none."
        yield Problem("expert.join", message, "use groups, or policy_loss: mix.", join)
    if name in _BESIDE and join == "groups":
        message = f"{name} imitates rows in their share of the batch, which members of groups are not."
        yield Problem("expert.join", message, "use batch, or policy_loss: luffy.", join)


def _option_problems(
    section: str, given: Mapping[str, Any], entry: Entry[Any], own: Mapping[str, tuple[str, ...]]
) -> Iterator[Problem]:
    free = [option for option in entry.options if option not in own]
    for option, value in given.items():
        if option in own:
            yield Problem(f"{section}.{option}", "this option is a key.", f"set {own[option][0]} instead.", value)
        elif option not in entry.options:
            fix = choose_from(option, free) if free else f"remove it: {entry.name} has no further options."
            yield Problem(f"{section}.{option}", f"{entry.name} has no such option.", fix, value)
    for option in entry.required_options():
        if option not in given and option not in own:
            yield Problem(section, f"{entry.name} needs the option {option}.", f"add {section}.{option}.", dict(given))


def _trial_problems(config: RLConfig, kind: Kind, key: str, name: str) -> Iterator[Problem]:
    """Call the function once: four samples of three tokens, in two groups."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AlgorithmWarning)
            _try_estimator(config) if kind == "advantage" else _try_loss(config)
    except Exception as error:
        message = f"{name} fails on a trial batch: {type(error).__name__}: {sentence(error)}"
        yield Problem(key, message, "correct its options, or the function.", getattr(config, key))


def _try_estimator(config: RLConfig) -> None:
    numbers = torch.arange(12.0).reshape(4, 3) / 12
    inputs = advantages.AdvantageInputs(
        mask=torch.ones(4, 3, dtype=torch.bool),
        token_rewards=numbers,
        scores=numbers[:, 0],
        group_ids=["a", "a", "b", "b"],
        values=numbers,
        turn_ids=torch.zeros(4, 3, dtype=torch.int64),
        trajectory_ids=range(4),
        state_hashes=torch.zeros(4, 3, dtype=torch.int64),
        baselines=numbers[:, 0],
    )
    advantages.compute(config.adv_estimator, inputs, estimator_options(config))


def _try_loss(config: RLConfig) -> None:
    numbers = torch.arange(12.0).reshape(4, 3) / 12
    log_probs = (-numbers).requires_grad_()
    mask, turns = torch.ones(4, 3, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.int64)
    further = {
        "turn_ids": turns,
        "groups": torch.tensor([0, 0, 1, 1]),
        "expert": torch.tensor([False, True, False, True]),
        "step": torch.ones(4, dtype=torch.int64),
    }
    losses.compute(config.policy_loss_name, log_probs, -numbers, numbers, mask, loss_options(config), **further)
