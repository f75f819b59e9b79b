"""``roll train``: which configuration is read, which pipeline runs it, and in whose words it is continued."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from roll.cli.app import main
from roll.config import RunConfig, RunError, launching
from roll.pipelines.run.command import resume_command
from roll.pipelines.run.record import RunRecord

pytestmark = pytest.mark.long  # whole runs


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RunConfig, str | None]]:
    """What would have been run: the pipeline, its configuration, the command that continues it."""
    found: list[tuple[str, RunConfig, str | None]] = []

    def runner(run: Any) -> Any:
        return lambda config: found.append((str(run), config, resume_command(config, max_steps=9)))

    monkeypatch.setattr(launching, "runner", runner)
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/roll"])
    monkeypatch.chdir(tmp_path)
    return found


def roll(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["train", *words])
    return int(left.value.code or 0)


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [("sokoban", "AgenticPipeline"), ("rlvr_math", "RlvrPipeline"), ("eval_math", "run_evaluation")],
)
def test_a_configuration_decides_which_pipeline_runs_it(started: list[Any], name: str, pipeline: str) -> None:
    assert roll(name, "seed=7") == 0
    ((run, config, _),) = started
    assert pipeline in run and (config.exp_name, config.seed) == (name, 7)
    assert config.output_dir.resolve() == Path.cwd() / "output" / name


def test_a_file_of_ones_own_may_name_its_pipeline(started: list[Any]) -> None:
    Path("mine.yaml").write_text("defaults: [rlvr_math, _self_]\npipeline: evaluation\nmax_steps: 3\n")
    for name in ("mine", "mine.yaml", str(Path("mine.yaml").absolute())):
        assert roll(name) == 0
    assert [run for run, *_ in started] == ["roll.pipelines.evaluation:run_evaluation"] * 3


def test_a_run_is_continued_and_repeated_in_the_words_that_started_it(started: list[Any]) -> None:
    Path("my configs").mkdir()
    Path("my configs/mine.yaml").write_text("defaults: [sokoban, _self_]\n")
    assert roll("my configs/mine.yaml", "max_steps=4", "output_dir=out", "seed=3") == 0
    ((_, config, line),) = started
    words = shlex.split(line)
    assert words == [
        "/somewhere/bin/roll",
        "train",
        "my configs/mine.yaml",
        "seed=3",
        "output_dir=out",
        "resume_from_checkpoint=true",
        "max_steps=9",
    ]
    record = RunRecord.of(config)
    assert record.about["command"].startswith("/somewhere/bin/roll train 'my configs/mine.yaml' max_steps=4")
    assert "# Again: /somewhere/bin/roll train <this file>\n" in record.text
    # What is printed starts the same run.
    assert roll(*words[2:]) == 0
    assert started[-1][1].seed == 3 and started[-1][1].resume_from_checkpoint is True


def test_the_record_of_a_run_is_a_configuration_to_train_with(started: list[Any]) -> None:
    assert roll("sokoban", "max_steps=4") == 0
    Path("record.yaml").write_text(RunRecord.of(started[0][1]).text)
    assert roll("record.yaml") == 0
    assert started[1][1].max_steps == 4 and started[1][0] == started[0][0]


def test_several_runs_have_folders_of_their_own(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert roll("sokoban", "--multirun", "seed=1,2") == 0
    assert [config.seed for _, config, _ in started] == [1, 2]
    assert [config.output_dir.name for _, config, _ in started] == ["0", "1"]
    assert all(f"seed={config.seed}" in shlex.split(line) for _, config, line in started)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sokobann"], "did you mean 'sokoban'"),
        (["sokoban", "max_stepz=5"], "did you mean max_steps?"),
        (["sokoban", "--nosuch"], "No such option: --nosuch"),
        ([], "Missing argument"),
        (["sokoban", "pipeline=nosuch"], "pipeline"),
    ],
)
def test_mistakes_have_code_2_and_nothing_is_run(
    started: list[Any], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll(*words) == 2
    assert started == [] and said in capsys.readouterr().err


def test_a_run_that_cannot_go_on_has_code_3_and_one_that_is_stopped_130(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(error: BaseException) -> None:
        def run(_: Any) -> None:
            raise error

        monkeypatch.setattr(launching, "runner", lambda _: run)

    failing(RunError("The disk is full. Continue with: roll train …"))
    assert roll("sokoban") == 3
    failing(KeyboardInterrupt("Saved step 3."))
    assert roll("sokoban") == 130
    said = capsys.readouterr().err
    assert "The disk is full." in said and "Saved step 3." in said
