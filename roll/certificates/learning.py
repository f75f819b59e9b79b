"""Whether the toy policy learns an environment in some steps of real training, or why not."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from roll.certificates.records import Finding, Status
from roll.certificates.target import Target

CHECK, QUESTION = "learning.toy", "The toy policy learns it a little"
SECONDS = 150.0
"""After so long the training is given up."""

_COMPARED = 5
"""Steps at the beginning and at the end whose rewards are compared."""


@dataclass(frozen=True, slots=True)
class Training:
    """What a short training saw.

    Attributes:
        rewards: Mean reward of each step.
        valid: Share of responses with an action, step by step.
        flat: Share of groups without variance, step by step.
        failure: Why there are no steps, or no more.
    """

    rewards: Sequence[float]
    valid: Sequence[float] = ()
    flat: Sequence[float] = ()
    failure: str = ""


def train(target: Target, steps: int) -> Training:
    """Train the toy policy in a process of its own.

    Args:
        target: The environment.
        steps: Training steps, of 64 episodes each.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = {"name": target.name, "modules": list(target.modules), "steps": steps, "folder": folder}
        program = "import sys; sys.path.insert(0, ''); from roll.certificates.learning import run; run(sys.argv[1])"
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, json.dumps(request)], capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return Training((), failure=f"{steps} steps take longer than {SECONDS:g} s here")
        rows = _metrics(Path(folder))
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["nothing was said"]
            return Training((), failure=said[-1].replace(folder, "the run's folder"))
    return Training(
        rewards=[row["rollout/reward"] for row in rows],
        valid=[row["rollout/env/action_is_valid"] for row in rows if "rollout/env/action_is_valid" in row],
        flat=[row["rollout/zero_variance_groups"] for row in rows if "rollout/zero_variance_groups" in row],
    )


def judge_training(training: Training | None, why_not: str = "Only certify trains.") -> Finding:
    """Return what a training says about the environment; nothing of it makes an environment unfit.

    Args:
        training: What was seen; ``None`` if there was none.
        why_not: Why there was none.
    """
    if training is None:
        return Finding(CHECK, QUESTION, Status.NOT_APPLICABLE, why_not)
    rewards = training.rewards
    if training.failure or len(rewards) < 2 * _COMPARED:
        return Finding(CHECK, QUESTION, Status.UNSURE, f"It could not be trained: {training.failure or 'no steps'}.")
    first, last = rewards[:_COMPARED], rewards[-_COMPARED:]
    seen = f"Mean reward {fmean(first):.3g} → {fmean(last):.3g} (first and last {_COMPARED} of {len(rewards)} steps)."
    if fmean(last) - fmean(first) > 2 * sqrt((variance(first) + variance(last)) / _COMPARED) + 1e-9:
        return Finding(CHECK, QUESTION, Status.PASSED, seen)
    reason, fix = _reason(training)
    return Finding(CHECK, QUESTION, Status.UNSURE, f"{seen} {reason}", fix)


def _reason(training: Training) -> tuple[str, str]:
    """Say why nothing was learnt, and what to do."""
    if training.valid and fmean(training.valid) < 0.05:
        return (
            "It hardly ever says an action: it knows the words of Sokoban and FrozenLake only.",
            "Train a model that knows your actions; this says nothing against the environment.",
        )
    if training.flat and fmean(training.flat) > 0.9:
        return (
            f"{fmean(training.flat):.0%} of the groups have no variance, and teach nothing.",
            "Begin with easier levels, larger groups, or a policy that sometimes succeeds.",
        )
    return "There is something to learn from, but a policy this small did not in so few steps.", ""


def run(request: str) -> None:
    """Train, as the process that :func:`train` starts."""
    from roll.certificates.target import find
    from roll.config import load
    from roll.envs import register_env
    from roll.pipelines.agentic import run_agentic

    asked: dict[str, Any] = json.loads(request)
    source = find(Target(asked["name"], asked["modules"]))
    name = asked["name"]
    if source.tag is None:
        name = "certified"
        made = source.make()
        options = {"max_steps": made.max_steps} if getattr(made, "max_steps", None) else {}
        register_env(name, **options)(_as_class(source.make))
    config = load("sokoban", overrides=_overrides(name, asked["steps"], asked["folder"]))
    run_agentic(config)


def _as_class(make: Any) -> Any:
    """Return the class that a factory is, or one that makes what it makes."""
    if isinstance(make, type):
        return make
    made = type(make())

    class Made(made):  # type: ignore[misc, valid-type]
        def __new__(cls) -> Any:
            return make()

        def __init__(self) -> None:
            pass

    return Made


def _overrides(tag: str, steps: int, folder: str) -> dict[str, Any]:
    """Return the keys of a run that is small and learns fast."""
    return {
        "max_steps": steps,
        "save_steps": 0,
        "eval_steps": 0,
        "output_dir": folder,
        "progress": "none",
        "rollout_batch_size": 64,
        "train_env_manager.tags": [tag],
        "train_env_manager.env_groups": 8,
        "train_env_manager.group_size": 8,
        "val_env_manager.tags": [tag],
        "val_env_manager.env_groups": 8,
        "val_env_manager.group_size": 1,
        "val_batch_size": 8,
        "actor_train.training_args.learning_rate": 1e-3,
        "adv_estimator": "grpo",
        "reward_normalization": {"grouping": "state", "method": "mean_std"},
    }


def _metrics(folder: Path) -> list[Mapping[str, float]]:
    """Return the metrics of the training steps."""
    path = folder / "logs" / "metrics.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "rollout/reward" in row]
