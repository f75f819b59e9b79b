"""A policy that is trained on files, measured meanwhile by what it plays and answers: as `roll eval` measures it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import torch

from roll.config import ConfigError, ConfigWarning, load
from roll.config.loading import kind_to_measure
from roll.config.policy_evaluation import CONFIG, PolicyEvaluationKeys
from roll.pipelines.measuring import Evaluated, check_measurable, measure_now
from roll.pipelines.reporting.domain_metrics import domain_metrics, evaluation_metrics
from roll.pipelines.reporting.review import keep_evaluation
from roll.pipelines.roles.models import TrainRole
from roll.pipelines.sampling.levels import require_turns
from roll.pipelines.sampling.prompt_data import eval_prompts
from roll.tracking import Progress
from roll.workers.loading import Text
from roll.workers.train import HF

KEY: Final = "evaluation"
_FOLDER: Final = ".evaluated"
"""Where the policy is between two steps, for those who sample from it."""


@dataclass(frozen=True, slots=True)
class PolicyEvaluation:
    """What a policy is measured on.

    Attributes:
        config: All of it, as for an evaluation without training.
    """

    config: Evaluated

    @classmethod
    def of(cls, run: PolicyEvaluationKeys) -> Self | None:
        """Return what a run measures its policy on, if anything, after checking that it can.

        Raises:
            ConfigError: Lists every problem, at its place in the section.
        """
        if run.evaluation is None or not run.eval_steps:
            return None
        given = dict(run.evaluation)
        base: str | Mapping[str, Any] = given.pop(CONFIG, {})
        try:
            kind = kind_to_measure(base or given)
            with warnings.catch_warnings():  # keys of training have no effect on purpose
                warnings.simplefilter("ignore", ConfigWarning)
                config = load(base, kind=kind, overrides={**given, **_of_run(run, kind)})
            check_measurable(config)
        except ConfigError as error:
            raise _within(error) from error
        return cls(config)

    def require(self, text: Text) -> None:
        """Check what needs the tokenizer: that games of several turns can be written, and prompts be read.

        Raises:
            ConfigError: They cannot.
        """
        config = self.config
        try:
            if config.plays:
                require_turns(config, text)
            if config.validation is not None:
                eval_prompts(config, config.val_data_args, text)
        except ConfigError as error:
            raise _within(error) from error

    async def measure(self, trainer: TrainRole, text: Text, step: int, progress: Progress) -> dict[str, float]:
        """Measure the policy after ``step``; store its episodes and their review with the run.

        Returns:
            The figures of :func:`roll.pipelines.reporting.domain_metrics.evaluation_metrics`.
        """
        folder = self.config.output_dir.absolute() / _FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        try:
            await trainer.export(folder / HF)
            text.tokenizer.save_pretrained(folder / HF)
            # Workers set seeds when they start, and training must not depend on who looks at it.
            with torch.random.fork_rng():
                measured = await measure_now(self._of(folder / HF), progress=progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        keep_evaluation(self.config, progress, measured.groups, step, text.token_text)
        return {**evaluation_metrics(measured.groups), **domain_metrics(measured.groups)}

    def _of(self, policy: Path) -> Evaluated:
        return self.config.opponents_stay(self.config.pretrain).model_copy(update={"pretrain": str(policy)})


def _of_run(run: PolicyEvaluationKeys, kind: type[Evaluated]) -> dict[str, Any]:
    """Return the keys that the run decides."""
    written = run.conversation_args
    told = {"template": written.template, "enable_thinking": written.enable_thinking}
    keys: dict[str, Any] = {
        "pretrain": run.model_path("actor_train"),
        "actor_train.model_args.model_name_or_path": None,
        "seed": run.seed,
        "exp_name": run.exp_name,
        "output_dir": str(run.output_dir),
        "logging_dir": None,
        "render_save_dir": None if run.render_save_dir is None else str(run.render_save_dir),
        "checkpoint_config.output_dir": None,
        "resume_from_checkpoint": False,
        **({} if kind.plays else {"recorded": None}),
        "cluster": "local",
        "progress": "none",
        "track_with": [],
        "eval_steps": 1,  # who never evaluates has no workers for it
    }
    keys |= {f"actor_train.data_args.{key}": value for key, value in told.items()}
    return keys


def _within(error: ConfigError) -> ConfigError:
    """Return problems at their places in the section; one of a whole file is one of the section."""
    return ConfigError([replace(problem, path=_place(problem.path)) for problem in error.problems])


def _place(path: str) -> str:
    return KEY if "/" in path or " " in path else f"{KEY}.{path}"
