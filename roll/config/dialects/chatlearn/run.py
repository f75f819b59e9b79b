"""ChatLearn: ``runtime_args``, the run, its data and how responses are graded."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.chatlearn.sections import DEVICES, RESPONSES, RUN, responses
from roll.config.dialects.rows import (
    GENERATION_STRATEGIES,
    TRAIN_STRATEGIES,
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    choices,
    impossible,
    no_effect,
    plain,
    share,
    whole,
)
from roll.config.dialects.sources import domains
from roll.config.errors import FixableError

_DATA: Final = "actor_train.data_args"
_SOURCES: Final = {
    "math_rule": {
        "tag_included": [
            "openai/gsm8k",
            "DigitalLearningGmbH/MATH-lighteval",
            "aime24",
            "aime25",
            "hiyouga/geometry3k",
        ],
        "verifiers": {"math": {}},
    }
}
"""The sources of rows that ChatLearn grades, and the verifier that does the same."""

_MODELS: Final = ("policy", "policy_trainer", "ref_policy", "value", "value_trainer", "reward", "rollout_manager")

_LOG: Final = f"{RUN}.log_args_dict"


def _train_files(value: Any, look: Look) -> Sets:
    # Its rows have verl's columns: messages, the answer inside reward_model, the source.
    columns = {"messages": "prompt", "ground_truth": "reward_model.ground_truth", "tag": "data_source"}
    own = look.native(f"{_DATA}.prompt") is not None or look.native(f"{_DATA}.messages") is not None
    fills: dict[str, Any] = {} if own else {f"{_DATA}.{key}": name for key, name in columns.items()}
    if look.native("rewards") is None and not look.agentic:
        fills |= domains(_SOURCES)
    return Sets({f"{_DATA}.file_name": _files(value)}, fills)


def _val_files(value: Any, look: Look) -> Sets:
    return Sets({"validation.data_args.file_name": _files(value)})


def _together(value: Any, look: Look) -> Unused:
    names = value if isinstance(value, list) else [value]
    for name in (each for item in names for each in (item if isinstance(item, list) else [item])):
        if name not in _MODELS:
            raise FixableError(f"there is no model {name!r}.", f"name some of {', '.join(_MODELS)}.")
    return Unused()


def _files(value: Any) -> Any:
    if isinstance(value, str) and "," in value:
        return [part.strip() for part in value.split(",")]
    return value


def _samples(look: Look) -> int:
    if look(f"{RUN}.sample_per_episode") is not None:
        return whole(look(f"{RUN}.sample_per_episode"), f"{RUN}.sample_per_episode")
    return look.prompts("", RESPONSES) * responses(look)


def _episode(value: Any, look: Look) -> int:
    samples = whole(value, "the number of samples")
    return samples if look.agentic else share(samples, responses(look), "samples")


def _mini_batches(value: Any, look: Look) -> int:
    return share(_samples(look), value, "samples")


def _tracker(name: str, other: str) -> Any:
    """Convert a switch of a tracker; where several are on, each says them all."""

    def convert(value: Any, look: Look) -> Any:
        if not isinstance(value, bool):
            raise FixableError("must be true or false.", "write true or false.")
        if not value:
            return Unused()
        both = look(f"{_LOG}.enable_{other}") is True
        return sorted([name, other]) if both else [name]

    return convert


def _one_turn(value: Any, look: Look) -> Any:
    if value in ("chat", False):
        return Unused()
    return Impossible("a prompt has one response", "play an environment in the agentic pipeline")


def _text(value: Any, look: Look) -> Any:
    return Unused("" if value == "llm" else "prompts are text, and no picture is shown")


def _resume(value: Any, look: Look) -> Any:
    return value if look(f"{RUN}.data_checkpoint_path") is not None else Unused("no data checkpoint is named")


def _continued(value: Any, look: Look) -> Any:
    if value is False:
        return Unused()
    if value is not True:
        raise FixableError("must be true or false.", "write true or false.")
    reason = "a response is sampled to its end by one version of the weights"
    return Impossible(reason, "async_generation_ratio: 1 samples ahead of training")


RUN_ROWS: Final = (
    Row(
        f"{RUN}.train_backend",
        "actor_train.strategy_args.strategy_name",
        "`fsdp`, `megatron`",
        choices(TRAIN_STRATEGIES),
    ),
    Row(
        f"{RUN}.rollout_backend",
        "actor_infer.strategy_args.strategy_name",
        "`vllm`, `sglang`",
        choices(GENERATION_STRATEGIES),
    ),
    *plain(
        RUN,
        "",
        exp_name="exp_name",
        output_dir="output_dir",
        num_episode="max_steps",
        save_episode_interval="save_steps",
        eval_episode_interval="eval_steps",
        data_shuffle="actor_train.data_args.shuffle",
        num_training_epoch="ppo_epochs",
        bucket_size_mb_in_memory_manager="weight_sync.bucket_mib",
    ),
    Row(f"{RUN}.data_path", f"{_DATA}.file_name", "with its columns and rewards, unless others are set", _train_files),
    Row(f"{RUN}.eval_data_path", "validation.data_args.file_name", "with its columns", _val_files),
    Row(
        f"{RUN}.num_inference_per_prompt",
        "num_return_sequences_in_group",
        "where models.policy does not say it; agentic: `train_env_manager.group_size`",
        lambda value, look: value if look(RESPONSES) in (None, value) else Unused(f"{RESPONSES} says it"),
    ),
    Row(f"{RUN}.sample_per_episode", "rollout_batch_size", "in prompts (RLVR) or trajectories (agentic)", _episode),
    Row(
        f"{RUN}.train_global_batch_size",
        "mini_batches",
        "`sample_per_episode` divided by it; both count samples",
        _mini_batches,
    ),
    Row(f"{RUN}.train_micro_batch_size", "actor_train.training_args.per_device_train_batch_size"),
    Row(f"{_LOG}.enable_wandb", "track_with", "true is `wandb`", _tracker("wandb", "tensorboard")),
    Row(f"{_LOG}.enable_tensorboard", "track_with", "true is `tensorboard`", _tracker("tensorboard", "wandb")),
    Row(f"{_LOG}.log_dir", "logging_dir"),
    *(
        Row(f"{_LOG}.wandb_{name}", f"tracker_kwargs.wandb.{name}", "of that tracker")
        for name in ("project", "resume", "dir", "name", "id")
    ),
    Row(f"{_LOG}.tensorboard_dir", "tracker_kwargs.tensorboard.log_dir", "of that tracker"),
    Row(
        f"{RUN}.colocation",
        note="roles that take turns on the devices of models.policy_trainer.num_gpu",
        convert=_together,
        agrees=("actor_train.device_mapping", "actor_infer.device_mapping"),
    ),
    *no_effect("responses to one prompt go to the engine that has its prefix", f"{RUN}.data_rerank"),
    *no_effect(DEVICES, f"{RUN}.cpu_schedule_strategy", f"{RUN}.concurrent_setup"),
    Row(
        f"{RUN}.data_checkpoint_path",
        "resume_from_checkpoint",
        "true: a run goes on where it was; the place in the data follows from `seed` and step, and needs no file",
        lambda value, look: Sets(fills={"resume_from_checkpoint": look(f"{RUN}.enable_resume_training", True)}),
    ),
    *no_effect(
        "prompts follow from `seed` and step, so their place needs no file",
        f"{RUN}.consumed_samples",
        f"{RUN}.max_data_ckpt_nums",
        f"{RUN}.load_data_checkpoint_iteration",
        f"{RUN}.stream_data_loader_type",
        f"{RUN}.policy_to_regroup_queue",
    ),
    Row(f"{RUN}.enable_resume_training", "resume_from_checkpoint", "with a data checkpoint", _resume),
    Row(f"{RUN}.enable_eval_before_training", "eval_at_start"),
    Row(f"{RUN}.partial_rollout", (), "false only", _continued, agrees="async_generation_ratio"),
    Row(f"{RUN}.use_partial_rollout", (), "false only", _continued, agrees="async_generation_ratio"),
    agreeing(
        f"{RUN}.max_replay_episode",
        "async_generation_ratio",
        "episodes are kept",
        # Of the episodes that are kept, the newest alone is learned from: the number says that a step waits for it.
        lambda value, look: isinstance(value, int),
    ),
    *no_effect("only with max_replay_episode", f"{RUN}.replay_episode_offset"),
    Row(f"{RUN}.task_type", (), "`chat` only", _one_turn, agrees="pipeline"),
    Row(f"{RUN}.model_type", (), "text", _text, agrees="actor_train.data_args"),
    *no_effect("a scheduler gives requests to engines that are free", f"{RUN}.use_rollout_manager"),
    *no_effect("conversations are always kept as messages", f"{RUN}.raw_chat"),
    *impossible(
        "files have no shares of their own",
        f"{RUN}.data_ratio",
        instead="actor_train.data_args.domain_interleave_probs gives shares of domains",
    ),
    *no_effect("roll profile measures a step", f"{RUN}.nsys", f"{RUN}.profiler_dir", f"{RUN}.debug"),
    *no_effect(
        "each program makes what it needs of Ray",
        "runtime_env.excludes",
        "runtime_env.platform",
        "runtime_env.pip",
        "runtime_env.working_dir",
        "runtime_env.py_modules",
    ),
)
"""The keys of the run."""
