"""Trinity-RFT: what lies between explorer and trainer, rows that are learned from, and what experts wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, agreeing, impossible, no_effect, under
from roll.config.dialects.trinity.sections import (
    DATA,
    EXPERTS,
    STORE,
    compares_pairs,
    in_database,
    samples,
    through_cluster,
    two_programs,
)
from roll.config.errors import FixableError

_STORAGES: Final = ("file", "queue", "sql")
_STORED: Final = "groups are handed on whole, and all that is sampled is kept"
_OWN: Final = "a run without a second program keeps its groups to itself"
_ADDRESSES: Final = ("postgresql", "sqlite")
"""How addresses of databases begin that a store may be in."""
_READ: Final = "files are read once, by one process"


def _of_demonstrations(native: Mapping[str, str]) -> Any:
    """Convert a column of rows that are learned from, by the pipeline's key for it."""

    def convert(value: Any, look: Look) -> Any:
        if samples(look):
            return Unused("samples have no columns")
        kind = "dpo" if compares_pairs(look) else "sft"
        return Sets({native[kind]: value}) if kind in native else Unused("this pipeline has no such column")

    return convert


def _store_path(value: Any, look: Look) -> Any:
    if not samples(look):
        return Sets({f"{DATA}.file_name": value})
    if not two_programs(look):
        return Unused(_OWN)
    if through_cluster(look):
        return Sets({"experience.path": _folder(str(value))}, note="groups are in files of this folder, found by name")
    if "://" not in str(value) and not in_database(look):
        return Sets({"experience.path": _folder(str(value))}, note="a store is a folder, which both programs see")
    address = str(value) if "://" in str(value) else f"sqlite:///{value}"
    if address.partition("://")[0].partition("+")[0] not in _ADDRESSES:
        nearest = "an address postgresql://user@host/database, or a folder"
        return Impossible("a store is in PostgreSQL or SQLite", nearest, {"experience.path": "output/experience"})
    return Sets({"experience.type": "sql", "experience.path": address}, note="a database of the store's own")


def _folder(path: str) -> str:
    """Return the folder for a store that stands for a file, or a database, of another system."""
    if "://" not in path:
        return path.removesuffix("/").removesuffix(".jsonl").removesuffix(".json").removesuffix(".db")
    name = path.rpartition("/")[2].rpartition(".")[0] or "experience"
    return f"output/{name}"


def _store_kind(value: Any, look: Look) -> Any:
    if value not in _STORAGES:
        raise FixableError("there is no such storage.", f"use {', '.join(_STORAGES)}.")
    if not samples(look):
        return Unused("" if value == "file" else "rows come from files")
    if not two_programs(look):
        return Unused("" if value == "queue" else _OWN)
    if value != "sql":
        return Unused()
    return Sets({"experience.type": value}, {"experience.path": "sqlite:///output/experience.db"})


def _replays(value: Any, look: Look) -> Any:
    if value is not True:
        return Unused()
    note = "half of a step's groups are replayed"
    return Sets({"experience.fresh_share": 0.5}, {"experience.uses": 2}, note)


def _priority(value: Any, look: Look) -> Any:
    if look(f"{STORE}.replay_buffer.enable") is not True:
        return Unused("nothing is replayed")
    if value == "linear_decay":
        return Sets({"experience.priority": value})
    if value == "decay_limit_randomization":
        return Sets(
            {"experience.priority": "linear_decay"}, note="without a random part; `experience.uses` limits uses"
        )
    raise FixableError("there is no such priority.", "use linear_decay or decay_limit_randomization.")


