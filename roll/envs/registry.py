"""Environment types and tags: which environments there are, and how a run names them.

An environment *type* is a class. A *tag* is a type with its options, templates and limits: what a configuration lists
under ``tags``. Both come from this package, from ``@register_env`` and ``register_tag`` in Python, from
``custom_envs:`` in YAML, and from installed packages through the entry-point group ``roll.envs``.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gymnasium

from roll.common.registry import Registry
from roll.common.spelling import did_you_mean
from roll.envs.base import TextEnv
from roll.envs.errors import (
    DuplicateNameError,
    EnvConfigError,
    MissingDependencyError,
    UnknownEnvTypeError,
    UnknownTagError,
)
from roll.envs.tool_using import ToolUsingEnv
from roll.tools import ToolConfigError

if TYPE_CHECKING:  # all of the configuration, which an environment without tools needs nothing of
    from roll.config.tool_use import ToolUse

ENTRY_POINT_GROUP = "roll.envs"

SHOWS = ("text", "picture", "both")
"""What a policy may see of a state."""

DEFAULT_SYSTEM_TEMPLATE = "You are a careful player who aims for the highest score.\n\n{instruction}"
DEFAULT_AGENT_TEMPLATE = "Turn {turn_idx}:\n{observation}\nActions left: {actions_left}."

EnvClass = TypeVar("EnvClass", bound=type[gymnasium.Env[Any, Any]])


@dataclass(frozen=True, slots=True)
class Tag:
    """An environment as a run names it.

    Attributes:
        name: What ``tags:`` lists.
        env_type: Name of the environment type.
        env_config: Options given to the environment class.
        max_steps: Turns per episode; also the environment's own limit unless ``env_config`` sets one. ``None``: the
            environment decides.
        max_tokens_per_step: Tokens the policy may sample per turn; ``None``: the generation settings decide.
        agent_system_template: System message; ``{instruction}`` is the environment's.
        agent_template: User message of a turn, with ``{turn_idx}``, ``{observation}``, ``{actions_left}``,
            ``{max_response_length}`` and ``{instruction}``.
        env_manager_cls: Import path of the env manager; ``None`` for the default one.
        show: What the policy sees of a state: its ``text``, the ``picture`` that the environment draws, or ``both``.
        use_thread_lock: Whether calls of this environment must not overlap: all its environments share one thread.
        tools: Tools that the policy may call beside its actions: names, or mappings of a name to options.
        tool_use: Keys of :class:`roll.config.tool_use.ToolUse`: how calls are read, limited and charged.
        extra: Anything else a custom env manager wants.
    """

    name: str
    env_type: str
    env_config: Mapping[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    max_tokens_per_step: int | None = None
    agent_system_template: str = DEFAULT_SYSTEM_TEMPLATE
    agent_template: str = DEFAULT_AGENT_TEMPLATE
    env_manager_cls: str | None = None
    show: str = "text"
    use_thread_lock: bool = False
    tools: Sequence[str | Mapping[str, Mapping[str, Any] | None]] = ()
    tool_use: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


ENV_TYPES: Registry[type[gymnasium.Env[Any, Any]]] = Registry(
    "env_type", unknown=UnknownEnvTypeError, duplicate=DuplicateNameError
)
TAGS: Registry[Tag] = Registry(
    "environment tag", unknown=UnknownTagError, duplicate=DuplicateNameError, may_replace=True
)


def register_env(
    name: str, *, env_config: Mapping[str, Any] | None = None, **tag_options: Any
) -> Callable[[EnvClass], EnvClass]:
    """Class decorator: register an environment type and a tag, both called ``name``.

    Args:
        name: Name of the type and of the tag.
        env_config: Options of the tag's environment.
        **tag_options: Other fields of :class:`Tag` (``max_steps``, ``agent_template``, ...).

    Raises:
        DuplicateNameError: If the name is taken by another class.
    """
    tag = _build_tag(name, {"env_type": name, "env_config": env_config or {}, **tag_options})

    def decorate(env_class: EnvClass) -> EnvClass:
        ENV_TYPES.add(name, env_class)
        TAGS.add(name, tag, definition=env_class)
        return env_class

    return decorate


def register_tag(
    name: str,
    *,
    env_type: str,
    env_config: Mapping[str, Any] | None = None,
    replace: bool = False,
    **tag_options: Any,
) -> Tag:
    """Register a tag for an environment type.

    Args:
        name: Name of the tag.
        env_type: Name of the type; looked up when the tag is first used.
        env_config: Options of the environment.
        replace: Whether an existing tag of that name may be redefined.
        **tag_options: Other fields of :class:`Tag`.

    Raises:
        DuplicateNameError: If the tag exists and ``replace`` is false.
        EnvConfigError: On an unknown field.
    """
    tag = _build_tag(name, {"env_type": env_type, "env_config": env_config or {}, **tag_options})
    TAGS.add(name, tag, replace=replace)
    return tag


def register_tags_from_config(custom_envs: Mapping[str, Any]) -> list[Tag]:
    """Register the tags of a ``custom_envs:`` mapping, in place of tags of the same name until the run has ended.

    Args:
        custom_envs: Tag name -> mapping with the fields of :class:`Tag` (``env_type`` is required).

    Returns:
        The tags in order.

    Raises:
        EnvConfigError: On an unknown key, naming the nearest valid one, or a missing ``env_type``. Nothing is
            registered then.
    """
    tags = []
    for name, options in custom_envs.items():
        if not isinstance(options, Mapping):
            raise EnvConfigError(
                f"custom_envs.{name}: expected a mapping with env_type and env_config, got {options!r}"
            )
        tags.append(_build_tag(str(name), options, where=f"custom_envs.{name}"))
    for tag in tags:
        TAGS.configure(tag.name, tag, "custom_envs of the configuration")
    return tags


def list_tags() -> list[str]:
    """Return the names of all tags, sorted; those of installed packages are listed without importing them."""
    return sorted({*TAGS, *_entry_points()})


def get_tag(name: str) -> Tag:
    """Return a tag; an entry point is one with its own name and no options.

    Raises:
        UnknownTagError: If there is none, with the close names.
    """
    if name in TAGS:
        return TAGS.get(name)
    points = _entry_points()
    if name not in points:
        raise TAGS.unknown(name, points)
    return Tag(name=name, env_type=name)


def unregister(name: str) -> None:
    """Forget the tag and the environment type of that name; does nothing when there is none."""
    for names in (TAGS, ENV_TYPES):
        if name in names:
            names.remove(name)


def get_env_class(env_type: str) -> type[gymnasium.Env[Any, Any]]:
    """Return the class of an environment type.

    Raises:
        UnknownEnvTypeError: If there is none, with the close names.
        MissingDependencyError: If it needs a package that is not installed.
    """
    if env_type not in ENV_TYPES:
        points = _entry_points()
        if env_type not in points:
            raise ENV_TYPES.unknown(env_type, points)
        ENV_TYPES.add(env_type, _load_entry_point(points[env_type]))
    return ENV_TYPES.get(env_type)


def make(tag: str | Tag, seed: int | None = None, **overrides: Any) -> TextEnv:
    """Return a new environment.

    Args:
        tag: A tag or its name.
        seed: Used by the first ``reset()`` that is called without a seed; later resets continue that generator.
        **overrides: Options that replace those of the tag's ``env_config``.

    Raises:
        UnknownTagError: If there is no such tag.
        EnvConfigError: On an unknown option, naming the nearest valid one, or a value that cannot work.
        MissingDependencyError: If the environment needs a package that is not installed.
    """
    spec = tag if isinstance(tag, Tag) else get_tag(tag)
    env_class = get_env_class(spec.env_type)
    config = {**spec.env_config, **overrides}
    options = _options_of(cast(Any, env_class))
    if options is not None:
        for option in config:
            if option not in options:
                raise EnvConfigError(
                    f"tag {spec.name!r}: {env_class.__name__} has no option {option!r}. {did_you_mean(option, options)}"
                )
        if spec.max_steps is not None and "max_steps" in options:
            config.setdefault("max_steps", spec.max_steps)
    if spec.show != "text":
        _draw_pictures(spec, config)
    try:
        env = env_class(**config)
    except EnvConfigError as error:
        raise EnvConfigError(f"tag {spec.name!r}: {error}") from error
    if not isinstance(env, TextEnv):
        raise EnvConfigError(f"tag {spec.name!r}: {env_class.__name__} is not a roll.envs.TextEnv")
    if spec.tools:
        if hasattr(env_class, "toolbox"):
            message = "brings tools of its own, which these would hide. Leave out tools."
            raise EnvConfigError(f"tag {spec.name!r}: {env_class.__name__} {message}")
        try:
            env = ToolUsingEnv(env, spec.tools, tool_use(spec))
        except (ToolConfigError, ValueError) as error:
            raise EnvConfigError(f"tag {spec.name!r}: {error}") from error
    env.initial_seed = seed
    return env


def _draw_pictures(tag: Tag, config: dict[str, Any]) -> None:
    """Let the environment of a tag draw what the policy is to see, in the options that it is made with."""
    mode = config.setdefault("render_mode", "rgb_array")
    if tag.show not in SHOWS:
        raise EnvConfigError(f"tag {tag.name!r}: show={tag.show!r}. Use one of {', '.join(SHOWS)}.")
    if mode != "rgb_array":
        raise EnvConfigError(
            f"tag {tag.name!r}: show is {tag.show}, and render_mode={mode!r} draws no picture. Use rgb_array, or leave "
            "it out."
        )


def tool_use(tag: Tag) -> ToolUse:
    """Return how calls of a tag's tools are read, limited and charged.

    Raises:
        ValueError: A key is unknown or its value cannot work; the message says which.
    """
    from pydantic import ValidationError

    from roll.config.tool_use import ToolUse
    from roll.config.validation import validation_problems

    given = dict(tag.tool_use)
    try:
        return ToolUse.model_validate(given)
    except ValidationError as error:
        problems = validation_problems(error, given, ToolUse)
        told = "; ".join(f"tool_use.{each.path}: {each.message} Fix: {each.fix}" for each in problems)
        raise ValueError(told) from error


def _build_tag(name: str, options: Mapping[str, Any], where: str | None = None) -> Tag:
    where = where or f"tag {name!r}"
    known = {each.name for each in fields(Tag)} - {"name"}
    for key in options:
        if key not in known:
            raise EnvConfigError(f"{where}: unknown key {key!r}. {did_you_mean(str(key), known)}")
    if not options.get("env_type"):
        raise EnvConfigError(f"{where}: env_type is missing; name an environment type, for example 'sokoban'")
    # An absent value and an explicit null both mean the default.
    given = {key: _plain(value) for key, value in options.items() if value is not None}
    for key in ("env_config", "tool_use", "extra"):
        if not isinstance(given.get(key, {}), dict):
            raise EnvConfigError(f"{where}.{key}: expected a mapping, got {given[key]!r}")
    return Tag(name=name, **given)


def _plain(value: Any) -> Any:
    """Return a copy made of dicts and lists, whatever mappings and sequences (OmegaConf's, say) came in."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value


@lru_cache(maxsize=256)
def _options_of(env_class: Any) -> frozenset[str] | None:
    """Return the keyword options of a class, or ``None`` when it takes any."""
    parameters = inspect.signature(env_class).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters)


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _load_entry_point(point: importlib.metadata.EntryPoint) -> type[gymnasium.Env[Any, Any]]:
    try:
        target = point.load()
    except ImportError as error:
        package = point.dist.name if point.dist is not None else point.value.partition(":")[0].partition(".")[0]
        extras = f"[{','.join(point.extras)}]" if point.extras else ""
        advice = f"pip install '{package}{extras}'" if extras else f"pip install {error.name or package}"
        raise MissingDependencyError(
            f"environment {point.name!r} of package {package!r} needs {error.name or 'a module'!r}, which cannot be "
            f"imported ({error}). Try: {advice}"
        ) from error
    if not (isinstance(target, type) and issubclass(target, gymnasium.Env)):
        raise EnvConfigError(f"entry point {point.name!r} = {point.value!r} is not an environment class")
    return target
