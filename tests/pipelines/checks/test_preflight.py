from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roll.common.threads import CallThreads
from roll.config import AgenticConfig, ConfigError, ConfigWarning, RLVRConfig, load
from roll.config.errors import Problem
from roll.config.trackers import TRACKERS
from roll.distributed.context import WorkerContext, entered
from roll.env_managers.trajectory import TrajectoryEnvManager
from roll.envs import get_tag, register_env, register_tag, unregister
from roll.envs.sokoban import SokobanEnv
from roll.pipelines.checks.agentic import check_agentic as check
from roll.pipelines.checks.common import parallel_problems, sampling_problems, strategy_problems
from roll.pipelines.checks.keys_without_effect import keys_without_effect
from roll.strategies import STRATEGIES
from roll.tracking import register_tracker
from roll.workers.classes import worker_class
from roll.workers.environment import EnvironmentWorker, manager_class, threads_of
from roll.workers.setup import Registered


class PoliteManager(TrajectoryEnvManager):
    """A manager of the user's own."""


@pytest.fixture
def tag():
    name = "PreflightSokoban"
    register_tag(name, env_type="sokoban", env_manager_cls=f"{__name__}.PoliteManager")
    yield name
    unregister(name)


def test_a_default_configuration_has_no_key_without_effect() -> None:
    assert list(keys_without_effect(AgenticConfig())) == []


def test_a_key_without_effect_is_named_with_the_reason_when_it_was_changed() -> None:
    config = load(
        {
            "rpc_timeout": 5.0,
            "reward_shift": False,
            "actor_infer": {"generating_args": {"num_return_sequences": 4, "temperature": 0.9}},
            "val_env_manager": {"max_env_num_per_worker": 8},
        }
    )
    said = check(config)
    assert [sentence.split(" has no effect: ")[0] for sentence in said] == [
        "actor_infer.generating_args.num_return_sequences=4",
        "rpc_timeout=5.0",
        "val_env_manager.max_env_num_per_worker=8",
    ]
    assert "one process" in said[2]


def test_an_environment_type_that_nobody_registered_is_said_where_it_is_named() -> None:
    mine = {"env_type": "graded", "max_steps": 1}
    config = load({"custom_envs": {"Mine": mine}, "train_env_manager": {"tags": ["Mine"]}})
    with pytest.raises(ConfigError, match=r"(?s)has 1 problem:.*custom_envs\.Mine\.env_type.*'graded_problems'"):
        check(config)


@pytest.mark.parametrize(
    ("engine", "sampling", "key", "message"),
    [
        ("sglang", {"top_k": 5}, "top_k", "before top-k, top-p and min-p"),
        ("sglang", {"top_p": 0.9}, "top_p", "before top-k, top-p and min-p"),
        ("sglang", {"repetition_penalty": 1.1}, "repetition_penalty", "use strategy vllm or hf_infer"),
        ("vllm", {"temperature": 3.0}, "temperature", "from 0.01 to 2.0"),
        ("hf_infer", {"num_beams": 2}, "num_beams", "leave it at 1"),
        ("hf_infer", {"stop_strings": ["ok", ""]}, "stop_strings", "empty text"),
    ],
)
@pytest.mark.parametrize("section", ["actor_infer.generating_args", "val_generating_args"])
def test_sampling_that_the_engine_cannot_do_is_said_before_anything_loads(
    engine: str, sampling: dict[str, object], key: str, message: str, section: str
) -> None:
    infer: dict[str, object] = {"strategy_args": {"strategy_name": engine}}
    tree: dict[str, object] = {"actor_infer": infer}
    (infer if section.startswith("actor") else tree)[section.rpartition(".")[2]] = sampling
    problems = list(sampling_problems(load(tree)))
    assert [(problem.path, message in f"{problem.message} {problem.fix}") for problem in problems] == [
        (f"{section}.{key}", True)
    ]


def test_greedy_evaluations_may_say_what_only_sampling_reads() -> None:
    tree = {"actor_infer": {"strategy_args": {"strategy_name": "sglang"}, "generating_args": {"stop_strings": "END"}}}
    assert list(sampling_problems(load({**tree, "val_generating_args": {"temperature": 0.0, "top_k": 5}}))) == []


def test_keys_of_several_processes_have_an_effect_with_ray() -> None:
    config = load({"cluster": "ray", "rpc_timeout": 5.0, "val_env_manager": {"max_env_num_per_worker": 8}})
    assert check(config) == []


class PatientWorker(EnvironmentWorker):
    """A worker of the user's own."""


@pytest.mark.parametrize("path", ["no.such.Worker", "roll.envs.TextEnv", "Worker"])
def test_a_worker_class_must_be_a_subclass_of_the_roles_own(path: str) -> None:
    with pytest.raises(ConfigError, match="train_env_manager.worker_cls"):
        check(load({"train_env_manager": {"worker_cls": path}}))
    own = load({"train_env_manager": {"worker_cls": f"{__name__}.PatientWorker"}})
    assert check(own) == []
    assert worker_class(own, "train_env_manager").__name__ == "PatientWorker"


