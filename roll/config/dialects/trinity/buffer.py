"""Trinity-RFT: ``buffer``: tasks, evaluations, batches, and what lies between explorer and trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.counting import steps_of
from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    agreeing,
    impossible,
    no_effect,
    share,
    under,
    whole,
)
from roll.config.dialects.trinity.rewards import GAMES, grade, name_of, reward, workflow
from roll.config.dialects.trinity.sections import (
    ALGO,
    DATA,
    INPUT,
    SAMPLING,
    TASKS,
    TRAIN,
    distils,
    first_of,
    mode,
    samples,
)
from roll.config.errors import FixableError

_STORAGES: Final = ("file", "queue", "sql")
_PLAYED: Final = "custom_envs.tasks"
_ASKED: Final = "custom_envs.questions"


def _responses(look: Look) -> int:
    return look.responses(f"{ALGO}.repeat_times")


def _rollout_batch(value: Any, look: Look) -> Any:
    if not samples(look):
        return Unused("nothing is sampled")
    prompts = whole(value, "the batch size")
    return prompts * _responses(look) if look.agentic else prompts


def _mini_batches(value: Any, look: Look) -> Any:
    if not samples(look):
        return _rows_per_step(value, look)
    sampled = look.prompts("buffer.batch_size", f"{ALGO}.repeat_times") * _responses(look)
    size = whole(value, "the batch size")
    if mode(look) == "explore":
        return Unused("nothing is learned (mode: explore)")
    if mode(look) == "train" and size != sampled:
        return Sets({"experience.train_batch_size": size, "mini_batches": 1})
    plays_turns = look.agentic or str(look(f"{ALGO}.algorithm_type", "")).startswith("multi")
    if look.has("buffer.trainer_input.auxiliary_buffers") and size > sampled:
        # Rows of experts are beside what is sampled; the share of them is expert.expert_data_ratio.
        return Unused("rows of experts join the samples of a step")
    if size > sampled:
        if not plays_turns and "react" not in workflow(look):
            return share(sampled, value, "experiences")
        return Sets({"mini_batches": 1}, note="a step trains on what it sampled, turns and all, in one optimiser step")
    return share(sampled, value, "experiences")


def _rows_per_step(value: Any, look: Look) -> Sets:
    """Divide the rows of a step among devices and passes."""
    rows = whole(value, "the batch size")
    devices = _trainers(look)
    micro = look.native(f"{TRAIN}.per_device_train_batch_size") or 1
    return Sets({f"{TRAIN}.gradient_accumulation_steps": max(1, rows // (devices * micro))})


def _trainers(look: Look) -> int:
    sizes = [look("cluster.node_num", 1), look("cluster.gpu_per_node", 1)]
    sizes.append(look("trainer.ulysses_sequence_parallel_size", 1))
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return 1
    return max(1, sizes[0] * sizes[1] // sizes[2])


def _epochs(value: Any, look: Look) -> Any:
    if not samples(look):
        return Sets({f"{TRAIN}.num_train_epochs": value})
    if any(look(key) is not None for key in ("buffer.total_steps", "trainer.total_steps")):
        return Unused("total_steps says how long the run is")
    return steps_of(value, look(f"{TASKS}.path"), look("buffer.batch_size"), "buffer.total_steps")


def _questions(value: Any, look: Look) -> Any:
    if not samples(look):
        return Unused("nothing is sampled")
    if look.agentic and not distils(look):
        return Unused("levels follow from `seed`, and need no file")
    if not distils(look):
        return value
    # A student answers the questions of a file, one an episode.
    values = {
        f"{_ASKED}.env_type": "problems",
        f"{_ASKED}.env_config.file_name": value,
        f"{_ASKED}.max_steps": 1,
        f"{_ASKED}.agent_template": "{observation}",
        "train_env_manager.tags": ["questions"],
        "val_env_manager.tags": ["questions"],
    }
    return Sets(values, {"eval_steps": 0, f"{_ASKED}.max_tokens_per_step": look("model.max_response_tokens", 1024)})


def _column(native: str) -> Any:
    """Convert a column of tasks, which counts where prompts are answered."""

    def convert(value: Any, look: Look) -> Any:
        if look.agentic or not samples(look):
            return Unused("questions and answers have usual names" if distils(look) else "no prompt is asked")
        return Sets({f"{DATA}.{native}": value})

    return convert


def _task_kind(value: Any, look: Look) -> Any:
    if value not in _STORAGES:
        raise FixableError("there is no such storage.", "use file.")
    return Unused() if value == "file" else Impossible("prompts come from files", "write them into one")


def _evaluations(value: Any, look: Look) -> Any:
    """Convert the list of evaluations: their files, and how they are answered."""
    if not value:
        return Unused()
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise FixableError("must be a list of sections.", "write [{name: test, path: test.jsonl}].")
    if look.agentic:
        return Unused("evaluations play the tags of val_env_manager")
    if not samples(look):
        return Unused("nothing is sampled")
    first = value[0]
    section = "validation.data_args"
    columns = first.get("format") or {}
    arguments = first.get("rollout_args") or {}
    names = {"prompt_key": "prompt", "messages_key": "messages", "response_key": "ground_truth"}
    said: dict[str, Any] = {f"{section}.file_name": [each["path"] for each in value if each.get("path")]}
    said |= {f"{section}.{names[key]}": item for key, item in columns.items() if key in names}
    if columns.get("system_prompt"):
        said[f"{section}.system_prompt"] = columns["system_prompt"]
    sampling = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_new_tokens"}
    said |= {
        f"validation.generating_args.{sampling[key]}": item
        for key, item in arguments.items()
        if key in sampling and item is not None
    }
    repeats = first.get("repeat_times") or arguments.get("n")
    if repeats not in (None, 1):
        said["validation.generating_args.num_return_sequences"] = repeats
    fills = {}
    if look(f"{TASKS}.path") is None:
        # Nothing is trained, so that only these say how answers are graded.
        named = first.get("default_workflow_type") or look(f"{INPUT}.default_eval_workflow_type")
        outcome = grade(named or look(f"{INPUT}.default_workflow_type", "math_workflow"), look)
        fills = dict(outcome.fills) if isinstance(outcome, Sets) else {}
    others = [key for each in value[1:] for key in ("format", "rollout_args") if each.get(key) != first.get(key)]
    note = "all files are read and answered as the first" if others else ""
    return Sets(said, fills, note)


def _game_option(native: str) -> Any:
    """Convert an argument of a workflow that plays."""

    def convert(value: Any, look: Look) -> Any:
        return Sets({f"{_PLAYED}.{native}": value}) if look.agentic else Unused("no environment is played")

    return convert


def _workflow(value: Any, look: Look) -> Any:
    name = name_of(value)
    if look.agentic and name in GAMES:
        values: dict[str, Any] = {
            f"{_PLAYED}.env_type": GAMES[name],
            "train_env_manager.tags": ["tasks"],
            "val_env_manager.tags": ["tasks"],
        }
        return Sets(values)
    return grade(value, look)


def _common_workflow(value: Any, look: Look) -> Any:
    own = look(f"{TASKS}.default_workflow_type")
    return _workflow(value, look) if own is None else Unused("taskset.default_workflow_type goes before it")


def _common_reward(value: Any, look: Look) -> Any:
    own = look(f"{TASKS}.default_reward_fn_type")
    return reward(value, look) if own is None else Unused("taskset.default_reward_fn_type goes before it")


def _overlong(native: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        if look(f"{TASKS}.reward_fn_args.enable_overlong_penalty") is not True and native != "enable":
            return Unused("enable_overlong_penalty is not true")
        return Sets({f"overlong_buffer.{native}": value})

    return convert


def _answered_by(value: Any, look: Look) -> Any:
    judged = value is True and bool(first_of(look("explorer.auxiliary_models")))
    return Unused("the verifiers in rewards grade") if not judged else Unused("the workflow's judge is llm_judge")


def _longest(value: Any, look: Look) -> Any:
    limit = look("model.max_response_tokens", value)
    return (
        Unused() if value == limit else Impossible("the punishment begins before max_response_tokens", "set both alike")
    )


def _several(value: Any, look: Look) -> Any:
    """Convert a list of sets of tasks: their files, and what they are all graded by."""
    if not value:
        return Unused()
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise FixableError("must be a list of sections.", "write [{name: train, path: train.jsonl}].")
    first = value[0]
    files = [each["path"] for each in value if each.get("path")]
    said: dict[str, Any] = {f"{DATA}.file_name": files} if files else {}
    columns = first.get("format") or {}
    names = {"prompt_key": "prompt", "messages_key": "messages", "response_key": "ground_truth"}
    said |= {f"{DATA}.{names[key]}": item for key, item in columns.items() if key in names}
    said |= {f"{DATA}.{key}": first[key] for key in ("split",) if first.get(key)}
    named = first.get("default_workflow_type") or look(f"{INPUT}.default_workflow_type")
    outcome = grade(named, look) if named else Unused()
    fills = dict(outcome.fills) if isinstance(outcome, Sets) else {}
    return Sets(said, fills, "rows of all files are asked and graded as those of the first" if len(value) > 1 else "")


def _selector(value: Any, look: Look) -> Any:
    if value in ("sequential", "shuffle", "random"):
        return Sets({f"{DATA}.shuffle": value != "sequential"})
    if value == "offline_easy2hard":
        columns = look(f"{TASKS}.data_selector.feature_keys", look(f"{TASKS}.task_selector.feature_keys"))
        first = columns[0] if isinstance(columns, list) and columns else columns
        if not isinstance(first, str):
            raise FixableError("it orders rows by a column.", "set feature_keys.")
        # There the greatest number of a column is the easiest: shares of tries that were right.
        order = [{"name": "curriculum", "args": {"column": first, "hardest_first": True}}]
        note = "rows are ordered by the first of feature_keys, greatest first"
        return Sets({"operators.tasks": order, f"{DATA}.shuffle": False}, note=note)
    if value != "difficulty_based":
        raise FixableError("there is no such selector.", "use sequential, shuffle or random.")
    note = "rows whose success changes are asked more often"
    return Sets({f"{DATA}.selector": "learning_progress"}, note=note)


_READ: Final = "files are read once, by one process"

BUFFER_ROWS: Final = (
    Row("buffer.batch_size", "rollout_batch_size", "agentic: times `repeat_times`", _rollout_batch),
    Row(
        "buffer.train_batch_size",
        "mini_batches",
        "`batch_size` · `repeat_times` divided by it; of two programs: `experience.train_batch_size`",
        _mini_batches,
    ),
    Row("buffer.total_steps", "max_steps"),
    Row(
        "buffer.total_epochs",
        "max_steps",
        "counted from the files, where they are here; SFT, DPO: `num_train_epochs`",
        _epochs,
    ),
    Row(f"{TASKS}.path", f"{DATA}.file_name", "files, a folder, or a data set of the hub", _questions),
    Row(f"{TASKS}.format.prompt_key", f"{DATA}.prompt", "where prompts are answered", _column("prompt")),
    Row(f"{TASKS}.format.messages_key", f"{DATA}.messages", "where prompts are answered", _column("messages")),
    Row(f"{TASKS}.format.response_key", f"{DATA}.ground_truth", "where prompts are answered", _column("ground_truth")),
    Row(f"{TASKS}.format.system_prompt", f"{DATA}.system_prompt"),
    Row(f"{TASKS}.subset_name", f"{DATA}.subset", "of a data set of several", _column("subset")),
    Row(f"{TASKS}.split", f"{DATA}.split", "of a folder or a data set", _column("split")),
    Row(f"{TASKS}.rollout_args.temperature", f"{SAMPLING}.temperature"),
    Row(f"{TASKS}.rollout_args.top_p", f"{SAMPLING}.top_p"),
    Row(f"{TASKS}.rollout_args.top_k", f"{SAMPLING}.top_k"),
    Row(f"{TASKS}.rollout_args.max_tokens", f"{SAMPLING}.max_new_tokens"),
    agreeing(
        f"{TASKS}.rollout_args.logprobs",
        "old_log_probs",
        "the log-prob of the token that was sampled is kept, and no other",
        lambda value, look: value == 0,
    ),
    agreeing(
        f"{TASKS}.rollout_args.n",
        "num_return_sequences_in_group",
        "algorithm.repeat_times says it",
        lambda value, look: value in (1, look(f"{ALGO}.repeat_times")),
    ),
    Row(f"{TASKS}.storage_type", note="Prompts come from files.", convert=_task_kind, agrees=f"{DATA}.file_name"),
    *no_effect("a file is its name", f"{TASKS}.name"),
    Row(f"{TASKS}.default_workflow_type", note="what grades, or is played", convert=_workflow, agrees="rewards"),
    Row(f"{INPUT}.default_workflow_type", note="what grades, or is played", convert=_common_workflow, agrees="rewards"),
    Row(f"{TASKS}.default_reward_fn_type", note="what grades", convert=reward, agrees="rewards"),
    Row(f"{INPUT}.default_reward_fn_type", note="what grades", convert=_common_reward, agrees="rewards"),
    *no_effect("evaluations are graded as training is", f"{INPUT}.default_eval_workflow_type"),
    Row(f"{INPUT}.eval_tasksets", "validation.data_args.file_name", "with its columns and sampling", _evaluations),
    *(
        Row(f"{TASKS}.workflow_args.{key}", note="of an environment", convert=_game_option(native))
        for key, native in (
            ("env_max_steps", "max_steps"),
            ("agent_max_steps", ""),
            ("is_slippery", "env_config.is_slippery"),
            ("desc", "env_config.desc"),
        )
        if native
    ),
    *no_effect(
        "a workflow of one answer has no such argument here",
        *(
            f"{TASKS}.workflow_args.{name}"
            for name in (
                "agent_max_steps",
                "max_turns",
                "train_mode",
                "fusion_mode",
                "use_base",
                "with_think",
                "reward_name",
                "num_steps",
                "max_env_steps",
                "enable_reflection",
                "judge_model",
            )
        ),
    ),
    Row(f"{TASKS}.reward_fn_args.enable_overlong_penalty", "overlong_buffer.enable", "", _overlong("enable")),
    Row(f"{TASKS}.reward_fn_args.penalty_factor", "overlong_buffer.penalty_factor", "", _overlong("penalty_factor")),
    Row(f"{TASKS}.reward_fn_args.cache_length", "overlong_buffer.len", "", _overlong("len")),
    Row(f"{TASKS}.reward_fn_args.max_response_length", note="as there", convert=_longest, agrees="response_length"),
    Row(f"{TASKS}.reward_fn_args.llm_as_a_judge", note="the workflow's judge", convert=_answered_by),
    agreeing(
        f"{TASKS}.reward_fn_args.reward_name",
        "rewards",
        "the verifiers in rewards grade",
        lambda value, look: value == "math_verify_reward",
    ),
    Row(f"{TASKS}.format.image_key", f"{DATA}.image_key", "where prompts are answered", _column("image_key")),
    *impossible("a policy is shown text and pictures", f"{TASKS}.format.video_key"),
    *no_effect("rows are graded by the verifiers of their domain", f"{TASKS}.format.workflow_key"),
    *no_effect("rows are graded by the verifiers of their domain", f"{TASKS}.format.reward_fn_key"),
    *no_effect("prompts are written by the chat template", f"{TASKS}.format.reply_prefix", f"{TASKS}.format.tools_key"),
    *no_effect("prompts are written by the chat template", f"{TASKS}.format.prompt_type"),
    *no_effect(
        _READ,
        *(f"{TASKS}.{name}" for name in ("enable_progress_bar", "index", "max_retry_times", "max_retry_interval")),
    ),
    *no_effect(_READ, *under(TASKS, "is_eval", "batch_size", "total_steps")),
    Row(f"{TASKS}.format.enable_thinking", f"{DATA}.enable_thinking"),
    Row(f"{TASKS}.format.chat_template", f"{DATA}.template"),
    *no_effect("pairs are rows that are learned from", *under(f"{TASKS}.format", "chosen_key", "rejected_key")),
    *no_effect("every turn of a conversation is imitated", f"{TASKS}.format.enable_concatenated_multi_turn"),
    *impossible(
        "one system prompt is for all rows", f"{TASKS}.format.system_prompt_key", instead="format.system_prompt"
    ),
    Row(f"{INPUT}.tasksets", f"{DATA}.file_name", "the files of several sets", _several),
    *no_effect(_READ, f"{TASKS}.repeat_times", f"{TASKS}.total_epochs", f"{TASKS}.ray_namespace"),
    *(
        row
        for selector in (f"{TASKS}.task_selector", f"{TASKS}.data_selector")
        for row in (
            Row(f"{selector}.selector_type", note="how rows are drawn", convert=_selector, agrees=f"{DATA}.shuffle"),
            *no_effect("rows are drawn evenly in each epoch", f"{selector}.feature_keys", f"{selector}.kwargs"),
            *no_effect("the order follows from `seed`", f"{selector}.seed"),
        )
    ),
    *impossible(
        "a warm-up is a stage of its own",
        "buffer.trainer_input.sft_warmup_dataset",
        "buffer.trainer_input.sft_warmup_steps",
        instead="stages: [{name: warmup, pipeline: sft, …}, …]",
    ),
)
"""The keys of data."""
