"""Files of Trinity-RFT: what kind of run they become, and what is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.convert import Conversion, Foreign, convert

_FILE: dict[str, Any] = {
    "project": "p",
    "name": "n",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 8, "optimizer": {"lr": 1e-6}},
    "model": {"model_path": "some/model", "max_response_tokens": 512, "max_model_len": 2048},
    "cluster": {"node_num": 1, "gpu_per_node": 8},
    "buffer": {
        "batch_size": 96,
        "explorer_input": {
            "taskset": {"storage_type": "file", "path": "tasks.jsonl", "format": {"prompt_key": "question"}},
            "default_workflow_type": "math_boxed_workflow",
        },
        "trainer_input": {"experience_buffer": {"name": "b", "storage_type": "queue"}},
    },
    "explorer": {"rollout_model": {"engine_num": 2, "tensor_parallel_size": 2, "enforce_eager": True}},
    "synchronizer": {"sync_method": "nccl", "sync_style": "fixed"},
}


def _merged(base: Any, change: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return {**base, **{key: _merged(base.get(key), item) for key, item in change.items()}}


def _converted(**changes: Any) -> Conversion:
    return convert(Foreign(_merged(_FILE, changes), Path("job.yaml")), "trinity")


def _state(conversion: Conversion, key: str) -> str:
    return next(each.state for each in conversion.keys if each.key == key)


def test_trainer_and_engines_have_devices_of_their_own() -> None:
    conversion = _converted()

    assert conversion.ok, conversion.problems
    native = conversion.native
    assert native["actor_train"]["device_mapping"] == "0-3"
    assert native["actor_infer"]["device_mapping"] == "4-7"
    assert native["actor_infer"]["num_gpus_per_worker"] == 2
    assert native["cluster"] == "ray"
    assert native["rewards"] == {"all": {"verifiers": {"math": {"options": {"answer_in": ["boxed"]}}}}}


@pytest.mark.parametrize(
    ("changes", "pipeline"),
    [
        ({"mode": "train", "algorithm": {"algorithm_type": "sft"}}, "sft"),
        ({"mode": "train", "algorithm": {"algorithm_type": "dpo"}}, "dpo"),
        (
            {
                "algorithm": {"algorithm_type": "on_policy_distill"},
                "explorer": {"auxiliary_models": [{"model_path": "a/teacher", "engine_num": 1}]},
            },
            "distill",
        ),
        ({"buffer": {"explorer_input": {"default_workflow_type": "frozen_lake_workflow"}}}, "agentic"),
    ],
)
def test_the_kind_of_run_follows_from_mode_algorithm_and_workflow(changes: dict[str, Any], pipeline: str) -> None:
    rows = {"buffer": {"trainer_input": {"experience_buffer": {"storage_type": "file", "path": "rows.jsonl"}}}}
    conversion = _converted(**(_merged(rows, changes) if pipeline in ("sft", "dpo") else changes))

    assert (conversion.pipeline, conversion.ok) == (pipeline, True), conversion.problems


def test_an_environment_that_is_not_here_is_named_with_what_to_write() -> None:
    conversion = _converted(buffer={"explorer_input": {"default_workflow_type": "alfworld_workflow"}})

    key = next(each for each in conversion.keys if each.key == "buffer.explorer_input.default_workflow_type")
    assert (key.state, conversion.native["env_modules"]) == ("impossible", ["alfworld_env"])
    assert "ALFWorld is not here" in key.why
    assert any("alfworld_env" in note for note in conversion.notes)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"synchronizer": {"sync_style": "banana"}}, "synchronizer.sync_style"),
        ({"synchronizer": {"sync_method": "pigeon"}}, "synchronizer.sync_method"),
        (
            {"buffer": {"trainer_input": {"experience_buffer": {"storage_type": "nonsense"}}}},
            "buffer.trainer_input.experience_buffer.storage_type",
        ),
        ({"log": {"level": "INFO", "colour": "red"}}, "log"),
        ({"log": {"level": "SHOUT"}}, "log"),
        ({"algorithm": {"algorithm_type": "grqo"}}, "algorithm.algorithm_type"),
        (
            {"buffer": {"explorer_input": {"default_workflow_type": "math_workfow"}}},
            "buffer.explorer_input.default_workflow_type",
        ),
        ({"mode": "dance"}, "mode"),
    ],
)
def test_nonsense_is_refused_under_the_key_that_has_it(changes: dict[str, Any], path: str) -> None:
    conversion = _converted(**changes)

    assert path in [problem.path for problem in conversion.problems]


def test_the_trainers_own_section_is_read_in_the_words_of_verl() -> None:
    own = {"actor_rollout_ref": {"actor": {"ppo_micro_batch_size_per_gpu": 2}}, "critic": {"cliprange_value": 0.4}}
    conversion = _converted(trainer={"trainer_config": own}, algorithm={"algorithm_type": "ppo", "advantage_fn": "ppo"})
    mistaken = _converted(trainer={"trainer_config": {"actor_rollout_ref": {"actor": {"grad_clp": 1.0}}}})

    prefix = "trainer.trainer_config"
    assert conversion.ok, conversion.problems
    assert conversion.native["actor_train"]["training_args"]["per_device_train_batch_size"] == 2
    assert _state(conversion, f"{prefix}.critic.cliprange_value") == "translated"
    assert [problem.path for problem in mistaken.problems] == [f"{prefix}.actor_rollout_ref.actor.grad_clp"]


def test_group_and_project_are_part_of_the_folder() -> None:
    conversion = _converted(checkpoint_root_dir="c", group="g")

    assert conversion.native["output_dir"] == "c/p/g/n"