def test_a_tag_may_name_its_own_env_manager(tag: str) -> None:
    assert manager_class(get_tag(tag)) is PoliteManager
    assert manager_class(get_tag("SimpleSokoban")) is TrajectoryEnvManager


@pytest.mark.parametrize("path", ["no.such.module.Manager", "roll.envs.TextEnv", "Manager"])
def test_a_wrong_env_manager_is_a_configuration_error(path: str) -> None:
    config = load(
        {
            "custom_envs": {"Odd": {"env_type": "sokoban", "env_manager_cls": path}},
            "train_env_manager": {"tags": ["Odd"]},
        }
    )
    with pytest.raises(ConfigError, match=r"custom_envs\.Odd\.env_manager_cls"):
        check(config)
    unregister("Odd")


class Waits(SokobanEnv):
    """May take long."""

    is_quick = False


@pytest.fixture
def waits() -> Iterator[None]:
    register_env("waits")(Waits)
    register_tag("WaitsAlone", env_type="waits", use_thread_lock=True)
    yield
    unregister("WaitsAlone")
    unregister("waits")


def test_where_environments_run_depends_on_how_long_they_take_and_how_many_calls_they_bear(waits: None) -> None:
    shared = CallThreads()
    pools = [shared]
    config = load(
        {
            "custom_envs": {
                "Locked": {"env_type": "sokoban", "use_thread_lock": True},
                "Few": {"env_type": "sokoban", "max_env_step_concurrent": 3},
                "Quick": {"env_type": "sokoban"},
                "Drawn": {"env_type": "sokoban", "env_config": {"render_mode": "rgb_array"}},
                "Slow": {"env_type": "waits"},
            }
        }
    )
    assert threads_of(config, "Quick", pools) is None
    assert threads_of(config, "SimpleSokoban", pools) is None
    assert threads_of(config, "Drawn", pools) is shared
    assert threads_of(config, "Slow", pools) is shared
    assert threads_of(config, "Locked", pools)._max_threads == 1
    assert threads_of(config, "WaitsAlone", pools)._max_threads == 1, "registered in Python"
    assert threads_of(config, "Few", pools)._max_threads == 3
    assert len(pools) == 4
    for pool in pools:
        pool.close()


def test_sampled_and_greedy_episodes_of_a_tag_share_what_its_environments_bear() -> None:
    tags = {"Locked": {"env_type": "sokoban", "use_thread_lock": True}}
    config = load({"custom_envs": tags, "train_env_manager": {"tags": ["Locked"]}})
    register_tag("Locked", env_type="sokoban", use_thread_lock=True)
    try:
        engines: Any = SimpleNamespace(clients=lambda: [object()])
        with entered(WorkerContext("train_env_manager")):
            worker = EnvironmentWorker(config, "train_env_manager", Registered.here(), engines)
        sampled, greedy = (worker._managers[is_greedy]["Locked"].threads for is_greedy in (False, True))
        assert sampled is greedy and sampled is not None and sampled._max_threads == 1
        asyncio.run(worker.close())
    finally:
        unregister("Locked")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_divides_its_model_among_its_devices_and_sizes_that_say_otherwise_are_refused(engine: str) -> None:
    about = STRATEGIES.get(engine)
    matrices, layers = about.parallel_sizes
    assert about.divided({"seed": 1}, 2) == {"seed": 1, matrices: 2}
    assert about.divided(None, 1) == {}
    assert about.divided({layers: 2}, 2) == {layers: 2}
    assert about.parts({matrices: 2, layers: 3}) == 6

    def problems(**sizes: int) -> list[str]:
        role = {
            "device_mapping": "0-3",
            "num_gpus_per_worker": 2,
            "strategy_args": {"strategy_name": engine, "strategy_config": sizes},
        }
        config = load({"cluster": "ray", "num_gpus_per_node": 4, "actor_infer": role})
        return [str(each) for each in parallel_problems("actor_infer", config.actor_infer)]

    assert problems() == problems(**{matrices: 2}) == problems(**{layers: 2}) == []
    (problem,) = problems(**{matrices: 2, layers: 2})
    assert "4" in problem and matrices in problem and layers in problem


