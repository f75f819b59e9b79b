"""From a foreign configuration to a native one, and what is said about every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.config import load
from roll.convert import Conversion, Foreign, as_json, convert, render_report, to_native_yaml

_JOB: dict[str, Any] = {
    "data": {"train_files": "train.parquet", "train_batch_size": 8, "max_response_length": 64},
    "actor_rollout_ref": {"model": {"path": "some/model"}, "rollout": {"n": 4}, "actor": {"use_kl_loss": True}},
    "custom_reward_function": {"path": "grade.py"},
    "trainer": {"experiment_name": "mine"},
}


@pytest.fixture
def _grader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grade.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1\n"
    )


def _converted(**changes: Any) -> Conversion:
    tree = {**_JOB, **{key: {**_JOB.get(key, {}), **value} for key, value in changes.items()}}
    return convert(Foreign(tree, Path("job.txt"), "verl.trainer.main_ppo"))


@pytest.mark.usefixtures("_grader")
def test_the_native_keys_are_a_configuration_and_every_key_is_reported() -> None:
    conversion = _converted()

    assert (conversion.ok, conversion.system, conversion.pipeline) == (True, "verl", "rlvr"), conversion.problems
    assert conversion.native["rollout_batch_size"] == 8
    reported = {key.key: key for key in conversion.keys}
    assert reported["data.train_batch_size"].to == ("rollout_batch_size",)
    assert set(reported) == {
        "data.train_files",
        "data.train_batch_size",
        "data.max_response_length",
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.actor.use_kl_loss",
        "custom_reward_function.path",
        "trainer.experiment_name",
    }


@pytest.mark.usefixtures("_grader")
def test_the_written_file_loads_to_the_same_keys(tmp_path: Path) -> None:
    conversion = _converted()
    text = to_native_yaml(conversion)
    Path("native.yaml").write_text(text)

    assert yaml.safe_load(text) == conversion.native
    assert load("native.yaml").rollout_batch_size == 8
    assert "rollout_batch_size: 8  # data.train_batch_size" in text


@pytest.mark.usefixtures("_grader")
def test_what_a_file_leaves_to_its_system_is_what_the_system_does(tmp_path: Path) -> None:
    conversion = _converted(data={"val_files": "val.parquet"})
    Path("native.yaml").write_text(to_native_yaml(conversion))
    job = load("native.yaml")

    assert (job.adv_estimator, job.lambd, job.loss_agg_mode, job.dual_clip) == ("gae", 1.0, "token-mean", 3.0)
    assert job.whiten_advantages and job.value_clip == 0.5, "verl whitens what its critic says in any case"
    assert job.actor_train.training_args.weight_decay == job.critic.training_args.weight_decay == 0.01
    assert (job.actor_train.training_args.learning_rate, job.critic.training_args.learning_rate) == (1e-6, 1e-5)
    assert job.validation.generating_args.temperature == 0
    (note,) = [note for note in conversion.notes if "algorithm.lam: 1.0" in note]
    assert note.endswith("what verl means where a file does not say it.")


@pytest.mark.usefixtures("_grader")
def test_what_a_file_says_counts_and_no_critic_comes_of_what_it_does_not_say() -> None:
    said = {"adv_estimator": "grpo", "lam": 0.9}
    conversion = _converted(
        algorithm=said,
        actor_rollout_ref={**_JOB["actor_rollout_ref"], "actor": {"loss_agg_mode": "seq-mean-token-sum"}},
    )

    native = conversion.native
    assert (native["adv_estimator"], native["lambd"], native["loss_agg_mode"]) == ("grpo", 0.9, "seq-mean-token-sum")
    assert not {"critic", "value_clip", "whiten_advantages", "validation"} & set(native)


@pytest.mark.usefixtures("_grader")
def test_a_key_of_nobody_is_dropped_and_reported_and_a_typing_mistake_is_a_problem() -> None:
    unknown = _converted(trainer={"paint_it_black": 3, "rainbow": {"red": 1, "blue": 2}})
    mistake = _converted(data={"train_batch_sise": 8})

    states = {key.key: key.state for key in unknown.keys}
    assert unknown.ok
    assert {states[f"trainer.{key}"] for key in ("paint_it_black", "rainbow.red", "rainbow.blue")} == {"impossible"}
    assert not mistake.ok
    assert [(each.path, each.fix) for each in mistake.problems] == [
        ("data.train_batch_sise", "did you mean data.train_batch_size?")
    ]


@pytest.mark.usefixtures("_grader")
def test_a_value_that_cannot_be_used_is_a_problem_under_the_name_that_the_user_wrote() -> None:
    conversion = _converted(data={"train_batch_size": -3})

    assert not conversion.ok
    assert "data.train_batch_size" in {problem.path for problem in conversion.problems}
    assert "cannot be used yet" in render_report(conversion)
    assert as_json(conversion)["problems"][0]["fix"]


@pytest.mark.usefixtures("_grader")
def test_json_has_a_state_for_every_key() -> None:
    document = as_json(_converted())

    assert document["ok"] is True
    assert {each["state"] for each in document["keys"]} <= {"translated", "no_effect", "impossible"}
    assert all(each["to"] for each in document["keys"] if each["state"] == "translated")
    assert all(each["why"] for each in document["keys"] if each["state"] != "translated")


def test_what_is_not_on_this_machine_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    conversion = _converted()

    assert conversion.ok, conversion.problems
    assert any("grade.py" in note for note in conversion.notes)


def test_native_keys_are_reported_as_what_they_are() -> None:
    tree = {"pipeline": "agentic", "max_steps": 3, "train_env_manager": {"tags": ["SimpleSokoban"]}}
    conversion = convert(Foreign(tree, Path("mine.yaml")))

    assert (conversion.ok, conversion.system) == (True, "roll"), conversion.problems
    assert {key.key: key.to for key in conversion.keys}["train_env_manager.tags"] == ("train_env_manager.tags",)