def _priority_option(native: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        if look(f"{STORE}.replay_buffer.enable") is not True:
            return Unused("nothing is replayed")
        return Sets({native: value}) if native else Unused("priorities have no random part")

    return convert


def _of_rows(native: str) -> Any:
    def convert(value: Any, look: Look) -> Any:
        return Unused("samples are in no file") if samples(look) else Sets({f"{DATA}.{native}": value})

    return convert


def _form(value: Any, look: Look) -> Any:
    if value not in ("plaintext", "messages", "chatpair"):
        raise FixableError("there is no such form.", "use plaintext or messages.")
    return Unused()


def _own_template(value: Any, look: Look) -> Any:
    return Sets({f"{DATA}.template": value})


def _cooldown(value: Any, look: Look) -> Any:
    if look(f"{STORE}.replay_buffer.enable") is not True:
        return Unused("nothing is replayed")
    return Sets({"experience.cooldown": 1}, note="a group rests for a step")


def _expert_files(value: Any, look: Look) -> Any:
    return Sets({"expert.data_args.file_name": value})


STORE_ROWS: Final = (
    *no_effect("a file is its name", f"{STORE}.name", f"{EXPERTS}.name"),
    *no_effect(
        _READ,
        *(f"{STORE}.{name}" for name in ("enable_progress_bar", "index", "max_retry_times", "max_retry_interval")),
    ),
    Row(
        f"{STORE}.storage_type",
        "experience.type",
        "of two programs: `sql`, or a folder; else rows are in files",
        _store_kind,
        agrees=f"{DATA}.file_name",
    ),
    Row(
        f"{STORE}.path",
        "experience.path",
        "of two programs: the address of a database (`experience.type: sql`), or a folder; else the file of rows",
        _store_path,
    ),
    Row(f"{STORE}.split", note="of a folder or a data set", convert=_of_rows("split")),
    Row(f"{STORE}.subset_name", note="of a data set of several", convert=_of_rows("subset")),
    *(
        Row(f"{STORE}.format.{key}", note="columns of rows that are learned from", convert=_of_demonstrations(native))
        for key, native in {
            "messages_key": {"sft": "messages_key"},
            "prompt_key": {"sft": "prompt_key", "dpo": "prompt_key"},
            "response_key": {"sft": "response_key"},
            "chosen_key": {"dpo": "chosen_key"},
            "rejected_key": {"dpo": "rejected_key"},
            "tools_key": {"sft": "tools_key", "dpo": "tools_key"},
            "system_prompt_key": {"sft": "system_key", "dpo": "system_key"},
        }.items()
    ),
    Row(
        f"{STORE}.format.prompt_type", note="plaintext, messages or chatpair", convert=_form, agrees=f"{DATA}.file_name"
    ),
    Row(f"{STORE}.format.chat_template", note="of the policy", convert=_own_template),
    Row(f"{STORE}.format.enable_thinking", f"{DATA}.enable_thinking"),
    *no_effect("every turn of a conversation is imitated", f"{STORE}.format.enable_concatenated_multi_turn"),
    Row(f"{STORE}.replay_buffer.enable", "experience.fresh_share", "half of a step's groups", _replays),
    Row(f"{STORE}.replay_buffer.priority_fn", "experience.priority", "of a replay", _priority),
    Row(
        f"{STORE}.replay_buffer.priority_fn_args.decay",
        "experience.priority_options",
        "of a replay",
        _priority_option("experience.priority_options.decay"),
    ),
    Row(
        f"{STORE}.replay_buffer.priority_fn_args.use_count_limit",
        "experience.uses",
        "of a replay",
        _priority_option("experience.uses"),
    ),
    Row(f"{STORE}.replay_buffer.priority_fn_args.sigma", note="of a replay", convert=_priority_option("")),
    Row(
        f"{STORE}.replay_buffer.reuse_cooldown_time",
        "experience.cooldown",
        "seconds there, steps here",
        _cooldown,
    ),
    *no_effect(
        _STORED,
        *(f"{STORE}.{name}" for name in ("capacity", "max_read_timeout", "use_priority_queue", "schema_type")),
        f"{STORE}.wrap_in_ray",
    ),
    *no_effect(
        _READ,
        *under(STORE, "batch_size", "tokenizer_path", "total_epochs", "total_steps", "ray_namespace"),
        *under(f"{STORE}.format", "workflow_key", "reward_fn_key", "reply_prefix"),
    ),
    Row(f"{STORE}.format.system_prompt", note="of rows that are learned from", convert=_of_rows("system_prompt")),
    *impossible("rows that are learned from are text", *under(f"{STORE}.format", "image_key", "video_key")),
    Row(
        f"{STORE}.data_selector.selector_type",
        note="how rows are drawn",
        convert=lambda value, look: (
            Unused("samples are learned from in their order")
            if samples(look)
            else Sets({f"{DATA}.shuffle": value != "sequential"})
        ),
    ),
    *no_effect(
        "rows are drawn evenly in each epoch", *under(f"{STORE}.data_selector", "seed", "feature_keys", "kwargs")
    ),
    *no_effect(_STORED, f"{STORE}.reuse_cooldown_time", f"{STORE}.replay_buffer_kwargs"),
    Row(f"{EXPERTS}.path", "expert.data_args.file_name", "what experts wrote", _expert_files),
    Row(f"{EXPERTS}.format.messages_key", "expert.messages_key"),
    Row(f"{EXPERTS}.format.prompt_key", "expert.prompt_key"),
    Row(f"{EXPERTS}.format.response_key", "expert.response_key"),
    *impossible("what experts wrote is text", f"{EXPERTS}.format.image_key"),
    Row(f"{EXPERTS}.format.prompt_type", note="plaintext or messages", convert=_form, agrees="expert.data_args"),
    Row(f"{EXPERTS}.split", "expert.data_args.split"),
    Row(f"{EXPERTS}.subset_name", "expert.data_args.subset"),
    agreeing(
        f"{EXPERTS}.storage_type",
        "expert.data_args.file_name",
        "rows come from files",
        lambda value, look: value == "file",
    ),
    agreeing(f"{EXPERTS}.schema_type", "expert", "rows are demonstrations", lambda value, look: value == "sft"),
    *no_effect("rows of experts are drawn anew in each epoch, as long as the run lasts", f"{EXPERTS}.total_epochs"),
    *no_effect(
        "rows of experts are drawn anew in each epoch", f"{EXPERTS}.enable_progress_bar", f"{EXPERTS}.total_steps"
    ),
)
"""The keys of stores and experts."""