@pytest.mark.processes
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm")
def test_what_verl_says_of_an_engine_is_what_the_engine_takes() -> None:
    rollout = {
        "name": "vllm",
        "dtype": "float32",
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "free_cache_engine": True,
        "load_format": "dummy_dtensor",
        "tensor_model_parallel_size": 2,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 64,
    }
    with pytest.warns(ConfigWarning):
        config = load({"actor_rollout_ref": {"rollout": rollout}})
    assert list(strategy_problems(config)) == []
    assert (config.actor_infer.num_gpus_per_worker, config.max_running_requests) == (2, 64)


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"actor_train": {"model_args": {"dtype": "fp16"}}}, "actor_train.model_args.dtype"),
        (
            {"critic": {"model_args": {"dtype": "fp16"}}, "adv_estimator": "gae"},
            "critic.model_args.dtype",
        ),
        (
            {
                "reference": {
                    "model_args": {"dtype": "fp16"},
                    "strategy_args": {"strategy_name": "deepspeed_infer"},
                }
            },
            "reference.model_args.dtype",
        ),
    ],
)
def test_numbers_that_a_strategy_cannot_compute_with_are_refused(keys: dict[str, Any], path: str) -> None:
    (problem,) = strategy_problems(AgenticConfig(**keys))
    assert problem.path == path and "bf16" in problem.fix


def test_a_frozen_policy_and_an_engine_may_compute_in_fp16() -> None:
    half = {"model_args": {"dtype": "fp16"}}
    assert not list(strategy_problems(AgenticConfig(reference=half, actor_infer=half)))


def test_a_tracker_of_ones_own_is_registered_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from roll.tracking import register_tracker

@register_tracker("postcard")
class Postcard:
    def __init__(self, *, log_dir, resume_step, address="home"): ...
    def log(self, metrics, step): ...
    def close(self): ...
"""
    (tmp_path / "postcards.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="One of your own needs its module in tracker_modules"):
        load({"track_with": "postcard"})
    own = {"tracker_modules": "postcards"}
    assert check(load({**own, "track_with": ["postcard"], "tracker_kwargs": {"address": "Rome"}})) == []
    with pytest.raises(ConfigError, match="Did you mean 'postcard'"):
        check(load({**own, "track_with": "postcart"}))
    with pytest.raises(ConfigError, match="tracker_kwargs(.|\n)*none of postcard takes 'adress'"):
        check(load({**own, "track_with": "postcard", "tracker_kwargs": {"adress": "Rome"}}))


def test_a_tracker_that_the_script_itself_registers_needs_no_module() -> None:
    with TRACKERS.restored():

        @register_tracker("letter")
        class Letter:
            def __init__(self, *, log_dir: Path, resume_step: int | None, address: str = "home") -> None: ...
            def log(self, metrics: object, step: int) -> None: ...
            def close(self) -> None: ...

        assert check(load({"track_with": "letter", "tracker_kwargs": {"address": "Rome"}})) == []
    with pytest.raises(ConfigError, match="no tracker has this name"):
        load({"track_with": "letter"})


@pytest.mark.long
@pytest.mark.parametrize("name", ["sokoban", "sokoban_qwen2.5_0.5b", "frozen_lake", "custom_env", "rlvr_math"])
def test_no_shipped_configuration_sets_a_key_that_does_nothing(name: str) -> None:
    own = Path(__file__).resolve().parents[3] / "examples" / "config" / f"{name}.yaml"
    config = load(own if own.exists() else name, kind=RLVRConfig if name == "rlvr_math" else AgenticConfig)
    assert list(keys_without_effect(config)) == []


def test_a_seat_whose_owner_is_no_opponent_of_the_run_is_told_before_a_model_loads() -> None:
    tags = {
        "Duel": {"env_type": "textarena_duel", "env_config": {"game": "TicTacToe-v0", "seats": ["policy", "stort"]}}
    }
    keys = {"custom_envs": tags, "train_env_manager": {"tags": ["Duel"]}, "val_env_manager": {"tags": ["Duel"]}}
    with pytest.raises(ConfigError, match=r"has 1 problem:[\s\S]*a seat of Duel is 'stort', which"):
        check(load({**keys, "opponents": {"start": {}}}))
    check(load({**keys, "opponents": {"stort": {}}}))
    unregister("Duel")


def test_what_megatron_needs_on_a_gpu_is_told_before_a_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("roll.pipelines.checks.common.is_installed", lambda module: module != "transformer_engine")
    config = AgenticConfig(actor_train={"strategy_args": {"strategy_name": "megatron_train"}})
    (problem,) = strategy_problems(config)
    assert problem.path == "actor_train.strategy_args.strategy_name"
    assert "transformer_engine, which is not installed" in problem.message
    assert problem.fix.startswith("pip install 'transformer-engine[pytorch]', or use deepspeed_train or fsdp_train")


def test_an_option_that_hf_infer_does_not_have_is_told_before_a_model_loads() -> None:
    def found(**options: object) -> list[Problem]:
        arguments = {"strategy_name": "hf_infer", "strategy_config": options}
        return list(strategy_problems(AgenticConfig(actor_infer={"strategy_args": arguments})))

    assert found(pack_weights=True, max_prefill_tokens=64) == []
    (problem,) = found(pack_weigths=True)
    assert problem.path == "actor_infer.strategy_args.strategy_config.pack_weigths"
    assert problem.fix == "did you mean pack_weights?"
