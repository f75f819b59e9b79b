"""``roll eval``: what is measured, with which pipeline, for each way to name a policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from roll.cli.app import main
from roll.config import AgenticConfig, EvaluationConfig, load
from roll.config.written import to_mapping
from roll.models.toy import TOYS
from roll.pipelines import evaluation
from roll.pipelines.evaluation import Results
from roll.pipelines.measuring import Measured
from roll.pipelines.run.record import RunRecord

pytestmark = pytest.mark.long  # whole runs


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that are measured, each checked; nothing is played."""
    found: list[Any] = []

    def record(config: Any, *, greedy: bool) -> Results:
        found.append(config)
        nothing = Measured([], None)  # type: ignore[arg-type]
        return Results(config, nothing, nothing if greedy else None, {"errors": 0.0})

    monkeypatch.setattr(evaluation, "evaluate_and_store", record)
    monkeypatch.chdir(tmp_path)
    return found


def roll(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["eval", *words])
    return int(left.value.code or 0)


def test_configurations_of_any_kind_are_evaluated_on_what_they_validate_with(measured: list[Any]) -> None:
    assert [roll(name) for name in ("eval_math", "rlvr_math", "sokoban")] == [0, 0, 0]
    math, trained, games = measured
    assert isinstance(math, EvaluationConfig) and isinstance(trained, EvaluationConfig)
    assert isinstance(games, AgenticConfig) and games.val_env_manager.env_groups == 256
    # Not where the run of that name is.
    assert [str(config.output_dir) for config in measured] == [
        "output/eval_math",
        "output/eval_rlvr_math",
        "output/eval_sokoban",
    ]


def test_a_run_is_evaluated_by_its_newest_checkpoint_on_any_environment_or_file(measured: list[Any]) -> None:
    write_run(Path("run"), load("sokoban"), steps=(8, 16))
    Path("mine.jsonl").write_text("{}\n")
    assert roll("run", "--env", "FrozenLake") == roll("run/checkpoints/step=000008", "--data", "mine.jsonl") == 0
    played, asked = measured
    assert played.pretrain == "run/checkpoints/step=000016/hf" and played.val_env_manager.tags == ["FrozenLake"]
    assert played.agent_system_template.startswith("Solve the Sokoban puzzle")  # what the run told its policy
    assert asked.pretrain == "run/checkpoints/step=000008/hf" and isinstance(asked, EvaluationConfig)
    assert asked.val_data_args.file_name == [str(Path("mine.jsonl").absolute())]


def test_a_run_is_evaluated_on_what_it_validates_with_where_nothing_else_is_said(measured: list[Any]) -> None:
    write_run(Path("run"), load("sokoban"), steps=(8,))
    assert roll("run") == 0
    assert measured[0].pretrain == "run/checkpoints/step=000008/hf"
    assert measured[0].val_env_manager.tags == ["SimpleSokoban"] and str(measured[0].output_dir) == "output/eval_run"


def test_what_is_said_on_the_command_line_wins(measured: list[Any]) -> None:
    sizes = ["val_env_manager.env_groups=64", "val_batch_size=64"]
    assert roll("toy", "--env", "FrozenLake", "--env", "SimpleSokoban", "output_dir=elsewhere", *sizes) == 0
    assert roll("eval_math", "--episodes", "5", "--attempts", "2") == 0
    played, asked = measured
    assert played.val_env_manager.env_groups == 64 and str(played.output_dir) == "elsewhere"
    assert played.val_env_manager.tags == ["FrozenLake", "SimpleSokoban"]
    assert asked.val_data_args.max_samples == 5 and asked.val_generating.num_return_sequences == 2


def test_an_endpoint_plays_or_answers_what_is_said_and_its_key_is_nowhere(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    behind = ["--endpoint", "http://localhost:1/v1", "--model", "m", "--api-key-env", "MY_KEY"]
    assert roll(*behind, "--env", "FrozenLake", "seed=7") == roll("eval_math", *behind) == 0
    played, asked = measured
    assert played.seed == 7 and played.val_env_manager.tags == ["FrozenLake"]
    for config in measured:
        assert config.actor_infer.strategy_args.strategy_config["model"] == "m"
        assert "sk-secret" not in str(to_mapping(config))
    assert isinstance(asked, EvaluationConfig)


def test_one_json_document_has_the_figures(measured: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert roll("sokoban", "--json", "--greedy") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] == "output/eval_sokoban" and document["sampled"]["success"]["mean"] is None
    assert document["greedy"] is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toy", "--env", "A", "--data", "b"], "not both"),
        (["."], "--env TAG or --data FILE"),
        (["nosuch"], "no such configuration"),
        ([], "name a configuration or a policy"),
        (["--endpoint", "http://localhost:1/v1", "--env", "A"], "--model NAME"),
        (["--endpoint", "http://localhost:1/v1", "--model", "m"], "what the policy is to do"),
        (["sokoban", "max_stepz=1"], "did you mean"),
    ],
)
def test_mistakes_have_code_2(
    measured: list[Any], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll(*words) == 2 and measured == []
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def write_run(folder: Path, config: AgenticConfig, steps: tuple[int, ...]) -> None:
    """Write what a run leaves, as far as it matters here: records, and checkpoints with a toy in them."""
    RunRecord.of(config).write(folder)
    for step in steps:
        checkpoint = folder / "checkpoints" / f"step={step:06}"
        shutil.copytree(TOYS["toy"], checkpoint / "hf")
        RunRecord.of(config).write(checkpoint)
        (checkpoint / "state.json").write_text("{}")


def test_an_agent_is_a_tag_that_is_measured(measured: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert roll("toy", "--agent", "mine:solve", "--tasks", "a.jsonl", "--tasks", "b c.jsonl", "--episodes", "8") == 0
    assert roll("toy", "--agent", "python 'my agent.py' {question}", "--calls", "3") == 0
    assert [config.val_env_manager.tags for config in measured] == [["Agent"], ["Agent"]]
    function, command = (config.tags()["Agent"] for config in measured)
    assert function.env_config == {"program": "mine:solve", "tasks": ["a.jsonl", "b c.jsonl"]}
    assert command.env_config == {"command": ["python", "my agent.py", "{question}"]} and command.max_steps == 3
    assert roll("toy", "--agent", "mine:solve", "--env", "FrozenLake") == 2
    assert "--env" in capsys.readouterr().err
