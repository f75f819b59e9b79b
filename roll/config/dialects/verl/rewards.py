"""verl: ``reward_model`` and ``custom_reward_function``: how responses are graded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, impossible, no_effect, own_code_row, plain
from roll.config.dialects.sources import domains
from roll.config.dialects.verl.sections import REWARD, has_reward_model, per_device

_MANAGERS: Final = ("naive", "batch", "dapo", "prime", "naive_async", "limited", "rate_limited", "remote")


def graded_alike(look: Look) -> bool:
    """Tell whether one function or model grades every row, whatever its source."""
    function = look("custom_reward_function")
    own = isinstance(function, Mapping) and function.get("path") is not None
    return look.native("rewards") is None and (own or has_reward_model(look))


def built_in_rewards(look: Look) -> dict[str, Any]:
    """Return the domains by the source of a row, where nothing else says how rows are graded."""
    if look.native("rewards") is not None or graded_alike(look) or look.agentic:
        return {}
    return domains()


def _reward_function(value: Any, look: Look) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.get("path") is None:
        return Unused("rows are graded by their source")
    written = {"kwargs" if key == "reward_kwargs" else key: item for key, item in value.items() if item is not None}
    # It grades every domain without verifiers; where none is configured, one for all rows.
    domain: dict[str, Any] = {"rewards.all": {}} if graded_alike(look) and not look.agentic else {}
    return Sets({"custom_reward_function": {"name": "compute_score", **written}}, domain)


def _enable(value: Any, look: Look) -> Any:
    if value is not True:
        return Unused() if value is False else value
    scored = {} if not graded_alike(look) else {"rewards.all.verifiers": {"reward_model": 1.0}}
    return Sets(scored, {"reward": {}})


def _if_enabled(value: Any, look: Look) -> Any:
    return value if has_reward_model(look) else Unused(f"{REWARD}.enable is not true")


def _share(value: Any, look: Look) -> Any:
    return per_device(value, look) if has_reward_model(look) else _if_enabled(value, look)


def _longest(value: Any, look: Look) -> Any:
    limit = look("data.max_response_length", value)
    if value != limit:
        return Impossible("the punishment begins before data.max_response_length", "set it to the same")
    return Unused()


def _manager(value: Any, look: Look) -> Any:
    if value in _MANAGERS:
        return Unused("grading is always parallel, by the verifiers in `rewards`")
    return Impossible(f"there is no reward manager {value}", "write custom_reward_function")


_OVERLONG: Final = {"enable": "enable", "len": "len", "penalty_factor": "penalty_factor"}

REWARD_ROWS: Final = (
    *plain(f"{REWARD}.overlong_buffer", "overlong_buffer", **_OVERLONG),
    *plain(f"{REWARD}.reward_kwargs.overlong_buffer_cfg", "overlong_buffer", **_OVERLONG),
    *no_effect(
        "every reward term is a metric",
        f"{REWARD}.overlong_buffer.log",
        f"{REWARD}.reward_kwargs.overlong_buffer_cfg.log",
    ),
    Row(f"{REWARD}.reward_kwargs.max_resp_len", note="as `data.max_response_length`", convert=_longest),
    Row(f"{REWARD}.enable", "reward", "true: the model scores every row, `rewards.all`", _enable),
    Row(f"{REWARD}.model.path", "reward_pretrain", "with `enable: true`", _if_enabled),
    Row(f"{REWARD}.model.use_remove_padding", "reward.use_remove_padding", "with `enable: true`", _if_enabled),
    Row(f"{REWARD}.micro_batch_size_per_gpu", "reward.infer_batch_size", "with `enable: true`", _if_enabled),
    Row(f"{REWARD}.micro_batch_size", "reward.infer_batch_size", "over all devices", _share),
    *no_effect("a reward model has its own chat template", f"{REWARD}.model.input_tokenizer"),
    *no_effect("a reward model reads conversations whole", f"{REWARD}.max_length"),
    own_code_row(f"{REWARD}.model.trust_remote_code"),
    *no_effect("a reward model is loaded whole", f"{REWARD}.model.override_config", f"{REWARD}.load_weight"),
    *no_effect("rpc_timeout is that of all calls", f"{REWARD}.nccl_timeout"),
    Row(
        "reward_manager.source",
        note="A manager of one's own: custom_reward_function.",
        only=("register",),
        agrees="rewards",
    ),
    Row("reward_manager.name", note="grading is always parallel", convert=_manager),
    *impossible("managers are not loaded", "reward_manager.module.path", instead="write custom_reward_function"),
    *no_effect("it goes with `reward_manager.module.path`", "reward_manager.module.name"),
    *no_effect("weights are read where they lie", f"{REWARD}.model.use_shm", f"{REWARD}.model.external_lib"),
    *no_effect("weights are read where they lie", f"{REWARD}.model.use_fused_kernels"),
    *no_effect(
        "a reward model scores in batches of `reward.infer_batch_size`, without an engine",
        f"{REWARD}.rollout",
        f"{REWARD}.use_dynamic_bsz",
        f"{REWARD}.forward_max_token_len_per_gpu",
        f"{REWARD}.ulysses_sequence_parallel_size",
        f"{REWARD}.strategy",
    ),
    *no_effect(
        "responses are graded while others are sampled, `rewards.<domain>.verifier_parallel` at a time",
        f"{REWARD}.use_reward_loop",
        f"{REWARD}.num_workers",
        f"{REWARD}.launch_reward_fn_async",
        f"{REWARD}.nnodes",
        f"{REWARD}.n_gpus_per_node",
        f"{REWARD}.enable_resource_pool",
    ),
    *no_effect("programs run in the sandbox of this machine", f"{REWARD}.sandbox_fusion"),
    *no_effect("no profile is written of single steps", f"{REWARD}.profiler"),
    Row(f"{REWARD}.reward_manager", note="grading is always parallel", convert=_manager),
    *impossible(
        "a reward loop of its own is not there",
        f"{REWARD}.reward_loop_source",
        f"{REWARD}.reward_loop_module_path",
        f"{REWARD}.reward_loop_class_name",
        instead="write custom_reward_function",
    ),
    Row(
        "custom_reward_function",
        "custom_reward_function",
        "`path: null` is none; unset, `name` is `compute_score` and `rewards` has one domain, `all`; "
        "`reward_kwargs` is `kwargs`",
        _reward_function,
    ),
)
"""The keys of rewards."""
