"""Trinity-RFT: what is around the run: names, folders, devices, modes, services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.placement import Placement
from roll.config.dialects.rows import (
    Impossible,
    Look,
    Row,
    Sets,
    Unused,
    folder_of,
    impossible,
    no_effect,
    under,
    whole,
)
from roll.config.dialects.trinity.pipelines import PIPELINE_ROWS
from roll.config.dialects.trinity.rewards import JUDGE, asks_a_judge
from roll.config.dialects.trinity.sections import (
    ALGO,
    ROLLOUT,
    STORE,
    distils,
    first_of,
    in_database,
    samples,
    through_cluster,
)
from roll.config.errors import FixableError

_SECRET: Final = "api_key"
_MODES: Final = ("both", "explore", "train", "bench", "serve")
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _folder(value: Any, look: Look) -> Any:
    return _own_folder(value, look) if isinstance(value, str) else value


def _own_folder(root: str | None, look: Look) -> str:
    """Return the folder of a run; explorer and trainer share one there, and each has its own here."""
    return folder_of(root, look("project"), look("group"), look("name"), *_part(look))


def _part(look: Look) -> list[str]:
    return ["explorer"] if look("mode") == "explore" else []


def _name(value: Any, look: Look) -> Any:
    return Sets({"exp_name": value}, _project(look("project"), look).fills)


def _project(value: Any, look: Look) -> Sets:
    if look("checkpoint_root_dir") is not None:
        return Sets()
    return Sets(fills={"output_dir": folder_of(None, value, look("group"), look("name"), *_part(look))})


def _part_of_folder(value: Any, look: Look) -> Any:
    if not isinstance(value, str):
        raise FixableError(f"{value!r} is no name of a folder.", "write text.")
    return _project(look("project"), look)


def _mode(value: Any, look: Look) -> Any:
    if value == "colocate":
        return Impossible("no run has the mode colocate", "mode: both samples and trains")
    if value not in _MODES:
        raise FixableError("there is no such mode.", f"use {', '.join(_MODES)}.")
    if not samples(look):
        return Unused("" if value == "train" else "nothing is sampled")
    if look.kind_has("recorded"):
        return Unused()
    if value not in ("explore", "train"):
        return value
    if through_cluster(look):
        return value
    named = look(f"{STORE}.path") is not None or in_database(look)
    fills = {} if named else {"experience.path": "output/experience"}
    if value == "explore":
        fills["experience.follow"] = folder_of(
            look("checkpoint_root_dir"), look("project"), look("group"), look("name")
        )
    return Sets({"mode": value}, fills)


def _devices(value: Any, look: Look) -> Any:
    nodes = whole(look("cluster.node_num") or 1, "cluster.node_num")
    placement = Placement(nodes, whole(value, "the number"))
    if not samples(look) or placement.devices == 1 or look("mode") == "train":
        return placement.together("actor_train")
    size = whole(look(f"{ROLLOUT}.tensor_parallel_size", 1), f"{ROLLOUT}.tensor_parallel_size")
    sampling = whole(look(f"{ROLLOUT}.engine_num", 1), f"{ROLLOUT}.engine_num") * size
    if look("mode") in ("explore", "bench", "serve"):
        return placement.apart({"actor_infer": min(sampling, placement.devices)})
    beside = _beside(look)
    training = placement.devices - sampling - beside
    if training < 1:
        return placement.together("actor_train", "actor_infer")
    counts = {"actor_train": training, "actor_infer": sampling}
    if beside and (distils(look) or asks_a_judge(look)):
        counts["teacher" if distils(look) else f"judges.{JUDGE}"] = beside
    sets = placement.apart(counts)
    if _has_critic(look):
        mapping = sets.fills.get("actor_train.device_mapping")
        return Sets(sets.values, {**sets.fills, "critic.device_mapping": mapping} if mapping else sets.fills, sets.note)
    return sets


def _has_critic(look: Look) -> bool:
    return look(f"{ALGO}.advantage_fn", "ppo" if look(f"{ALGO}.algorithm_type") == "ppo" else None) == "ppo"


def _beside(look: Look) -> int:
    """Return the devices of models beside the policy."""
    first = first_of(look("explorer.auxiliary_models"))
    sizes = [first.get("engine_num", 1), first.get("tensor_parallel_size", 1)] if first else [0]
    total = 1
    for size in sizes:
        total *= size if isinstance(size, int) else 1
    return total


def _log(value: Any, look: Look) -> Any:
    """Check the section of logs, which nothing here reads."""
    if not isinstance(value, Mapping):
        raise FixableError("must be a section.", "write {level: INFO}.")
    for key, item in value.items():
        if key not in ("level", "group_by_node", "save_dir"):
            raise FixableError(f"it has no key {key}.", "use level, group_by_node and save_dir.")
        if key == "level" and item not in _LEVELS:
            raise FixableError(f"there is no level {item!r}.", f"use {', '.join(_LEVELS)}.")
    return Unused("workers write to the log of the run")


def _service(value: Any, look: Look) -> Any:
    asks = isinstance(value, Mapping) and any(item for item in value.values())
    return Impossible("data services are not started from here", "prepare files before the run") if asks else Unused()


def _stages(value: Any, look: Look) -> Any:
    if not value:
        return Unused()
    return Impossible("stages are sections of native keys", "stages: [{name: warmup, pipeline: sft, …}, …]")


def _own_tracker(value: Any, look: Look) -> Any:
    if not isinstance(value, Mapping):
        raise FixableError("must be a section.", "write {entity: mine}.")
    options = {f"tracker_kwargs.{key}": item for key, item in value.items() if key != _SECRET}
    if _SECRET in value:
        return Sets(options, note=f"a tracker reads its {_SECRET} from the environment, such as WANDB_API_KEY")
    return Sets(options) if options else Unused()


RUN_ROWS: Final = (
    Row("name", "exp_name", "also part of `output_dir`", _name),
    Row("checkpoint_root_dir", "output_dir", "with `project`, `group` and `name` below it", _folder),
    Row("project", "output_dir", "part of it", _project),
    Row("group", note="part of `output_dir`", convert=_part_of_folder),
    Row("continue_from_checkpoint", "resume_from_checkpoint"),
    Row("mode", "mode", "", _mode, agrees="pipeline"),
    *no_effect("names of projects go to `tracker_kwargs`", "ray_namespace", "checkpoint_job_dir"),
    *no_effect("what has no effect is always said", "ignore_validator_suggestions"),
    Row("cluster.node_num", "num_nodes"),
    Row("cluster.gpu_per_node", "num_gpus_per_node", "also `device_mapping` of the roles", _devices),
    *no_effect("each program makes what it needs of Ray", "cluster.ray_address"),
    Row("monitor.monitor_type", "track_with"),
    Row("monitor.monitor_args", "tracker_kwargs", "options of the tracker", _own_tracker),
    *no_effect("a metric of an evaluation is a mean", "monitor.detailed_stats"),
    *no_effect("a tracker writes into the folder of logs, `logging_dir`", "monitor.cache_dir"),
    Row("monitor.enable_ray_timeline", "enable_ray_timeline"),
    Row("service", note="none", convert=_service),
    *PIPELINE_ROWS,
    Row("stages", note="none", convert=_stages),
    *impossible("tasks are asked one by one", "cod", instead="remove it"),
    *no_effect("a task that fails is said, and what it raised", "debug"),
    *no_effect(
        "Trinity-RFT sets it itself",
        *under(
            "cluster",
            *("total_gpu_num", "rollout_gpu_num", "auxiliary_model_gpu_num", "explorer_gpu_num", "trainer_gpu_num"),
            *("trainer_node_num", "trainer_gpu_num_per_node"),
        ),
        *under("buffer", "explorer_output", "tokenizer_path", "cache_dir"),
        *under("synchronizer", "explorer_world_size", "ray_namespace"),
        *under("explorer", "mode"),
    ),
    Row("log", note="level, group_by_node, save_dir", convert=_log),
)
"""The keys of the run."""
