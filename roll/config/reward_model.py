"""The configuration of training reward models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from roll.config.errors import Problem
from roll.config.reward_model_keys import RewardModelKeys
from roll.config.strategies import STRATEGIES, strategies_for
from roll.config.trainer_keys import Head

_COLUMNS: Final = {"prompt": "prompt_key", "messages": "chosen_key and rejected_key, or steps_key"}
_READ_BY: Final = {
    "outcome": ("chosen_key", "rejected_key", "margin_key", "tools_key", "pair_margin", "center_rewards_coefficient"),
    "process": ("steps_key", "labels_key", "step_separator"),
}
"""Keys that only one supervision reads."""


class RewardModelConfig(RewardModelKeys):
    """Everything that ``examples/start_reward_pipeline.py`` reads."""

    program: ClassVar[str] = "examples/start_reward_pipeline.py"

    def head(self, role: str) -> Head:
        """Return what the model of a role has behind its backbone."""
        return "score" if self.supervision == "outcome" else "value"

    def identity(self) -> dict[str, Any]:
        """Return the keys that must not change when the run is resumed."""
        keys = ("supervision", "center_rewards_coefficient", "step_separator")
        return {**super().identity(), **{key: getattr(self, key) for key in keys}}

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from self.unread_columns(_COLUMNS)
        if self.evaluation is not None:
            fix = "remove it, and name rows in validation.data_args: metric val/accuracy."
            yield Problem("evaluation", "a reward model scores, and neither plays nor answers.", fix)
        for path, data in self.data_sections():
            if data.truncation == "right":
                fix = "set it to left, or filter_overlong_prompts: true."
                yield Problem(f"{path}.truncation", "scores are read at the end, which would be cut.", fix, "right")
        if not self.step_separator:
            yield Problem("step_separator", "nothing would tell steps apart.", 'use "\\n", or what your data have.', "")
        name = self.actor_train.strategy_args.strategy_name
        if name in STRATEGIES and not self.actor_train.strategy_args.about.saves_reward_models:
            able = [each for each in strategies_for("actor_train") if STRATEGIES.get(each).saves_reward_models]
            message, fix = f"{name} writes no checkpoint that is a reward model.", f"use {' or '.join(able)}."
            yield Problem("actor_train.strategy_args.strategy_name", message, fix, name)

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect."""
        yield from super().cautions()
        for supervision, keys in _READ_BY.items():
            for key in keys:
                if key in self.model_fields_set and self.supervision != supervision:
                    yield f"{key}: has no effect with supervision: {self.supervision}; {supervision} reads it."
