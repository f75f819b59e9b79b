"""Stages laid over what they share: of one composed configuration, one for each stage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from roll.config.composing import from_mapping
from roll.config.errors import ConfigError, Problem
from roll.config.kinds import PIPELINES, STAGES, PipelineKind, named_kind
from roll.config.moving import move_outputs
from roll.config.run import RunConfig
from roll.config.sources import Sources
from roll.config.staged import OF_THE_WHOLE, PRETRAIN, PREVIOUS, StagedConfig, StageKeys
from roll.config.validation import valid_keys

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_TAKEN: Final = (PREVIOUS, PRETRAIN, "checkpoints", "logs", "trajectories", "render", "branches", "teacher")
"""Names that mean something else, as a start or as a folder of a run."""


@dataclass(frozen=True, slots=True)
class Overlaid:
    """A stage before its keys are checked.

    Attributes:
        name: Its name.
        place: Where its section stands: ``("stages", "0")`` in a list.
        section: What it says itself, interpolations as written.
        keys: What of that is for the stage, not for its run.
        composed: All of it: what all stages share, with the section over it.
        kind: What it runs.
        leave_out: Top-level keys that are for other stages.
    """

    name: str
    place: tuple[str, str]
    section: Mapping[str, Any]
    keys: Mapping[str, Any]
    composed: DictConfig
    kind: PipelineKind
    leave_out: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        """Its section, as it is named on the command line."""
        return f"{STAGES}.{self.name}"

    def has(self, path: str) -> bool:
        """Whether the stage says a key itself."""
        return _has(self.section, path)

    def at_home(self, problem: Problem) -> Problem:
        """Return a problem of the stage's configuration under the key by which it can be mended."""
        shared = not self.has(problem.path) and _has(self.composed, problem.path)
        return problem if shared else replace(problem, path=f"{self.path}.{problem.path}")

    def overrides(self, given: Sequence[str]) -> list[str]:
        """Return what of the overrides is for this stage, keys as its own configuration spells them."""
        prefixes = tuple(f"{STAGES}.{name}." for name in (self.name, self.place[1]))
        own = []
        for text in given:
            bare = text.lstrip("+~")
            prefix = next((prefix for prefix in prefixes if bare.startswith(prefix)), None)
            if prefix is not None:
                own.append(bare.removeprefix(prefix))
            elif not bare.startswith(f"{STAGES}.") and not self.has(bare.partition("=")[0]):
                own.append(bare)
        return own

    def sources(self, whole: Sources) -> Sources:
        """Return where the keys of the stage were written."""
        return whole.within(dict.fromkeys([(STAGES, self.name), self.place]))


def overlay(composed: DictConfig, exp_name: str) -> list[Overlaid]:
    """Return every stage with what all of them share.

    A top-level key that only other kinds of run have is none of a stage. One that no kind has stays, and is refused
    when the stage is checked.

    Args:
        composed: The composed configuration.
        exp_name: The name of the experiment.

    Raises:
        ConfigError: The stages are not a list of named sections, or one says what it cannot; lists all of that.
    """
    base = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(base, dict)
    shared = {str(key): value for key, value in base.items() if key not in (STAGES, "hydra", "defaults")}
    sections = list(_sections(base.get(STAGES)))
    problems = [problem for name, place, section in sections for problem in _problems(name, ".".join(place), section)]
    if problems:
        raise ConfigError(problems)
    output = str(OmegaConf.select(composed, "output_dir") or RunConfig.model_fields["output_dir"].default)
    found: list[Overlaid] = []
    for name, place, section in sections:
        keys = {key: section[key] for key in StageKeys.model_fields if key in section}
        own = {key: value for key, value in section.items() if key not in StageKeys.model_fields}
        merged = OmegaConf.merge(from_mapping(shared), from_mapping(own))
        assert isinstance(merged, DictConfig)
        move_outputs(merged, f"{output}/{name}", keep=own)
        merged.exp_name = own.get("exp_name", f"{exp_name}_{name}")
        kind = _kind(".".join(place), merged)
        # What stages before it wrote: ${stages.sft.output_dir}.
        merged[STAGES] = {each.name: {"output_dir": f"{output}/{each.name}"} for each in found}
        found.append(Overlaid(name, place, section, keys, merged, kind))
    known = {key for name in PIPELINES for key in valid_keys(PIPELINES.get(name).config)}
    return [
        replace(
            stage,
            leave_out=frozenset(
                key
                for key in shared
                if key in known and key not in valid_keys(stage.kind.config) and not stage.has(key)
            )
            | {STAGES},
        )
        for stage in found
    ]


