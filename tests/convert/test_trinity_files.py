"""Files of Trinity-RFT: what kind of run they become, and what is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from foreign_files import TRINITY_FILE, merged

from roll.convert import Conversion, Foreign, convert, read


def _converted(**changes: Any) -> Conversion:
    return convert(Foreign(merged(TRINITY_FILE, changes), Path("job.yaml")), "trinity")


def _state(conversion: Conversion, key: str) -> str:
    return next(each.state for each in conversion.keys if each.key == key)


def _said(conversion: Conversion, key: str) -> str:
    return next(each.why for each in conversion.keys if each.key == key)


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
    conversion = _converted(**(merged(rows, changes) if pipeline in ("sft", "dpo") else changes))

    assert (conversion.pipeline, conversion.ok) == (pipeline, True), conversion.problems


def test_an_auxiliary_model_that_grades_is_a_judge_of_the_run_with_devices_of_its_own() -> None:
    judge = {"model_path": "a/judge", "engine_num": 1, "tensor_parallel_size": 2, "max_model_len": 16384}
    conversion = _converted(
        buffer={"explorer_input": {"default_workflow_type": "math_ruler_workflow"}},
        explorer={"auxiliary_models": [{**judge, "max_response_tokens": 4096, "enable_thinking": False}]},
    )

    assert conversion.ok, conversion.problems
    assert conversion.native["rewards"]["all"]["verifiers"]["llm_judge"]["options"] == {"engine": "judge"}
    native = conversion.native["judges"]["judge"]
    assert native["model_args"] == {"model_name_or_path": "a/judge", "dtype": "bf16"}
    assert (native["strategy_args"]["strategy_name"], native["num_gpus_per_worker"]) == ("vllm", 2)
    assert (native["generating_args"]["max_new_tokens"], native["sequence_length"]) == (4096, 16384)
    mappings = [conversion.native[role]["device_mapping"] for role in ("actor_train", "actor_infer")]
    assert [*mappings, native["device_mapping"]] == ["0-1", "2-5", "6-7"]


def test_operators_and_selectors_become_those_that_there_are() -> None:
    operators = [
        {"name": "reward_filter", "args": {"threshold": 0.1}},
        {"name": "pass_rate_calculator"},
        {
            "name": "reward_shaping_mapper",
            "args": {"reward_shaping_configs": [{"stats_key": "quality", "op_type": "ADD"}]},
        },
    ]
    operators.append({"name": "data_juicer", "args": {"operators": [{"alphanumeric_filter": {"min_ratio": 0.3}}]}})
    rows = [{"name": "text_length_filter", "args": {"min_len": 10}}, {"name": "llm_difficulty_score_filter"}]
    selector = {"selector_type": "difficulty_based", "feature_keys": ["rate"]}
    conversion = _converted(
        data_processor={"experience_pipeline": {"operators": operators}, "task_pipeline": {"operators": rows}},
        buffer={"explorer_input": {"taskset": {"data_selector": selector}}},
    )

    assert conversion.ok, conversion.problems
    assert conversion.native["operators"] == {
        "experience": [
            {"name": "score", "args": {"least": 0.1}},
            {"name": "reward_shaping", "args": {"metric": "quality", "op": "add", "weight": 1.0}},
            {"name": "data_juicer_groups", "args": {"op": "alphanumeric_filter", "min_ratio": 0.3}},
        ],
        "tasks": [
            {"name": "length", "args": {"column": "question", "least": 10}},
            {"name": "data_juicer", "args": {"op": "llm_difficulty_score_filter", "text_key": "question"}},
        ],
    }
    assert conversion.native["actor_train"]["data_args"]["selector"] == "learning_progress"


def test_two_programs_hand_weights_over_as_the_file_says() -> None:
    synchronizer = {"sync_method": "checkpoint", "sync_style": "fixed", "sync_interval": 4, "sync_offset": 2}
    conversion = _converted(mode="explore", synchronizer={**synchronizer, "sync_timeout": 600})

    assert conversion.ok, conversion.problems
    assert conversion.native["experience"]["sync"] == {"style": "fixed", "interval": 4, "offset": 2, "timeout": 600}
    # The folder that the trainer of the same file writes to, and not the explorer's own.
    assert conversion.native["experience"]["follow"] == _converted(mode="train").native["output_dir"]
    assert conversion.native["output_dir"] != conversion.native["experience"]["follow"]
    driven = _converted(mode="explore", synchronizer={"sync_method": "checkpoint", "sync_style": "trainer_driven"})
    assert driven.native["experience"]["sync"] == {"style": "dynamic_by_trainer"}
    assert _state(conversion, "synchronizer.sync_method") == "translated"


def _buffer(**store: str) -> dict[str, Any]:
    return {"trainer_input": {"experience_buffer": store}}


@pytest.mark.parametrize("method", ["memory", "nccl"])
def test_two_programs_hand_weights_over_in_their_cluster_where_their_store_is_there(method: str) -> None:
    through = {"synchronizer": {"sync_method": method, "sync_interval": 2}}
    in_ray = {"type": "ray", "sync": {"method": method, "style": "fixed", "interval": 2}}
    for mode in ("explore", "train"):
        conversion = _converted(mode=mode, **through)
        assert conversion.ok, conversion.problems
        assert conversion.native["experience"] == {**in_ray, "name": conversion.native["exp_name"]}
    kept = _converted(mode="explore", **through, buffer=_buffer(path="sqlite:///store.db"))
    assert kept.ok and kept.native["experience"] == {**in_ray, "name": "n", "path": "output/store"}
    in_database = _converted(mode="explore", **through, buffer=_buffer(storage_type="sql", path="sqlite:///store.db"))
    assert in_database.ok and in_database.native["experience"] == {
        "type": "sql",
        "path": "sqlite:///store.db",
        "follow": "output/p/n",
        "sync": {"style": "fixed", "interval": 2},
    }
    assert "weights are handed over by checkpoints" in _said(in_database, "synchronizer.sync_method")


@pytest.mark.parametrize(
    ("store", "native"),
    [
        ({"storage_type": "sql", "path": "postgresql://roll@host/exp"}, ("sql", "postgresql://roll@host/exp")),
        ({"storage_type": "sql", "path": "data/exp.db"}, ("sql", "sqlite:///data/exp.db")),
        ({"storage_type": "sql"}, ("sql", "sqlite:///output/experience.db")),
        ({"storage_type": "queue", "path": "sqlite:///exp.db"}, ("sql", "sqlite:///exp.db")),
        ({"storage_type": "file", "path": "data/exp.jsonl"}, ("folder", "data/exp")),
        ({"storage_type": "queue"}, ("folder", "output/experience")),
    ],
)
@pytest.mark.parametrize("mode", ["explore", "train"])
def test_what_lies_between_two_programs_is_a_store_of_its_kind(
    mode: str, store: dict[str, str], native: tuple[str, str]
) -> None:
    conversion = _converted(mode=mode, buffer=_buffer(**store), synchronizer={"sync_method": "checkpoint"})
    assert conversion.ok, conversion.problems
    experience = conversion.native["experience"]
    assert (experience.get("type", "folder"), experience["path"]) == native
    for key in store:
        assert _state(conversion, f"buffer.trainer_input.experience_buffer.{key}") == "translated"


def test_the_experiences_of_a_step_are_the_lease_of_who_learns_in_a_program_of_its_own() -> None:
    buffer = {"train_batch_size": 128, "trainer_input": {"experience_buffer": {"storage_type": "queue"}}}
    by_checkpoint = {"sync_method": "checkpoint"}
    train, explore, both = (
        _converted(mode=mode, buffer=buffer, synchronizer=by_checkpoint) for mode in ("train", "explore", "both")
    )
    assert train.ok and explore.ok and both.ok, (train.problems, explore.problems, both.problems)
    assert train.native["experience"]["train_batch_size"] == 128 and train.native["mini_batches"] == 1
    assert "train_batch_size" not in explore.native["experience"]
    assert _said(explore, "buffer.train_batch_size") == "nothing is learned (mode: explore)"
    assert both.native["mini_batches"] == 6


def test_a_store_of_another_kind_of_database_is_refused_with_what_there_is() -> None:
    store = _buffer(storage_type="sql", path="mysql://host/exp")
    conversion = _converted(mode="train", buffer=store, synchronizer={"sync_method": "checkpoint"})
    key = "buffer.trainer_input.experience_buffer.path"
    assert (_state(conversion, key), _said(conversion, key)) == (
        "impossible",
        "a store is in PostgreSQL or SQLite; nearest: an address postgresql://user@host/database, or a folder",
    )


def test_one_program_keeps_its_groups_whatever_the_file_says() -> None:
    conversion = _converted(buffer=_buffer(storage_type="sql", path="sqlite:///exp.db"))
    assert conversion.ok and "experience" not in conversion.native
    for key in ("storage_type", "path"):
        said = _said(conversion, f"buffer.trainer_input.experience_buffer.{key}")
        assert said == "a run without a second program keeps its groups to itself"


def test_a_step_that_goes_on_without_slow_tasks_does_so_in_step_with_training() -> None:
    over = {"ratio": 0.25, "wait_after_min": 5.0, "return_partial_tasks": False}
    driven = {"synchronizer": {"sync_style": "dynamic_by_explorer"}}
    conversion = _converted(explorer={"over_rollout": over}, **driven)
    assert conversion.ok, conversion.problems
    assert conversion.native["over_rollout"] == {"ratio": 0.25, "wait_after_min": 5.0}
    assert conversion.native["rollout_batch_size"] == 96 and "async_generation_ratio" not in conversion.native
    assert "learns from batch_size of them" in _said(conversion, "explorer.over_rollout.ratio")
    explorer = _converted(mode="explore", explorer={"over_rollout": over}, **driven)
    assert explorer.native["over_rollout"] == {"ratio": 0.25, "wait_after_min": 5.0}
    assert explorer.native["experience"]["sync"] == {"method": "nccl", "style": "dynamic_by_explorer"}
    assert "over_rollout" not in _converted(mode="train", explorer={"over_rollout": over}, **driven).native


def test_a_wait_for_slow_tasks_says_nothing_where_none_is_given_up() -> None:
    off = {"over_rollout": {"ratio": 0.0, "wait_after_min": 30.0, "return_partial_tasks": True}}
    conversion = _converted(explorer=off, synchronizer={"sync_style": "dynamic_by_explorer"})
    assert conversion.ok and "over_rollout" not in conversion.native
    assert conversion.native["async_generation_ratio"] == 1.0


def test_parts_of_slow_tasks_are_not_learned_from() -> None:
    partial = _converted(explorer={"over_rollout": {"ratio": 0.25, "return_partial_tasks": True}})
    assert "given up whole" in _said(partial, "explorer.over_rollout.return_partial_tasks")


def test_what_the_system_means_without_saying_it_is_written_and_said() -> None:
    conversion = _converted(trainer={"save_hf_checkpoint": "last"}, model={"min_response_tokens": 3})

    assert conversion.native["actor_train"]["model_args"]["dtype"] == "bf16"
    assert conversion.native["actor_infer"]["model_args"]["dtype"] == "bf16"
    assert any("dtype: bf16: what Trinity-RFT means" in note for note in conversion.notes)
    assert conversion.native["checkpoint_config"]["hf_model"] == "last"
    assert conversion.native["actor_infer"]["generating_args"]["min_new_tokens"] == 3


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


def test_what_rec_is_told_reaches_its_estimator_and_its_loss() -> None:
    """Keys of ``rec`` and of its form after GSPO, which averages over sequences."""
    algorithm = {
        "algorithm_type": "rec",
        "repeat_times": 8,
        "policy_loss_fn_args": {"clip_mode": "gspo-one-side", "weight": "gspo_importance_sampling"},
        "advantage_fn_args": {"std_normalize": True, "drop": "balance"},
    }
    conversion = _converted(algorithm=algorithm)
    assert conversion.ok, conversion.problems
    native = conversion.native
    assert native["algorithm_type"] == "rec"
    assert native["advantage_options"] == {"drop": "balance", "scale": "std"}
    assert native["policy_loss_options"] == algorithm["policy_loss_fn_args"]
    assert native["loss_agg_mode"] == "seq-mean-token-mean"


@pytest.mark.parametrize(
    ("name", "verifier"), [("my_boxed_workflow", {"options": {"answer_in": ["boxed"]}}), ("mine", 1)]
)
def test_a_workflow_of_ones_own_is_told_and_a_verifier_stands_in(name: str, verifier: Any) -> None:
    conversion = _converted(buffer={"explorer_input": {"default_workflow_type": name}})

    assert conversion.ok, conversion.problems
    assert _state(conversion, "buffer.explorer_input.default_workflow_type") == "impossible"
    assert "code of its own" in _said(conversion, "buffer.explorer_input.default_workflow_type")
    assert conversion.native["rewards"] == {"all": {"verifiers": {"math": verifier}}}


def test_a_workflow_of_ones_own_that_plays_names_the_module_to_write() -> None:
    conversion = _converted(buffer={"explorer_input": {"default_workflow_type": "raft_baseline_alfworld_workflow"}})

    assert (conversion.ok, conversion.pipeline) == (True, "agentic"), conversion.problems
    assert conversion.native["env_modules"] == ["alfworld_env"]


def test_a_reward_of_ones_own_is_told_and_a_verifier_stands_in() -> None:
    conversion = _converted(buffer={"explorer_input": {"default_reward_fn_type": "my_reward"}})

    assert conversion.ok, conversion.problems
    assert _state(conversion, "buffer.explorer_input.default_reward_fn_type") == "impossible"
    assert conversion.native["rewards"] == {"all": {"verifiers": {"math": 1.0}}}


def test_numbers_that_variables_give_are_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUS", "4")
    path = tmp_path / "job.yaml"
    machine = {"cluster": {"node_num": 1, "gpu_per_node": "${oc.env:GPUS,8}"}}
    path.write_text(yaml.safe_dump(merged(TRINITY_FILE, {**machine, "explorer": {"rollout_model": {"engine_num": 1}}})))

    native = convert(read([path]), "trinity").native
    assert (native["actor_train"]["device_mapping"], native["actor_infer"]["device_mapping"]) == ("0-1", "2-3")


def test_without_a_workflow_no_model_beside_the_policy_is_a_judge() -> None:
    explorer = {"auxiliary_models": [{"model_path": "a/judge"}]}
    unnamed = {"explorer_input": {"default_workflow_type": None, "default_reward_fn_type": "math_reward"}}
    own = {"explorer_input": {"default_workflow_type": "mine"}}

    assert "judges" not in _converted(explorer=explorer, buffer=unnamed).native
    assert "judges" in _converted(explorer=explorer, buffer=own).native
