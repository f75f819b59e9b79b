"""Keys of the ROLL guide that are valid, and that the agentic pipeline of this version does nothing with."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from roll.config import AgenticConfig

_REWARDS = "scores of the agentic pipeline are normalised by reward_normalization"
_CRITIC = "this version trains no critic"
_REWARD_MODEL = "rewards come from the environment"
_ONE_PROCESS = "this version runs everything in one process"
_SAMPLING = "hf_infer samples one response per request, without beams, penalties or stop texts"
_LORA = "this version trains all weights"
_DATA = "prompts come from the environment"

_WITHOUT_EFFECT = {
    **dict.fromkeys(
        (
            "reward_norm",
            "reward_shift",
            "reward_scale",
            "reward_clip",
            "use_reward_scaling",
            "use_reward_norm",
            "whiten_rewards",
            "add_len_reward",
            "difficulty_loss_weight",
            "length_loss_weight",
        ),
        _REWARDS,
    ),
    **dict.fromkeys(("value_clip", "critic_warmup", "critic"), _CRITIC),
    **dict.fromkeys(("reward", "reward_pretrain"), _REWARD_MODEL),
    "l2": "use actor_train.training_args.weight_decay",
    "is_use_additional_prompts": "every prompt of the agentic pipeline is an environment's",
    **{
        f"{manager}.{key}": _ONE_PROCESS
        for manager in ("train_env_manager", "val_env_manager")
        for key in ("max_env_num_per_worker", "worker_cls", "system_envs")
    },
    **{
        f"actor_infer.generating_args.{key}": _SAMPLING
        for key in ("num_beams", "num_return_sequences", "repetition_penalty", "stop_strings")
    },
    **{f"actor_train.model_args.{key}": _LORA for key in ("lora_rank", "lora_alpha", "lora_target")},
    **{f"actor_train.data_args.{key}": _DATA for key in ("file_name", "prompt", "messages")},
    **{f"{role}.system_envs": _ONE_PROCESS for role in ("actor_train", "actor_infer", "reference")},
}


def keys_without_effect(config: AgenticConfig) -> Iterator[str]:
    """Yield a sentence for every key that was set to something else than its default and does nothing here."""
    for path, reason in _WITHOUT_EFFECT.items():
        *parents, key = path.split(".")
        node: object = config
        for parent in parents:
            node = getattr(node, parent, None)
        if isinstance(node, BaseModel) and _was_changed(node, key):
            yield f"{path} has no effect: {reason}"


def _was_changed(node: BaseModel, key: str) -> bool:
    field = type(node).model_fields[key]
    default = field.get_default(call_default_factory=True)
    return key in node.model_fields_set and getattr(node, key) != default
