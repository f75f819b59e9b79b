"""ROLL's keys of environments: tags, their templates and managers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Convert, Impossible, Look, Row, Sets, Unused, impossible, no_effect

_MANAGER: Final = "roll.pipeline.agentic."
_LIBRARIES: Final = ("custom_env", "custom_envs")
_PLACEHOLDERS: Final = {
    "env_instruction": "{instruction}",
    "current_observation": "{observation}",
    "state": "{observation}",
    "current_step": "{turn_idx}",
    "step_count": "{turn_idx}",
    "suffix": "",
    "history_length": "last",
    "history": "see the messages above",
    "user_prompt_format": "<answer> [your answer] </answer>",
    "reward": "",
}
"""What ROLL's templates fill in, in the words of ours."""

_TOOLS: Final = {"python_code": "python"}
"""Tools of ROLL, and those that do the same."""

_FIELD: Final = re.compile(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})")
_TYPES: Final = {
    "sokoban_native_env": "sokoban",
    "sokoban_sandbox": "sokoban",
    "roll_math": "problems",
    "frozen_lake_sandbox": "frozen_lake",
}


def _template(tag: str, turn: bool) -> Convert:
    """Return what writes a template in the placeholders that there are."""

    def convert(value: Any, look: Look) -> Any:
        if not isinstance(value, str):
            return value
        form = look(f"{tag}.user_prompt_format")
        words = {**_PLACEHOLDERS, **({"user_prompt_format": form} if isinstance(form, str) else {})}

        def put(match: re.Match[str]) -> str:
            return words.get(match[1], match[0])

        text = _FIELD.sub(put, value)
        if turn and "{observation}" not in text:
            text = f"{text}\n{{observation}}" if text else "{observation}"
        return value if text == value else text

    return convert


def _manager(played: bool) -> Convert:
    """Return what takes the manager of episodes for the samples that they become."""

    def convert(value: Any, look: Look) -> Any:
        if not isinstance(value, str) or not value.startswith(_MANAGER):
            return value
        name = value.rpartition(".")[2]
        if name == "TrajEnvManager":
            return Unused()
        if name in ("StepEnvManager", "StepConcatEnvManager"):
            if not played:
                return Unused("the tags that are played say it")
            note = "a turn is a sample with the conversation so far; no history is written into the prompt"
            return Sets({"train_env_manager.sample_mode": "step"}, note=note)
        if name.startswith("VL"):
            return Impossible("a policy is not shown pictures", "it is told the observation as text")
        return Impossible(f"nothing runs episodes as {name} does", "the manager of trajectories runs them")

    return convert


def _env_type(tag: str) -> Convert:
    """Return what names the environment that is the same, its options with it."""

    def convert(value: Any, look: Look) -> Any:
        if not isinstance(value, str):
            return value
        library, colon, name = value.partition(":")
        if colon and library == "rg":
            return Sets({f"{tag}.env_type": "reasoning_gym", f"{tag}.env_config.dataset": name})
        if colon and library == "game":
            game = {f"{tag}.env_type": "textarena", f"{tag}.env_config.game": name}
            return Sets(game, note="a game of textarena, as far as it has one of this name")
        return _TYPES.get(value, value)

    return convert


named_type: Final = _env_type("custom_envs.*")


def _options(tag: str) -> Convert:
    """Return what hands the options of a game or puzzle on to the library that has it."""

    def convert(value: Any, look: Look) -> Any:
        if value is None:
            return {}
        kind = look.native(f"{tag}.env_type") or look(f"{tag}.env_type")
        library = str(kind).partition(":")[0] if ":" in str(kind) else str(kind)
        if library not in _OF_LIBRARIES or not isinstance(value, Mapping):
            return value
        own, rest, words = _OF_LIBRARIES[library]
        values, left = {}, []
        for key, item in value.items():
            if key in words or key in own:
                values[f"{tag}.env_config.{words.get(key, key)}"] = item
            elif rest:
                values[f"{tag}.env_config.{rest}.{key}"] = item
            else:
                left.append(str(key))
        return Sets(values, note=f"{', '.join(left)} is left out" if left else "")

    return convert


_COMMON: Final = ("max_steps", "format_penalty", "action_pattern", "env_instruction")
_OF_LIBRARIES: Final[Mapping[str, tuple[tuple[str, ...], str, Mapping[str, str]]]] = {
    "game": ((*_COMMON, "game", "game_options", "longest", "worst"), "game_options", {}),
    "rg": ((*_COMMON, "dataset", "config", "size"), "config", {"seed": "questions_seed"}),
    "roll_math": ((*_COMMON, "file_name"), "", {"dataset_name": "file_name"}),
}
"""By library: options of ours, the option that takes all others, and words of theirs for ours."""


