"""How good a policy is, on environments or problems: any policy, also one behind an endpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.api.endpoint import Endpoint
from roll.api.sources import PolicySource
from roll.config import AgenticConfig, ConfigError, EvaluationConfig, Problem, RunError, load
from roll.config.composing import quoted
from roll.config.loading import kind_to_measure, start_of
from roll.config.origins import Origins
from roll.config.run import RunConfig
from roll.models.toy import TOYS, configuration_of
from roll.runs.stored import StoredRun

if TYPE_CHECKING:
    from roll.api.policy import Policy
    from roll.api.results import Evaluation

_EPISODES = 128
_OTHER_MODEL = "actor_train.model_args.model_name_or_path"
"""The key by which a configuration names another model than ``pretrain``."""
_PLACES = ("logging_dir", "render_save_dir", "checkpoint_config.output_dir")
"""Keys by which a configuration has what it writes elsewhere than in ``output_dir``."""

Base = str | Path | Mapping[str, Any]


def evaluate(
    policy: Policy | Endpoint | StoredRun | str | Path | None = None,
    env: str | Sequence[str] | None = None,
    *,
    data: str | Path | Sequence[str | Path] | None = None,
    config: Base | None = None,
    episodes: int | None = None,
    attempts: int | None = None,
    greedy: bool = True,
    output_dir: str | Path | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    started: Origins | None = None,
    **changes: Any,
) -> Evaluation:
    """Measure a policy on environments or on problems with verifiable answers; nothing is trained.

    Example:
        >>> roll.evaluate(policy, env="SimpleSokoban")
        >>> roll.evaluate("toy_math", data="my_problems.jsonl")
        >>> roll.evaluate("Qwen/Qwen2.5-0.5B-Instruct", env=["SimpleSokoban", "FrozenLake"], episodes=256)
        >>> roll.evaluate(roll.endpoint("http://localhost:8000/v1", "my-model"), env="FrozenLake")
        >>> roll.evaluate(config="eval_math", output_dir="output/eval_math")

    Args:
        policy: What :func:`roll.load_policy` returned, or takes; or what :func:`roll.endpoint` returned. ``None`` for
            the one that ``config`` names.
        env: An environment tag, or several.
        data: Files of problems instead, the right answer in a column ``ground_truth``; the key
            ``validation.data_args.ground_truth`` names another. With neither of both, what the configuration validates
            with.
        config: The configuration that says everything else: what the policy is told, lengths, verifiers. By default
            that of the run which made the policy, and of a shipped policy that of its example.
        episodes: Levels, of all tags together; by default 128. A level has the same seed in every evaluation, and as
            a level of validation in training.
        attempts: Attempts at each level (by default 1) or problem (by default as the configuration says).
        greedy: Whether to play everything once more, greedily.
        output_dir: Where figures, sampled episodes and a review are written; ``None`` writes nothing.
        overrides: Further keys, as :func:`roll.train` takes them.
        started: The command line that asks for it; ``None`` from Python.
        changes: Further keys at the top level.

    Raises:
        ConfigError: Something is wrong; says what to do.
        RunError: The evaluation cannot go on, or its results cannot be written.
    """
    source = policy if policy is None or isinstance(policy, Endpoint) else _source(policy)
    task = _Task.of(env, data)
    base, kind = _base(source, config, task)
    if isinstance(source, PolicySource):
        source.folder()  # raises where there is none
    own = {"progress": "none", **_of_policy(source), **task.keys(kind, episodes, attempts)}
    if output_dir is not None:
        own |= {"exp_name": Path(output_dir).name, "output_dir": str(output_dir), **dict.fromkeys(_PLACES)}
    texts = [f"{key}={_written(value)}" for key, value in own.items()]
    given = [] if isinstance(overrides, Mapping) else list(overrides)
    keys = {**(overrides if isinstance(overrides, Mapping) else {}), **changes}
    words = started or Origins()
    checked = load(base, kind=kind, overrides=[*texts, *given], command=words.command, program=words.program, **keys)
    if isinstance(source, PolicySource):
        checked = checked.opponents_stay(start_of(base))
    # What follows imports torch, which takes seconds.
    from roll.api.results import Evaluation
    from roll.pipelines.evaluation import evaluate_and_store, evaluate_only, show_evaluation

    results = (evaluate_only if output_dir is None else evaluate_and_store)(checked, greedy=greedy)
    if output_dir is not None and checked.progress != "none":
        show_evaluation(results)
    found = Evaluation.of(results, stored=output_dir is not None)
    if found.sampled.errors and not found.sampled.success.episodes:
        raise RunError(f"None of {found.sampled.errors} episodes came to its end. The first: {found.sampled.broken}")
    return found


@dataclass(frozen=True, slots=True)
class _Task:
    """What a policy is to do: play tags, answer files, or (neither) what the configuration validates with."""

    tags: tuple[str, ...]
    files: tuple[str, ...]

    @classmethod
    def of(cls, env: str | Sequence[str] | None, data: str | Path | Sequence[str | Path] | None) -> _Task:
        """Return the task.

        Raises:
            ConfigError: It is said twice.
        """
        if env is not None and data is not None:
            problem = Problem("evaluate", "it plays an environment or answers problems.", f"give {_WAYS}, not both.")
            raise ConfigError([problem])
        tags = [env] if isinstance(env, str) else list(env or ())
        files = [data] if isinstance(data, str | Path) else list(data or ())
        return cls(tuple(tags), tuple(str(Path(file).expanduser().absolute()) for file in files))

    @property
    def kind(self) -> type[AgenticConfig] | type[EvaluationConfig] | None:
        """The model of the configuration that it takes; ``None`` if that of any will do."""
        return AgenticConfig if self.tags else EvaluationConfig if self.files else None

    def keys(self, kind: type[RunConfig], episodes: int | None, attempts: int | None) -> dict[str, Any]:
        """Return the keys that say it."""
        if kind is EvaluationConfig:
            asked = {"validation.generating_args.num_return_sequences": attempts}
            asked |= {"validation.data_args.max_samples": episodes}
            named = {"validation.data_args.file_name": list(self.files)} if self.files else {}
            return named | {key: value for key, value in asked.items() if value is not None}
        if not self.tags and episodes is None and attempts is None:
            return {}
        share, size = max(1, len(self.tags)), attempts or 1
        levels = math.ceil((episodes or _EPISODES) / share) * share
        keys: dict[str, Any] = {"env_groups": levels, "group_size": size, "n_groups": None}
        if self.tags:
            keys["tags"] = list(self.tags)
        played = {f"val_env_manager.{key}": value for key, value in keys.items()}
        played["eval_steps"] = 1  # a run that never evaluated has no workers for it
        # Prompts that a run answers beside its levels are no levels of these tags.
        return played | {"val_batch_size": levels * size} | ({"validation": None} if self.tags else {})


_WAYS = "env=… or data=… (--env TAG or --data FILE)"


def _base(
    source: PolicySource | Endpoint | None, config: Base | None, task: _Task
) -> tuple[Base, type[AgenticConfig] | type[EvaluationConfig]]:
    """Return the configuration that says how to speak with a policy, and the model of its keys.

    Raises:
        ConfigError: Nobody says what the policy is to do.
    """
    written = source.written if isinstance(source, PolicySource) else None
    if config is None and written is not None and task.kind in (None, kind_to_measure(written)):
        config = written
    if config is not None:
        return config, task.kind or kind_to_measure(config)
    if task.files:
        return _PROBLEMS, EvaluationConfig
    if task.tags:
        taught = isinstance(source, PolicySource) and source.pretrain in TOYS
        return configuration_of(task.tags[0]) if taught else _GAMES, AgenticConfig
    fix = f"give {_WAYS}, or a configuration (sokoban, eval_math, a file), which says what it validates with."
    raise ConfigError([Problem("evaluate", "it is not said what the policy is to do.", fix)])


_PROBLEMS, _GAMES = "eval_math", "envs"
"""Configurations for problems and games that name neither."""


def _source(policy: Policy | StoredRun | str | Path) -> PolicySource:
    """Return where a policy is.

    Raises:
        ConfigError: A run has no checkpoint.
    """
    if isinstance(policy, str | Path | StoredRun):
        return PolicySource.of(policy)
    return PolicySource(policy.source, policy.written)


def _of_policy(source: PolicySource | Endpoint | None) -> dict[str, Any]:
    """Return the keys that name a policy."""
    if source is None:
        return {}
    if isinstance(source, Endpoint):
        return {**source.keys(), "cluster": "local", _OTHER_MODEL: None}
    return {"pretrain": source.pretrain, "cluster": "local", _OTHER_MODEL: None}


def _written(value: Any) -> str:
    """Return a value as an override says it."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    return quoted(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