def without_effect(stages: Sequence[Overlaid], given: Sequence[str]) -> Iterator[str]:
    """Yield overrides of what all stages share that every one of them says otherwise."""
    for text in given:
        key = text.lstrip("+~").partition("=")[0]
        if key and all(stage.has(key) for stage in stages):
            yield f"{key}: has no effect, since every stage says its own: set {stages[0].path}.{key}."


def _sections(written: Any) -> Iterator[tuple[str, tuple[str, str], dict[str, Any]]]:
    """Yield name, place and section of each stage.

    Raises:
        ConfigError: They are something else.
    """
    if isinstance(written, dict):
        listed = [(str(name), str(name), section) for name, section in written.items()]
    else:
        listed = [
            (str(section.get("name") if isinstance(section, dict) else None), str(number), section)
            for number, section in enumerate(written or ())
        ]
    fix = "write a list of sections, each with a name and a pipeline: [{name: sft, pipeline: sft}, …]."
    problems = [] if listed else [Problem(STAGES, "there is no stage.", fix, written)]
    for position, (name, place, section) in enumerate(listed):
        where = f"{STAGES}.{place}"
        if not isinstance(section, dict):
            problems.append(Problem(where, "a stage is a section.", fix, section))
        elif "name" not in section and isinstance(written, list):
            problems.append(Problem(f"{where}.name", "the stage has no name.", "give it one; its folder is called so."))
        elif not _NAME.fullmatch(name) or name in _TAKEN:
            message = "a stage cannot be called so: its name is a folder, and a part of keys."
            problems.append(Problem(f"{where}.name", message, "use letters, digits, _ and -, such as sft.", name))
        elif name in [other for other, _, _ in listed[:position]]:
            problems.append(Problem(f"{where}.name", "another stage has this name.", "give each its own.", name))
        elif section.get("name", name) != name:
            fix = f"remove it, or call the section {section['name']}."
            problems.append(Problem(f"{where}.name", f"the section is called {name}.", fix, section["name"]))
    if problems:
        raise ConfigError(problems)
    for name, place, section in listed:
        yield name, (STAGES, place), {str(key): value for key, value in section.items() if key != "name"}


def _has(section: Any, path: str) -> bool:
    """Whether a section has a key, whatever it is set to."""
    for part in path.split("."):
        if not isinstance(section, Mapping | DictConfig) or part not in section:
            return False
        section = section[part] if isinstance(section, Mapping) else section._get_node(part)
    return True


def _problems(name: str, path: str, section: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what a section says that is not its own to say."""
    for key in OF_THE_WHOLE:
        if key in section:
            fix = f"set {key} at the top level; the stage writes to output_dir/{name}."
            yield Problem(f"{path}.{key}", "it is a key of the whole run.", fix, section[key])
    if PRETRAIN in section and section.get("start_from") != PRETRAIN:
        message = f"the stage starts from {section.get('start_from', 'the weights of the stage before it')}."
        fix = "remove pretrain; or set start_from: pretrain, if the stage is to start from that."
        yield Problem(f"{path}.{PRETRAIN}", message, fix, section[PRETRAIN])


def _kind(section: str, merged: DictConfig) -> PipelineKind:
    """Return what the stage of a section runs.

    Raises:
        ConfigError: It does not say, or there is no such kind, or it has stages itself.
    """
    path, fix = f"{section}.pipeline", "name one: pipeline: sft."
    try:
        found = named_kind(merged)
    except ConfigError as error:
        raise ConfigError([replace(each, path=f"{section}.{each.path}") for each in error.problems]) from error
    if found is None:
        raise ConfigError([Problem(path, "the stage does not say what it runs.", fix)])
    if issubclass(found.config, StagedConfig):
        raise ConfigError([Problem(path, "a stage has no stages.", fix, found.name)])
    return found
