"""A configuration says what kind of run it is of; users add kinds of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import Field

from roll.config import AgenticConfig, ConfigError, EvaluationConfig, RLVRConfig, RunConfig, launch, load
from roll.config.kinds import PIPELINES, kind_for, register_pipeline

OWN = """
from pydantic import Field
from roll.config import RunConfig, register_pipeline

class CountConfig(RunConfig):
    by: int = Field(1, description="Step width.")

register_pipeline("count", config=CountConfig, run=lambda config: print("counted", config.max_steps * config.by))
"""

RLVR = {
    "actor_train": {"data_args": {"file_name": "rows.jsonl"}},
    "rewards": {"math_rule": {}},
    "num_return_sequences_in_group": 2,
    "validation": {"data_args": {"file_name": "rows.jsonl"}},
}


class CountConfig(RunConfig):
    """A kind of run with a key of its own."""

    by: int = Field(1, description="Step width.")


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    with PIPELINES.restored():
        yield


def test_a_mapping_is_of_the_kind_that_it_names() -> None:
    assert type(load({"pipeline": "rlvr", **RLVR})) is RLVRConfig
    assert type(load({"pipeline": "agentic"})) is AgenticConfig
    assert type(load({"pipeline": "evaluation", **RLVR})) is EvaluationConfig


def test_an_evaluation_reads_the_configuration_of_a_run() -> None:
    assert load({"pipeline": "rlvr", **RLVR}, kind=EvaluationConfig).pipeline == "rlvr"


def test_a_checked_configuration_is_run_by_the_kind_of_its_model_or_the_nearest_that_it_extends() -> None:
    register_pipeline("count", config=CountConfig, run=print)
    register_pipeline("recount", config=CountConfig, run=print)
    assert kind_for(CountConfig()).name == "count" and kind_for(CountConfig(pipeline="recount")).name == "recount"
    assert kind_for(type("Counted", (CountConfig,), {})()).name == "count"
    assert kind_for(load({"pipeline": "evaluation", **RLVR})).name == "evaluation"
    with pytest.raises(LookupError, match="no kind of run has the keys of RunConfig"):
        kind_for(RunConfig())


def test_what_a_kind_does_it_says_itself() -> None:
    evaluation = load({"pipeline": "evaluation", **RLVR})
    assert not evaluation.trains and evaluation.samples and evaluation.policy is evaluation.actor_train
    assert evaluation.plan().describe() == "evaluate  every validation prompt × 1 responses"
    assert load({"pipeline": "rlvr", **RLVR}).trains
    assert CountConfig().policy is None and CountConfig().policy_head is None and not CountConfig().samples


def test_a_kind_that_there_is_not_is_a_problem_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"unknown pipeline 'agent'\.\n +Fix: Did you mean 'agentic'\?"):
        load({"pipeline": "agent"})


def test_a_program_of_another_kind_says_which_to_start() -> None:
    with pytest.raises(ConfigError, match=r"start examples/start_rlvr_pipeline\.py with it, or set pipeline: agentic"):
        load({"pipeline": "rlvr", **RLVR}, kind=AgenticConfig)


def test_a_kind_of_ones_own_has_the_keys_of_every_run_and_no_others() -> None:
    register_pipeline("count", config=CountConfig, run=print)
    config = load({"pipeline": "count", "by": 3, "max_steps": 4})
    assert (config.by, config.max_steps, config.plan().describe()) == (3, 4, "run       4 steps")
    with pytest.raises(ConfigError, match="rollout_batch_size"):
        load({"pipeline": "count", "rollout_batch_size": 4})


def test_any_program_runs_what_a_module_of_ones_own_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_count.py").write_text(OWN)
    (tmp_path / "mine.yaml").write_text("defaults: [_self_]\npipeline: count\npipeline_modules: my_count\nby: 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    launch("agentic", config_dir=tmp_path, argv=["--config-name", "mine", "max_steps=2"])
    assert capsys.readouterr().out.endswith("counted 10\n")
    with pytest.raises(SystemExit):
        launch(print, config_dir=tmp_path, argv=["--config-name", "mine"])
    assert "this program runs another kind" in capsys.readouterr().err
