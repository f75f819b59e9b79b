"""Trinity-RFT: workflows and reward functions by name, as verifiers and environments of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.foreign_keys import is_typing_mistake
from roll.config.dialects.rows import Impossible, Look, Sets, Unused
from roll.config.dialects.trinity.sections import INPUT, TASKS, distils, first_of
from roll.config.errors import FixableError, choose_from

_MATH: Final[Mapping[str, Any]] = {"math": 1.0}
_BOXED: Final[Mapping[str, Any]] = {"math": {"options": {"answer_in": ["boxed"]}}}

REWARDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "accuracy_reward": _MATH,
    "math_reward": {"math": 1.0, "format": 0.2},
    "math_boxed_reward": _BOXED,
    "math_dapo_reward": _MATH,
    "countdown_reward": {"countdown": 1.0},
    "format_reward": {"format": 0.2},
    "rm_gallery_reward": _MATH,
}
"""Reward functions, and the verifiers that grade so."""

WORKFLOWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "simple_workflow": _MATH,
    "math_workflow": REWARDS["math_reward"],
    "math_boxed_workflow": _BOXED,
    "math_eval_workflow": _MATH,
    "math_rm_workflow": _MATH,
    "math_ruler_workflow": _MATH,
    "math_trainable_ruler_workflow": _MATH,
    "rubric_judge_workflow": _MATH,
    "on_policy_distill_workflow": _MATH,
    "on_policy_distill_math_workflow": _MATH,
    "on_policy_distill_sciqa_workflow": _MATH,
    "toolcall_workflow": {"tool_calls": 1.0},
    "simple_mm_workflow": _MATH,
    "agentscopev0_react_math_workflow": _MATH,
    "agentscopev1_react_math_workflow": _MATH,
    "agentscope_react_math_workflow": _MATH,
    "as_react_workflow": _MATH,
    "agentscope_v2_react_workflow": _MATH,
    "agentscope_v1_react_workflow": _MATH,
    "dapo_math_workflow": _MATH,
}
"""Workflows of one answer, and the verifiers that grade so; ``async_`` before a name says nothing new."""

GAMES: Final[Mapping[str, str]] = {
    "frozen_lake_workflow": "frozen_lake",
    "frozenlakeworkflow": "frozen_lake",
    "step_wise_frozen_lake_workflow": "frozen_lake",
}
"""Workflows that play an environment of ours."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "alfworld_workflow": "ALFWorld",
    "step_wise_alfworld_workflow": "ALFWorld",
    "raft_alfworld_workflow": "ALFWorld",
    "raft_reflect_alfworld_workflow": "ALFWorld",
    "sdop_alfworld_workflow": "ALFWorld",
    "webshop_workflow": "WebShop",
    "sciworld_workflow": "ScienceWorld",
    "email_search_workflow": "a mailbox that is searched",
    "bcp_simple_react_workflow": "BrowseComp-Plus",
    "agentscope_v1_react_search_workflow": "a search on the web",
    "sudoku_workflow": "Sudoku over several turns",
}
"""Workflows whose environments are not here."""

_FAMILIES: Final[Mapping[str, str]] = {"alfworld": "ALFWorld", "webshop": "WebShop", "sciworld": "ScienceWorld"}
"""What is in the name of a workflow of one's own, and the environment that it plays."""

_JUDGED: Final = ("rubric_judge_workflow", "math_ruler_workflow", "math_trainable_ruler_workflow")
_TOOLS: Final = "react"

JUDGE: Final = "judge"
"""What the auxiliary model that grades is called."""

_OWN_SERVER: Final = "http://localhost:8000/v1"


def name_of(value: Any) -> str:
    """Return a workflow's name without what says nothing here: that it is asynchronous, case, and where a game lies."""
    name = str(value).removeprefix("async_").lower()
    last = name.rpartition(".")[2]
    return last if last in GAMES else name


def plays(value: Any) -> bool:
    """Tell whether a workflow plays an environment, here or elsewhere."""
    return name_of(value) in GAMES or _elsewhere(name_of(value)) is not None


def _elsewhere(name: str) -> tuple[str, str] | None:
    """Return what a workflow plays that is not here, and a name for it; ``None`` where it plays nothing known."""
    family = next((each for each in _FAMILIES if each in name), None)
    if family is not None:
        return _FAMILIES[family], family
    return (ELSEWHERE[name], name.removesuffix("_workflow").rpartition("_")[2]) if name in ELSEWHERE else None


