"""verl: ``data``: files, columns and batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.counting import columns_of
from roll.config.dialects.rows import Look, Row, Sets, Unused, impossible, no_effect, own_code_row, plain, whole
from roll.config.dialects.verl.rewards import built_in_rewards, graded_alike
from roll.config.dialects.verl.sections import ROLLOUT
from roll.config.dialects.verl.sft import accumulation, column

_DATA: Final = "actor_train.data_args"
_SAMPLING: Final = "actor_infer.generating_args"


def _rollout_batch(value: Any, look: Look) -> Any:
    if look.demonstrates:
        return accumulation(value, look)
    prompts = whole(value, "the batch size")
    return prompts * look.responses(f"{ROLLOUT}.n") if look.agentic else prompts


def _train_files(value: Any, look: Look) -> Any:
    # verl's files: chat messages under prompt_key, the answer inside reward_model, the source in data_source.
    return _files(_DATA, value, look)


def _val_files(value: Any, look: Look) -> Any:
    named = [value] if isinstance(value, str) else value
    if isinstance(named, list) and not any(named):
        return Unused("no file is named")
    return _files("validation.data_args", value, look)


def _files(section: str, value: Any, look: Look) -> Sets:
    if look.demonstrates:
        return Sets({f"{section}.file_name": value})
    return Sets({f"{section}.file_name": value}, {**_columns(section, look), **built_in_rewards(look)})


def _columns(section: str, look: Look) -> dict[str, str]:
    columns = {"ground_truth": "reward_model.ground_truth"}
    if look.native(f"{section}.prompt") is None:
        columns["messages"] = look("data.prompt_key", "prompt")
    if not graded_alike(look):
        columns["tag"] = look("data.reward_fn_key", "data_source")
    return {f"{section}.{key}": column for key, column in columns.items()}


def _prompt_column(value: Any, look: Look) -> Any:
    if look.demonstrates:
        return Sets({"prompt_key": column(value, look, "data.prompt_dict_keys")})
    if look("data.path") is not None:
        return Sets({"validation.data_args.messages": value})
    return value


def _image_column(value: Any, look: Look) -> Any:
    """Name the column with pictures where there is one: verl's default names one that files of text have not."""
    if look.demonstrates:
        return Unused("rows are imitated as text")
    files = look("data.train_files", ())
    columns = [columns_of(name) for name in (files if isinstance(files, (list, tuple)) else [files])]
    if any(str(value) in known for known in columns if known is not None):
        return value
    if not columns or None in columns:
        return Unused(f"the files are not here to be looked at; set {_DATA}.image_key where they have pictures")
    return Unused("the files have no such column")


def _own_class(value: Any, look: Look) -> Any:
    none = isinstance(value, Mapping) and value.get("path") is None
    return Unused() if none else value


def _no_limit(value: Any, look: Look) -> Any:
    return Unused("every row is used") if value == -1 else value


def _template_choice(value: Any, look: Look) -> Any:
    """Take the one choice of a chat template that there is here."""
    if not isinstance(value, Mapping):
        return value
    sets = {f"{_DATA}.enable_thinking": value["enable_thinking"]} if "enable_thinking" in value else {}
    others = ", ".join(str(key) for key in value if key != "enable_thinking")
    if not others:
        return Sets(sets) if sets else Unused()
    note = f"a chat template is asked for nothing but enable_thinking, so {others} is left as the template has it"
    return Sets(sets, note=note) if sets else Unused(note)


def _truncation(value: Any, look: Look) -> Any:
    if value == "middle":
        return Sets({f"{_DATA}.truncation": "left"}, note="text is cut at one end, so its beginning is cut instead")
    return value


DATA_ROWS: Final = (
    Row(
        "data.train_files", f"{_DATA}.file_name", "with verl's columns and rewards, unless others are set", _train_files
    ),
    Row("data.val_files", "validation.data_args.file_name", "with verl's columns", _val_files),
    Row("data.prompt_key", f"{_DATA}.messages", "the column holds chat messages; SFT: `prompt_key`", _prompt_column),
    Row("data.reward_fn_key", f"{_DATA}.tag", "the column by which rows are graded"),
    Row("data.max_prompt_length", "prompt_length"),
    Row("data.max_response_length", ("response_length", f"{_SAMPLING}.max_new_tokens")),
    Row("data.train_batch_size", "rollout_batch_size", "agentic: times the responses per prompt", _rollout_batch),
    Row("data.val_batch_size", "val_batch_size"),
    Row("data.train_max_samples", f"{_DATA}.max_samples", "-1 is all", _no_limit),
    Row("data.val_max_samples", "validation.data_args.max_samples", "-1 is all", _no_limit),
    *plain("data", _DATA, shuffle="shuffle", filter_overlong_prompts="filter_overlong_prompts"),
    Row("data.truncation", f"{_DATA}.truncation", "`middle` is `left`", _truncation),
    *plain("data", "", seed="seed"),
    Row("data.custom_cls", f"{_DATA}.custom_cls", "`path: null` is none", _own_class),
    Row(
        "data.apply_chat_template_kwargs",
        f"{_DATA}.enable_thinking",
        "`enable_thinking` and nothing else",
        _template_choice,
    ),
    *no_effect("every row keeps all its columns", "data.return_raw_input_ids", "data.return_raw_chat"),
    *no_effect("every row keeps all its columns", "data.return_full_prompt", "data.return_multi_modal_inputs"),
    *no_effect("the tokenizer is the model's", "data.tokenizer"),
    own_code_row("data.trust_remote_code"),
    Row("data.image_key", f"{_DATA}.image_key", "where the files, as far as they are here, have it", _image_column),
    *no_effect("the image processor is the model's", "data.image_patch_size"),
    *no_effect("prompts are text and pictures", "data.video_key", "data.filter_prompts"),
    *no_effect("evaluations answer the rows in their order", "data.validation_shuffle"),
    *no_effect(
        "files are read once, by one process",
        "data.dataloader_num_workers",
        "data.filter_overlong_prompts_workers",
        "data.use_shm",
    ),
    *no_effect("`dynamic_sampling` asks for as many prompts as it needs", "data.gen_batch_size"),
    *no_effect("tools belong to environments, `train_env_manager.tools`", "data.return_tools"),
    *no_effect("tools belong to environments, `train_env_manager.tools`", "data.need_tools_kwargs"),
    *no_effect("tools belong to environments, `train_env_manager.tools`", "data.tool_config_path"),
    *impossible(
        "rows are drawn evenly in each epoch",
        "data.sampler",
        instead="set actor_train.data_args.domain_interleave_probs, or custom_cls, whose order is its own",
    ),
    *impossible(
        "rows are not made while a run goes",
        "data.datagen",
        instead="write a data set class, actor_train.data_args.custom_cls",
    ),
)
"""The keys of data."""
