"""ROLL's keys of rewards: the worker classes that grade, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, impossible, no_effect

_DOMAIN: Final = "rewards.*"
_VERIFIERS: Final = f"{_DOMAIN}.verifiers"

_GRADERS: Final = {
    "MathRuleRewardWorker": "math",
    "CodeSandboxRewardWorker": "code",
    "CrossThinkQARuleRewardWorker": "multiple_choice",
    "MultipleChoiceBoxedRuleRewardWorker": "multiple_choice",
    "GeneralRuleRewardWorker": "ifeval",
    "IFEvalRuleRewardWorker": "ifeval",
    "GeneralValRuleRewardWorker": "math",
    "LLMJudgeRewardWorker": "llm_judge",
}
"""Classes that grade, by their last name, and the verifier that does the same."""

_CLASSES: Final = "roll.pipeline."
"""How the paths of ROLL's own classes begin."""

_OWN_SERVER: Final = "http://localhost:8000/v1"


def is_gradable(section: Any) -> bool:
    """Tell whether the responses of a domain can be graded here: it names no class of ROLL that has no verifier."""
    worker = section.get("worker_cls") if isinstance(section, Mapping) else None
    return not isinstance(worker, str) or not worker.startswith(_CLASSES) or worker.rpartition(".")[2] in _GRADERS


def _domain(value: Any, look: Look) -> Any:
    if is_gradable(value):
        return value
    name = value["worker_cls"].rpartition(".")[2]
    known = ", ".join(sorted(set(_GRADERS.values())))
    return Impossible(f"nothing grades as {name} does", f"a verifier of text ({known})")


def _grader(value: Any, look: Look) -> Any:
    if not isinstance(value, str) or not value.startswith(_CLASSES):
        return value
    verifier = _GRADERS[value.rpartition(".")[2]]
    if verifier == "llm_judge":
        return Sets({f"{_VERIFIERS}.llm_judge.options.{key}": item for key, item in _judge(look).items()}, note=_SERVER)
    return Sets({f"{_VERIFIERS}.{verifier}": 1.0})


_SERVER: Final = "the judge is a server: start its model there, or name another base_url"


def _judge(look: Look) -> dict[str, Any]:
    """Return the options of a judge that is the model which the worker of ROLL loads itself."""
    cluster = look("reward_model.model_args") or {}
    model = cluster.get("model_name_or_path") or look.native(f"{_DOMAIN}.model_args.model_name_or_path")
    generating = look.native(f"{_DOMAIN}.generating_args") or {}
    options = {
        "engine": "http",
        "base_url": look(f"{_DOMAIN}.judge_api_url") or _OWN_SERVER,
        "model": look(f"{_DOMAIN}.judge_model_name") or model or look.native("reward_pretrain") or "judge",
        "temperature": generating.get("temperature"),
        "max_tokens": generating.get("max_new_tokens"),
    }
    return {key: item for key, item in options.items() if item is not None}


def _judge_kind(value: Any, look: Look) -> Any:
    return Sets({f"{_VERIFIERS}.llm_judge.options.engine": "http"})


def _partial(value: Any, look: Look) -> Any:
    return (
        Unused("verifiers give the share of what is right where there are parts")
        if value == "soft"
        else (Sets({f"{_DOMAIN}.success_threshold": 1.0}) if value == "hard" else value)
    )


def _no_penalty(value: Any, look: Look) -> Any:
    if value in (0, 0.0):
        return Unused("it is 0")
    return Impossible("lengths are not charged in a domain", "overlong_buffer, or the verifier overlong")


def _is_local(value: Any, look: Look) -> Any:
    if value is True:
        return Unused("code runs on this machine, shut in")
    return Impossible("code is not sent to a server", "the verifier code runs it on this machine, shut in")


REWARDS: Final[tuple[Row, ...]] = (
    Row(_DOMAIN, _DOMAIN, "domains that text decides", _domain),
    Row(f"{_DOMAIN}.worker_cls", _VERIFIERS, "the verifier that grades so", _grader),
    Row(f"{_DOMAIN}.reward_type", f"{_DOMAIN}.success_threshold", "", _partial),
    Row(f"{_DOMAIN}.response_length_penalty_coef", (), "only 0", _no_penalty),
    Row(f"{_DOMAIN}.use_local", (), "only true", _is_local),
    Row(f"{_DOMAIN}.judge_model_type", f"{_VERIFIERS}.llm_judge.options.engine", "a server", _judge_kind),
    Row(f"{_DOMAIN}.judge_model_name", f"{_VERIFIERS}.llm_judge.options.model"),
    Row(f"{_DOMAIN}.judge_api_url", f"{_VERIFIERS}.llm_judge.options.base_url"),
    *impossible(
        "keys are not written into files",
        f"{_DOMAIN}.judge_api_key",
        instead="options.api_key_env of the verifier llm_judge names the environment variable with the key",
    ),
    *no_effect(
        "it names a prompt of ROLL's code; options.prompt of the verifier llm_judge is the prompt, and its own "
        "compares with the reference answer too",
        f"{_DOMAIN}.judge_prompt",
    ),
    *no_effect(
        "the verifier code limits what it runs by its own options",
        f"{_DOMAIN}.code_url",
        f"{_DOMAIN}.test_case_num",
    ),
    *impossible(
        "answers are read as the verifier reads them",
        f"{_DOMAIN}.format_pattern",
        instead="the verifier format, with its pattern, beside the one that grades",
    ),
    *impossible(
        "a format is not charged in the verifier of answers",
        f"{_DOMAIN}.format_reward_weight",
        f"{_DOMAIN}.repetition_penalty_weight",
        instead="the verifier format in rewards.<domain>.verifiers, with its weight",
    ),
    *no_effect(
        "the server of a judge has options of its own",
        *(
            f"reward_model.{key}"
            for key in (
                "name",
                "worker_cls",
                "model_args",
                "generating_args",
                "data_args",
                "training_args",
                "strategy_args",
                "device_mapping",
                "num_gpus_per_worker",
                "world_size",
                "infer_batch_size",
                "system_envs",
            )
        ),
    ),
)