def _is_own_code(name: str) -> bool:
    """Tell whether a workflow is one that nobody here knows."""
    return bool(name) and name not in WORKFLOWS and not plays(name)


def workflow(look: Look) -> str:
    """Return the name of the workflow of the training tasks, empty where none is named."""
    own = look(f"{TASKS}.default_workflow_type")
    return name_of(own if own is not None else look(f"{INPUT}.default_workflow_type", ""))


def grade(value: Any, look: Look) -> Any:
    """Convert the workflow of training tasks to what grades them.

    Raises:
        FixableError: There is no such workflow, but one that is spelt almost so.
    """
    name = name_of(value)
    if look.agentic:
        if name in WORKFLOWS:
            return Unused("environments grade their own episodes")
        return Unused("") if name in GAMES or distils(look) else _refused(name, look)
    if look(f"{TASKS}.default_reward_fn_type", look(f"{INPUT}.default_reward_fn_type")) is not None:
        return _with_judge({}, name, look) or Unused()
    if name in WORKFLOWS:
        verifiers = WORKFLOWS[name]
        note = "an answer has one turn, without tools" if _TOOLS in name else ""
        return _with_judge(verifiers, name, look) or Sets(fills=_domain(verifiers, look), note=note)
    return _refused(name, look)


def _refused(name: str, look: Look) -> Any:
    elsewhere = _elsewhere(name)
    if elsewhere is not None:
        # Its module registers the environment, and is missing until somebody writes it.
        what, own = elsewhere
        stands_in = {
            "env_modules": [f"{own}_env"],
            "custom_envs.tasks.env_type": own,
            "train_env_manager.tags": ["tasks"],
            "val_env_manager.tags": ["tasks"],
        }
        instead = f"write it as an environment of your own (docs/environments.md) in a module {own}_env"
        return Impossible(f"{what} is not here", instead, stands_in)
    known = [*WORKFLOWS, *GAMES]
    if is_typing_mistake(name, known):
        raise FixableError("no workflow has this name.", choose_from(name, known))
    return Impossible("it is code of its own", "write custom_reward_function, or an environment", _graded(name, look))


def _graded(name: str, look: Look) -> dict[str, Any]:
    """Return what grades in place of code that is not here: a judge, where a model beside the policy is one."""
    if not asks_a_judge(look):
        return _domain(_BOXED if "box" in name else _MATH, look)
    return _domain({"llm_judge": {"options": {"engine": JUDGE}}}, look)


def asks_a_judge(look: Look) -> bool:
    """Tell whether an auxiliary model grades: that of a workflow with a judge, or of code that is not here."""
    name = workflow(look)
    if first_of(look("explorer.auxiliary_models")).get("model_path") is None or not look.kind_has("judges"):
        return False
    return name in _JUDGED[:2] or _is_own_code(name)


def _with_judge(verifiers: Mapping[str, Any], name: str, look: Look) -> Sets | None:
    """Return the judge that a workflow asks, an auxiliary model, ``None`` where it asks none."""
    if name not in _JUDGED:
        return None
    if name == "math_trainable_ruler_workflow":
        return Sets(fills=_domain({"llm_judge": {"options": {"engine": "policy"}}}, look))
    if asks_a_judge(look):
        fills = _domain({"llm_judge": {"options": {"engine": JUDGE}}}, look)
        return Sets(fills=fills, note="the judge grades answers one by one")
    options = {"engine": "http", "base_url": _OWN_SERVER, "model": "judge"}
    note = "no auxiliary model is named, so the judge is a server: start one there, or name another base_url"
    return Sets(fills=_domain({"llm_judge": {"options": options}}, look), note=note)


def reward(value: Any, look: Look) -> Any:
    """Convert a reward function to verifiers.

    Raises:
        FixableError: There is no such function, but one that is spelt almost so.
    """
    if look.agentic:
        return Unused("environments grade their own episodes")
    if not isinstance(value, str) or not value:
        return Unused("none is named")
    if value in REWARDS:
        note = "answers are compared with the right one, whatever the gallery's name" if "gallery" in value else ""
        return Sets(fills=_domain(REWARDS[value], look), note=note)
    if is_typing_mistake(value, REWARDS):
        raise FixableError("no reward function has this name.", choose_from(value, REWARDS))
    return Impossible("it is code of its own", "write custom_reward_function", _graded(value, look))


def _domain(verifiers: Mapping[str, Any], look: Look) -> dict[str, Any]:
    if look.native("rewards") is not None:
        return {}
    return {"rewards.all.verifiers": dict(verifiers)}