def _room(tag: str, part: int) -> Convert:
    """Return what makes a room's size of its two sides."""

    def convert(value: Any, look: Look) -> Any:
        sides = [look(f"{tag}.env_config.{key}") for key in ("dim_x", "dim_y")]
        if part == 1 and sides[0] is not None:
            return Unused()
        return [side if side is not None else value for side in sides]

    return convert


def _tools(tag: str) -> Convert:
    """Return what reads the tools of a wrapper."""

    def convert(value: Any, look: Look) -> Any:
        wrapped = value.get("tool_configs") if isinstance(value, Mapping) else None
        names = [each.get("tool_id") for each in wrapped or () if isinstance(each, Mapping)]
        tools = [_TOOLS[name] for name in names if name in _TOOLS]
        left = [str(name) for name in names if name not in _TOOLS]
        if not tools:
            return Impossible(f"no tool is {' or '.join(left) or 'named'}", "tools: calculator, python, search, mcp")
        values: dict[str, Any] = {f"{tag}.tools": tools}
        calls = (value.get("wrapper_args") or {}).get("max_tool_uses")
        if calls:
            values[f"{tag}.tool_use.max_calls"] = calls
        note = "tools are called as the chat template says"
        return Sets(values, note=f"{note}; {', '.join(left)} is left out" if left else note)

    return convert


def _of_a_tag(library: str) -> tuple[Row, ...]:
    """Return the rows of the tags in a library."""
    tag = f"{library}.*"
    return (
        Row(f"{tag}.env_type", f"{tag}.env_type", "", _env_type(tag)),
        Row(
            f"{tag}.env_manager_cls",
            "train_env_manager.sample_mode",
            "of step managers",
            _manager(library == "custom_envs"),
        ),
        Row(f"{tag}.env_config", f"{tag}.env_config", "those of a library's game are handed on", _options(tag)),
        Row(f"{tag}.agent_system_template", f"{tag}.agent_system_template", "", _template(tag, False)),
        Row(f"{tag}.agent_template", f"{tag}.agent_template", "", _template(tag, True)),
        Row(f"{tag}.env_instruction", f"{tag}.env_config.env_instruction"),
        Row(f"{tag}.max_actions_per_traj", f"{tag}.max_steps"),
        Row(f"{tag}.max_steps_per_traj", f"{tag}.max_steps"),
        Row(f"{tag}.env_config.dim_x", f"{tag}.env_config.dim_room", "with `dim_y`", _room(tag, 0)),
        Row(f"{tag}.env_config.dim_y", f"{tag}.env_config.dim_room", "with `dim_x`", _room(tag, 1)),
        Row(f"{tag}.tool_wrapper", f"{tag}.tools", "", _tools(tag)),
        *no_effect("agent_template says how to answer", f"{tag}.user_prompt_format"),
        *no_effect("the prompt says the limit of a response in tokens: {max_response_length}", f"{tag}.max_tokens"),
        *no_effect("the conversation holds all turns before", f"{tag}.history_length"),
        *no_effect("rewards are not told to the policy", f"{tag}.reward_template"),
        *no_effect("a turn has one template, agent_template", f"{tag}.pre_step_template", f"{tag}.next_step_template"),
        *impossible(
            "no agent of another program plays", f"{tag}.agent_runner_cls", instead="roll serve answers such agents"
        ),
        *impossible(
            "an environment is on this machine", f"{tag}.env_config.sandbox_base_url", f"{tag}.env_config.base_url"
        ),
    )


_SUBJECTS: Final = ("math", "game", "qa", "rg", "code", "single_prompt")


def _stands_elsewhere(value: Any, look: Look) -> Any:
    return Unused()


ENVIRONMENTS: Final[tuple[Row, ...]] = (
    *(row for library in _LIBRARIES for row in _of_a_tag(library)),
    Row("env_manager_cls", "train_env_manager.sample_mode", "of step managers", _manager(False)),
    *(
        Row(name, "custom_envs", "stands where the file interpolates it", _stands_elsewhere)
        for name in (
            *(f"gem_{library}" for library in ("math", "games", "qa", "rg", "code")),
            *(f"{name}_agent_system_template" for name in _SUBJECTS),
            *(f"{name}_agent_template" for name in _SUBJECTS),
            "user_prompt_no_think_format",
            "user_prompt_think_format",
            "reward_template",
            "default_history_length",
            "pre_step_template",
            "next_step_template",
            "agent_config_common",
        )
    ),
    *no_effect("an answer is one action", "action_sep"),
    *no_effect("actor_train.data_args.enable_thinking says whether the policy thinks", "enable_think"),
    *no_effect(
        "agents of other programs are answered by roll serve",
        "agent_runner_cls",
        "parse_tool_call_parameter_to_dict",
        "skip_mock_system_prompt",
    ),
)
