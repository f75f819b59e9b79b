"""What files of ROLL name that is not here: environments, templates, trackers; and engines of several devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.rows import Convert, Impossible, Look, Row, Sets
from roll.config.dialects.upstream_roll.environments import named_type

_PLAYING: Final = ("train_env_manager.tags", "val_env_manager.tags")

_ELSEWHERE: Final[Mapping[str, str]] = {
    "webshop": "WebShop",
    "alfworld": "ALFWorld",
    "metamathqa": "MetaMathQA over several turns",
    "bandit": "the bandit",
    "countdown": "Countdown over several turns",
    "deepeyes": "DeepEyes, which shows pictures",
    "rock_tb_native_env": "a terminal in a sandbox of ROCK",
    "openreward_env": "an environment of OpenReward",
    "atropos_env": "an environment of Atropos",
    "roll_qa": "questions with a search",
}
"""Environments of ROLL that are not here, and what they are."""

_FAMILIES: Final = ("code", "logic", "math", "qa")
"""Families of GEM's environments that are not here, before a colon."""

_TEMPLATES: Final = {"qwen2_5_dpo": "qwen2_5", "qwen3_coder": "native", "qwen3_nothinking": "qwen3"}
_TEXTS: Final = ("chatml", "qwen2_5", "qwen2-vl", "qwen3", "llama3", "plain", "user_assistant", "native")
_ROLES: Final = ("actor_train", "actor_infer", "reference", "validation", "sft_train", "student", "student_train")


def _type(value: Any, look: Look) -> Any:
    """Name the environment, or say that a module of one's own has to bring it, where its tag is played."""
    if not isinstance(value, str):
        return value
    family = value.partition(":")[0] if ":" in value else ""
    if value not in _ELSEWHERE and family not in _FAMILIES:
        return named_type(value, look)
    tag = look.names[0] if hasattr(look, "names") else ""
    played = [name for path in _PLAYING for name in look.native(path) or () if isinstance(name, str)]
    if tag not in played or look.native("env_modules"):
        return value
    own = (family or value).removesuffix("_env")
    instead = f"write it as an environment of your own (docs/environments.md) in a module {own}_env"
    what = _ELSEWHERE.get(value, f"{value} of GEM")
    return Impossible(f"{what} is not here", instead, {"env_modules": [f"{own}_env"], f"{_TAG}.env_type": value})


_TAG: Final = "custom_envs.*"


def _template(role: str) -> Convert:
    native = f"{'actor_train' if role in ('sft_train', 'student', 'student_train') else role}.data_args.template"

    def convert(value: Any, look: Look) -> Any:
        if not isinstance(value, str) or value in _TEXTS or not value.replace("_", "").replace("-", "").isalnum():
            return value
        known = _TEMPLATES.get(value, "native")
        return Sets({native: known}, note=f"no template is called {value}, so it is {known}")

    return convert


def _tracker(value: Any, look: Look) -> Any:
    if value != "ml_tracker":
        return value
    return Sets({"track_with": "tensorboard"}, note="ml_tracker is a tracker of ROLL's own")


def _tracker_options(value: Any, look: Look) -> Any:
    if _said(look, "track_with") != "ml_tracker":
        return value
    return Impossible("they are options of ml_tracker, ROLL's own", "options of another tracker in tracker_kwargs")


_ENGINES: Final = ("actor_infer", "student_infer")
"""The sampler, under each name that it has in files of ROLL."""
_ENGINE: Final = "strategy_args.strategy_config.tensor_parallel_size"
_PIPELINE: Final = "strategy_args.strategy_config.pipeline_parallel_size"
_MACHINE: Final = 8
_DEVICES: Final = "num_gpus_per_worker"


def _said(look: Look, path: str) -> Any:
    """Return the value of a key that is native, and has a row."""
    own = look(path)
    return look.native(path) if own is None else own


def _divided(look: Look, role: str, size: Any) -> int | None:
    """Return the devices of an engine by its own sizes."""
    sizes = [size, _said(look, f"{role}.{_PIPELINE}") or 1]
    return sizes[0] * sizes[1] if all(isinstance(each, int) and each > 0 for each in sizes) else None


def _engine_size(role: str) -> Convert:
    def convert(value: Any, look: Look) -> Any:
        wanted = _divided(look, role, value)
        if wanted is None or wanted == 1:
            return value
        machine = look.native("num_gpus_per_node") or _MACHINE
        if isinstance(machine, int) and wanted > machine:
            return Impossible("an engine is one process on one machine", f"set it to {machine} or less")
        if _said(look, f"{role}.{_DEVICES}") is not None:
            return value
        return Sets({f"actor_infer.{_ENGINE}": value}, {f"actor_infer.{_DEVICES}": wanted})

    return convert


def _worker_devices(role: str) -> Convert:
    def convert(value: Any, look: Look) -> Any:
        wanted = _divided(look, role, _said(look, f"{role}.{_ENGINE}"))
        if wanted in (None, value):
            return value
        note = f"an engine divides its model among {wanted} devices"
        return Sets({f"actor_infer.{_DEVICES}": wanted}, note=note)

    return convert


def _grading_engine(value: Any, look: Look) -> Any:
    strategy = value.get("strategy_args") if isinstance(value, Mapping) else None
    name = strategy.get("strategy_name") if isinstance(strategy, Mapping) else None
    if name not in ("vllm", "sglang"):
        return value
    return Impossible("no engine of the run judges", "the verifier llm_judge, with the base_url of a server")


ELSEWHERE: Final[tuple[Row, ...]] = (
    Row(f"{_TAG}.env_type", f"{_TAG}.env_type", "those that are here", _type),
    *(
        Row(
            f"{role}.data_args.template",
            f"{'actor_train' if role in ('sft_train', 'student', 'student_train') else role}.data_args.template",
            "those that are here",
            _template(role),
        )
        for role in _ROLES
    ),
    Row("track_with", "track_with", "ROLL's own is tensorboard", _tracker),
    Row("tracker_kwargs", "tracker_kwargs", "of trackers that are here", _tracker_options),
    *(
        row
        for role in _ENGINES
        for row in (
            Row(f"{role}.{_ENGINE}", f"actor_infer.{_ENGINE}", "with the devices of an engine", _engine_size(role)),
            Row(
                f"{role}.{_DEVICES}", f"actor_infer.{_DEVICES}", "those of tensor_parallel_size", _worker_devices(role)
            ),
        )
    ),
    Row("reward", "reward", "a model that scores", _grading_engine),
)
"""Rows of native keys, for files of ROLL."""
