"""The table of all keys, generated from the models, so that the documentation cannot fall behind."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from roll.config.agentic import AgenticConfig
from roll.config.agentic_keys import AgenticKeys
from roll.config.algorithm import AlgorithmConfig, OverlongBuffer, SamplerCorrection
from roll.config.base import ConfigModel, as_list
from roll.config.demonstration_columns import DemonstrationColumns
from roll.config.device_mapping import parse_device_mapping
from roll.config.distill_keys import DistillKeys, TeacherConfig, TeacherKeys
from roll.config.distill_rows import RowDistillKeys
from roll.config.dpo_keys import DPOKeys
from roll.config.env_manager import (
    CurriculumConfig,
    CustomEnvConfig,
    EnvManagerConfig,
    RewardNormalization,
    Timeouts,
    ValEnvManagerConfig,
)
from roll.config.evaluation import EvaluationConfig
from roll.config.experience import ExperienceConfig
from roll.config.experience_sync import SyncConfig
from roll.config.expert import ExpertConfig
from roll.config.grading_keys import GradedKeys, QueryFilterConfig, RewardConfig, VerifierConfig
from roll.config.operators import OperatorsConfig
from roll.config.opponents import LeagueConfig, OpponentConfig
from roll.config.over_rollout import OverRollout
from roll.config.pair_keys import PairKeys
from roll.config.policy_evaluation import PolicyEvaluationKeys
from roll.config.profiling import ProfileConfig
from roll.config.prompt_keys import PromptKeys, ValidationConfig
from roll.config.reward_model_keys import RewardModelKeys
from roll.config.rl_keys import RLKeys
from roll.config.rope import RopeScaling
from roll.config.row_steps import HeldOutConfig, RowSteps
from roll.config.run import CheckpointConfig, RunConfig
from roll.config.sampling_keys import DynamicSampling, SamplingKeys
from roll.config.serving import ServeConfig
from roll.config.staged import StagedConfig, StageKeys
from roll.config.tool_use import ToolUse
from roll.config.tracing import TracingConfig
from roll.config.trainer_keys import TrainerKeys
from roll.config.weight_sync import WeightSyncConfig
from roll.config.worker import (
    CustomClass,
    DataArgs,
    GeneratingArgs,
    ModelArgs,
    StrategyArgs,
    TrainingArgs,
    TrainWorkerConfig,
    WorkerConfig,
)

START, END = "<!-- reference:start -->", "<!-- reference:end -->"
"""What surrounds the generated part of the page."""

_TITLES: dict[type[ConfigModel], str] = {
    RunConfig: "Every run (top level)",
    CheckpointConfig: "`checkpoint_config`",
    TrainerKeys: "Every run that trains (top level)",
    SamplingKeys: "Every run that samples (top level)",
    RLKeys: "Reinforcement learning (top level)",
    TracingConfig: "`tracing`",
    ProfileConfig: "`profile`",
    ExperienceConfig: "`experience`",
    SyncConfig: "`sync` of `experience`",
    ServeConfig: "`serve`",
    OperatorsConfig: "`operators`",
    ExpertConfig: "`expert`",
    WeightSyncConfig: "`weight_sync`",
    AlgorithmConfig: "Algorithm (top level)",
    OverlongBuffer: "`overlong_buffer`",
    SamplerCorrection: "`sampler_correction`",
    AgenticKeys: "Agentic (top level)",
    AgenticConfig: "Agentic, learning from scores (top level)",
    RewardNormalization: "`reward_normalization`",
    EnvManagerConfig: "`train_env_manager`, `val_env_manager`",
    CurriculumConfig: "`curriculum` of `train_env_manager`",
    Timeouts: "`timeouts` of an env manager",
    OpponentConfig: "A model in `opponents`",
    LeagueConfig: "`league` of an opponent",
    CustomEnvConfig: "A tag in `custom_envs` or `custom_env`",
    ToolUse: "`tool_use` of a tag",
    PromptKeys: "Prompts (top level)",
    GradedKeys: "Rewards (top level)",
    RewardConfig: "A domain in `rewards`",
    VerifierConfig: "A verifier in `verifiers`",
    QueryFilterConfig: "`query_filter_config` of a domain",
    DynamicSampling: "`dynamic_sampling`",
    OverRollout: "`over_rollout`",
    ValidationConfig: "`validation`",
    EvaluationConfig: "Evaluation alone (top level)",
    PolicyEvaluationKeys: "What a policy that imitates plays and answers (top level)",
    RowSteps: "Supervised fine-tuning, preferences, reward models (top level)",
    HeldOutConfig: "`validation` of supervised fine-tuning, preferences, reward models",
    DemonstrationColumns: "Columns of demonstrations: supervised fine-tuning (top level), `expert`",
    PairKeys: "Pairs of answers: preferences, reward models (top level)",
    DPOKeys: "Preferences (top level)",
    RewardModelKeys: "Reward models (top level)",
    TeacherKeys: "Distillation of every kind (top level)",
    DistillKeys: "Distillation on what the student samples (top level)",
    RowDistillKeys: "Distillation on files, beside the keys of supervised fine-tuning (top level)",
    TeacherConfig: "A teacher in `teachers`",
    StagedConfig: "Several stages (top level)",
    StageKeys: "A stage in `stages`, beside the keys of its kind of run",
    WorkerConfig: "A role: `actor_train`, `actor_infer`, `reference`, `teacher`, `critic`, `reward`",
    ModelArgs: "`model_args`",
    RopeScaling: "`rope_scaling`",
    TrainingArgs: "`training_args`",
    DataArgs: "`data_args`",
    CustomClass: "A class or function of your own (`custom_cls`, `custom_reward_function`)",
    GeneratingArgs: "`generating_args`",
    StrategyArgs: "`strategy_args`",
}


def reference_markdown() -> str:
    """Return the reference: one table per section, with type, default and meaning of every key."""
    return "\n\n".join(_table(model, title) for model, title in _TITLES.items())


def insert_reference(page: str) -> str:
    """Return ``page`` with the part between the markers replaced by the current reference.

    Raises:
        ValueError: The page does not have both markers.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page must have the markers {START} and {END}")
    return f"{before}{START}\n\n{reference_markdown()}\n\n{END}{after}"


