"""A configuration filled in key by key: what is asked, answers that are checked at once, and the file that comes of it.

A form begins with a configuration that there is. Every answer is checked by loading the whole with it, so the form is
at any time a configuration that can be used.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from roll.config.composing import quoted
from roll.config.errors import ConfigError, ConfigWarning, Problem
from roll.config.explaining import KeyMeaning, explain
from roll.config.loading import load
from roll.config.run import RunConfig
from roll.config.runnable import require_runnable
from roll.config.validation import model_at
from roll.config.written import flat, scalar, to_mapping

ASKED: Final = (
    "exp_name",
    "pretrain",
    "train_env_manager.tags",
    "actor_train.data_args.file_name",
    "validation.data_args.file_name",
    "max_steps",
    "train_env_manager.env_groups",
    "train_env_manager.group_size",
    "rollout_batch_size",
    "num_return_sequences_in_group",
    "max_actions_per_traj",
    "max_tokens_per_step",
    "sequence_length",
    "actor_infer.generating_args.max_new_tokens",
    "adv_estimator",
    "actor_train.training_args.learning_rate",
    "actor_infer.strategy_args.strategy_name",
    "save_steps",
    "eval_steps",
    "track_with",
    "seed",
)
"""What decides most of a run, in the order in which it is asked; only keys that the kind of run has."""

_GROUPS: Final = ("train_env_manager.env_groups", "train_env_manager.group_size")
_OF_PROMPTS: Final = (
    "rollout_batch_size",
    "num_return_sequences_in_group",
    "actor_infer.generating_args.max_new_tokens",
)
"""Keys that for environments follow from others."""


@dataclass(frozen=True, slots=True)
class Question:
    """A key to be filled in.

    Attributes:
        key: Its path.
        now: Its value, as an answer is written.
        meaning: What it means, what it takes, its default.
    """

    key: str
    now: str
    meaning: KeyMeaning


class Form:
    """A configuration that is being filled in.

    Args:
        base: The name of the configuration that it begins with.

    Raises:
        ConfigError: There is none, or it cannot be used.
    """

    def __init__(self, base: str) -> None:
        if re.search(r"[/\\]|\.ya?ml$", base):
            fix = "name a preset, or a file of this folder without its .yaml."
            raise ConfigError([Problem("NAME", "a form begins with the name of a configuration.", fix, base)])
        self.base = base
        self._answers: dict[str, str] = {}
        self._config = self._with({})
        self._before = flat(to_mapping(self._config))
        if self.value("exp_name") == base:
            self.answer("exp_name", f"my_{base}")

    @property
    def kind(self) -> type[RunConfig]:
        """The kind of run that it is."""
        return type(self._config)

    def questions(self) -> Iterator[Question]:
        """Yield what is to be asked, each with its value at that time."""
        for key in ASKED:
            if self._is_asked(key):
                [meaning, *_] = [each for each in explain(key) if isinstance(each, KeyMeaning) and each.path == key]
                yield Question(key, scalar(self.value(key)), meaning)

    def value(self, key: str) -> Any:
        """Return the value that a key has now."""
        return flat(to_mapping(self._config)).get(key)

    def answer(self, key: str, text: str) -> None:
        """Set a key, and those that follow from it.

        Args:
            key: Its path.
            text: Its value, as behind ``key=`` on a command line.

        Raises:
            ConfigError: The configuration could not be used so; it is as before.
        """
        if key == "exp_name" and text == self.base:
            message = "a configuration of this name is what the form begins with."
            raise ConfigError([Problem(key, message, "choose another name.", text)])
        answers = {**self._answers, **self._following(key, text), key: text}
        self._config = self._with(answers)
        self._answers = answers

    def text(self) -> str:
        """Return the form as a YAML file: the configuration that it began with, and what is different."""
        after = flat(to_mapping(self._config))
        changed = {key: after[key] for key in self._answers if after.get(key) != self._before.get(key)}
        lines = [f"# roll train {self.value('exp_name')}.yaml", "defaults:", f"  - {self.base}", "  - _self_", ""]
        return "\n".join([*lines, *_nested(changed)]) + "\n"

    def _is_asked(self, key: str) -> bool:
        *above, name = key.split(".")
        model = model_at(self.kind, above)
        if model is None or name not in model.model_fields:
            return False
        values = flat(to_mapping(self._config))
        if key in _OF_PROMPTS:
            return _GROUPS[0] not in values
        # A file is asked for where there is one: data of another kind is more than a name.
        return not key.endswith("file_name") or bool(values.get(key))

    def _following(self, key: str, text: str) -> Mapping[str, str]:
        """Return what else changes, so that nobody has to multiply."""
        if key == "exp_name":
            return {"output_dir": f"output/{text}"}
        if key == "train_env_manager.tags":
            return {"val_env_manager.tags": text}
        if key in _GROUPS:
            [other] = [self.value(each) for each in _GROUPS if each != key]
            return {"rollout_batch_size": str(int(text) * other)} if text.isdecimal() else {}
        return {}

    def _with(self, answers: Mapping[str, str]) -> RunConfig:
        words = [f"{key}={_word(text)}" for key, text in answers.items()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            config: RunConfig = load(self.base, overrides=words, command=words)
        require_runnable(config)
        return config


def _word(text: str) -> str:
    """Return an answer as Hydra reads it; what is more than a word, a number or a list is quoted."""
    return text if re.fullmatch(r"[\w.+-]+|\[.*\]|\{.*\}|'.*'|\".*\"", text) else quoted(text)


def _nested(values: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield lines of YAML for values by their key paths."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, dot, rest = key.partition(".")
        if dot:
            sections.setdefault(name, {})[rest] = value
        else:
            yield f"{'  ' * depth}{name}: {scalar(value)}"
    for name, below in sections.items():
        yield f"{'  ' * depth}{name}:"
        yield from _nested(below, depth + 1)
