"""Trinity-RFT: ``model``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.model_config import rope_scaling
from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    dropped_if,
    impossible,
    no_effect,
    own_code_row,
)
from roll.config.dialects.trinity.sections import ALGO, DATA, SAMPLING, only_sampling, samples
from roll.config.errors import FixableError

_ARGS: Final = "actor_train.model_args"
_ENDPOINT: Final = "actor_infer.strategy_args.strategy_config"
_SERVICE: Final = "Tinker is a service that is not supported"


def _critic_model(value: Any, look: Look) -> Any:
    critic = look(f"{ALGO}.advantage_fn") == "ppo" or (
        look(f"{ALGO}.advantage_fn") is None and look(f"{ALGO}.algorithm_type") == "ppo"
    )
    return value if critic else Unused("the algorithm has no critic")


def _adapters(value: Any, look: Look) -> Any:
    """Convert the adapters that are trained, which are those of the first entry."""
    if not value:
        return Unused()
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise FixableError("must be a list of sections.", "write [{lora_rank: 32, lora_alpha: 32}].")
    if len(value) > 1:
        return Impossible("one set of adapters is trained", "leave one entry")
    first = value[0]
    if first.get("path"):
        return Impossible("training begins with new adapters", "a model into which they were merged, model_path")
    said: dict[str, Any] = {f"{_ARGS}.lora_rank": first.get("lora_rank", 32)}
    if first.get("lora_alpha") is not None:
        said[f"{_ARGS}.lora_alpha"] = first["lora_alpha"]
    if first.get("target_modules") not in (None, "all-linear"):
        said[f"{_ARGS}.lora_target"] = first["target_modules"]
    note = "adapters leave out no module by its name" if first.get("exclude_modules") else ""
    return Sets(said, note=note)


def _endpoint(option: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        if look("model.external_model.enable") is not True:
            return Unused("model.external_model.enable is not true")
        # A variable that is not set here stays one: a conversion writes it so.
        text = os.environ.get(str(value), f"${{oc.env:{value}}}") if option == "base_url" else value
        name = {"actor_infer.strategy_args.strategy_name": "openai_endpoint"}
        return Sets({f"{_ENDPOINT}.{option}": text}, name)

    return convert


def _external(value: Any, look: Look) -> Any:
    if value is not True:
        return Unused()
    return Sets({"actor_infer.strategy_args.strategy_name": "openai_endpoint"})


def _limit(value: Any, look: Look) -> Any:
    if not samples(look):
        return Unused("nothing is sampled")
    return Sets({"response_length": value, f"{SAMPLING}.max_new_tokens": value})


def _prompt_limit(value: Any, look: Look) -> Any:
    return only_sampling(value, look)


def _truncates(value: Any, look: Look) -> Any:
    if not samples(look):
        return Unused("nothing is sampled")
    return Sets({f"{DATA}.truncation": "right"}) if value is True else Unused()


def _sampled(native: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        own = look(f"buffer.explorer_input.taskset.rollout_args.{native}")
        if own not in (None, value):
            return Unused(f"taskset.rollout_args.{native} goes before it")
        return only_sampling(value, look)

    return convert


MODEL_ROWS: Final = (
    Row("model.model_path", "pretrain"),
    Row(
        "model.critic_model_path",
        "critic.model_args.model_name_or_path",
        "where the algorithm has a critic",
        _critic_model,
    ),
    Row("model.custom_chat_template", f"{DATA}.template", "`None` is none", dropped_if(("None",))),
    Row("model.chat_template_path", f"{DATA}.template", "`None` is none", dropped_if(("None",))),
    Row("model.max_model_len", "sequence_length"),
    Row("model.max_prompt_tokens", "prompt_length", "", _prompt_limit),
    Row("model.max_response_tokens", ("response_length", f"{SAMPLING}.max_new_tokens"), "", _limit),
    Row("model.repetition_penalty", f"{SAMPLING}.repetition_penalty", "", only_sampling),
    *(Row(f"model.{name}", f"{SAMPLING}.{name}", "", _sampled(name)) for name in ("temperature", "top_p", "top_k")),
    agreeing(
        "model.logprobs",
        "old_log_probs",
        "the log-prob of the token that was sampled is kept, and no other",
        lambda value, look: value == 0,
    ),
    Row("model.min_response_tokens", f"{SAMPLING}.min_new_tokens", "", only_sampling),
    Row("model.enable_prompt_truncation", f"{DATA}.truncation", "true cuts at the end", _truncates),
    Row("model.enable_thinking", f"{DATA}.enable_thinking"),
    own_code_row("model.trust_remote_code"),
    Row("model.lora_configs", f"{_ARGS}.lora_rank", "one set of adapters", _adapters),
    *no_effect(
        "the adapters that are trained are those that sample", "model.fully_sharded_loras", "model.max_cpu_loras"
    ),
    Row("model.rope_scaling", f"{_ARGS}.rope_scaling", "`linear`, `yarn` and `llama3`", rope_scaling("actor_train")),
    Row("model.rope_theta", f"{_ARGS}.rope_theta"),
    Row("model.external_model.enable", "actor_infer.strategy_args.strategy_name", "`openai_endpoint`", _external),
    Row("model.external_model.model_name", f"{_ENDPOINT}.model", "with `enable`", _endpoint("model")),
    Row("model.external_model.base_url_env", f"{_ENDPOINT}.base_url", "a variable", _endpoint("base_url")),
    Row("model.external_model.api_key_env", f"{_ENDPOINT}.api_key_env", "with `enable`", _endpoint("api_key_env")),
    *impossible(_SERVICE, "model.tinker.enable", instead="model.lora_configs trains adapters here"),
    *no_effect(
        _SERVICE,
        *(f"model.tinker.{name}" for name in ("rank", "seed", "train_mlp", "train_attn", "train_unembed", "base_url")),
    ),
)
"""The keys of the model."""