def write_reference(path: Path) -> bool:
    """Bring the page at ``path`` up to date and return whether it changed."""
    page = path.read_text(encoding="utf-8")
    updated = insert_reference(page)
    path.write_text(updated, encoding="utf-8")
    return updated != page


def _table(model: type[ConfigModel], title: str) -> str:
    rows = []
    for name, field in _own_fields(model):
        cells = (_names(model, name), *describe(model, name, field))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([f"### {title}", "", "| Key | Type | Default | Meaning |", "| --- | --- | --- | --- |", *rows])


def describe(model: type[ConfigModel], name: str, field: FieldInfo) -> tuple[str, str, str]:
    """Return type, default and meaning of a key of ``model`` as cells of a table."""
    return _type(field), _default(model, name, field), _meaning(field)


def _own_fields(model: type[ConfigModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields that ``model`` adds to its base."""
    inherited = {name for base in model.__mro__[1:] if issubclass(base, BaseModel) for name in _fields(base)}
    for name, field in model.model_fields.items():
        if name not in inherited:
            yield name, field


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return model.model_fields if model not in (BaseModel, ConfigModel) else {}


def _names(model: type[ConfigModel], name: str) -> str:
    aliases = [f"`{alias}`" for alias, key in model.key_aliases.items() if key == name]
    return " or ".join([f"`{name}`", *aliases])


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|")


def _type(field: FieldInfo) -> str:
    readers = {getattr(item, "func", None) for item in _validators(field)}
    if as_list in readers:
        return "text or list of text"
    if parse_device_mapping in readers:
        return "list of integer, or text"
    return _type_name(field.annotation).replace("|", "\\|")


def _validators(field: FieldInfo) -> Iterator[Any]:
    """Yield the validators on the field, and on the parts of a union."""
    yield from field.metadata
    for part in get_args(field.annotation):
        yield from getattr(part, "__metadata__", ())


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if item is type(None) else _type_name(item) for item in arguments)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return "mapping" if arguments[1] is Any else f"mapping to {_type_name(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, ConfigModel):
        return "section"
    plain = {int: "integer", float: "number", bool: "boolean", str: "text", Path: "path"}
    return plain.get(annotation, re.sub(r"^.*\.", "", str(annotation)))


def _default(model: type[ConfigModel], name: str, field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, ConfigModel):
        engine = getattr(default, "strategy_name", None)
        return f"`{engine}`; trained roles `{_trained_default()}`" if engine and model is WorkerConfig else ""
    text = _yaml(default)
    if model is EnvManagerConfig:
        other = _yaml(ValEnvManagerConfig.model_fields[name].get_default(call_default_factory=True, validated_data={}))
        text = text if text == other else f"{text}; evaluation {other}"
    return text


def _trained_default() -> str:
    factory = TrainWorkerConfig.model_fields["strategy_args"]
    strategy: StrategyArgs = factory.get_default(call_default_factory=True, validated_data={})
    return strategy.strategy_name


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, dict):
        return "{}"
    return f"{value}"
