"""A run of supervised fine-tuning: it learns, ends with its epochs, and goes on exactly where it was stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roll.config import ConfigError, SFTConfig, load
from roll.pipelines.sft import SFTPipeline
from roll.runs.stored import StoredRun
from tests.pipelines.row_runs import metrics, row_config

pytestmark = pytest.mark.long  # whole runs

SUMS = [(a, b) for a in range(1, 5) for b in range(1, 6)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    lines = [{"prompt": f"{a} + {b} = ?", "response": str(a + b)} for a, b in SUMS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def config(rows: Path, folder: Path, **changes) -> SFTConfig:
    in_passes = {"save_epochs", "eval_epochs"} & changes.keys()
    every = {} if in_passes else {"save_steps": 2, "eval_steps": 2}
    return row_config(
        "sft",
        rows,
        folder,
        changes,
        batch={"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        held_out=6,
        sequence_length=64,
        **every,
    )


def test_a_run_learns_for_its_epochs_and_is_listed(rows: Path, tmp_path: Path) -> None:
    summary = SFTPipeline.start(config(rows, tmp_path / "run", actor_train__training_args__num_train_epochs=2))

    found = metrics(tmp_path / "run")
    steps = [row for row in found if "train/loss" in row]
    assert summary.steps == 5 and [row["train/rows"] for row in steps] == [8, 8, 8, 8, 8]
    assert steps[-1]["train/epoch"] == 2
    assert summary.after["val/loss"] < summary.before["val/loss"]
    assert (tmp_path / "run/checkpoints/step=000005/hf/model.safetensors").is_file()
    assert (tmp_path / "run/checkpoints/step=000005/hf/tokenizer.json").is_file()
    curve = StoredRun.open(tmp_path / "run").main_curve
    assert curve is not None and curve.last == pytest.approx(summary.after["val/loss"])


def test_the_last_step_of_an_epoch_has_the_rows_that_are_left(rows: Path, tmp_path: Path) -> None:
    SFTPipeline.start(config(rows, tmp_path, eval_steps=0))

    assert [row["train/rows"] for row in metrics(tmp_path)] == [8, 8, 4]


def test_checkpoints_and_evaluations_come_after_passes_over_the_rows(rows: Path, tmp_path: Path) -> None:
    """20 rows are two and a half steps of 8: one pass ends in the third step, two in the fifth."""
    passes = {"save_epochs": 1, "eval_epochs": 2, "max_steps": 7}
    SFTPipeline.start(config(rows, tmp_path / "run", checkpoint_config__keep=9, **passes))

    saved = [folder.name for folder in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    assert saved == ["step=000003", "step=000006", "step=000007"]
    measured = [row["step"] for row in metrics(tmp_path / "run") if "val/loss" in row]
    assert measured == [0, 5, 7]
    with pytest.raises(ConfigError, match=r"save_epochs = 1.0.*\s+save_steps says it too"):
        config(rows, tmp_path / "twice", save_steps=2, **passes)


def test_a_run_that_is_resumed_goes_on_exactly(rows: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    SFTPipeline.start(config(rows, whole, max_steps=5))
    SFTPipeline.start(config(rows, parts, max_steps=2))
    SFTPipeline.start(config(rows, parts, max_steps=5, resume_from_checkpoint=True))

    def trained(folder: Path) -> list[dict[str, float]]:
        return [row for row in metrics(folder) if "train/loss" in row]

    assert trained(parts) == trained(whole)
    weights = [folder / "checkpoints/step=000005/hf/model.safetensors" for folder in (whole, parts)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_checkpoint_has_the_parts_that_are_asked_for(rows: Path, tmp_path: Path) -> None:
    keys = {"checkpoint_config__keep": 9, "actor_train__training_args__num_train_epochs": 2, "eval_steps": 0}
    SFTPipeline.start(config(rows, tmp_path / "last", checkpoint_config__hf_model="last", **keys))
    folders = sorted((tmp_path / "last" / "checkpoints").iterdir())
    assert [(folder / "hf" / "config.json").is_file() for folder in folders] == [False, False, True]
    assert all((folder / "train_state.pt").is_file() for folder in folders)

    SFTPipeline.start(config(rows, tmp_path / "weights", checkpoint_config__contents="weights", **keys))
    newest = sorted((tmp_path / "weights" / "checkpoints").iterdir())[-1]
    assert {path.name for path in newest.iterdir()} == {
        "hf",
        "state.json",
        "checksums.xxh128",
        "run.json",
        "config.yaml",
    }
    with pytest.raises(ConfigError, match=r"weights alone[\s\S]*pretrain="):
        SFTPipeline.start(
            config(
                rows, tmp_path / "weights", checkpoint_config__contents="weights", resume_from_checkpoint=True, **keys
            )
        )
    SFTPipeline.start(config(rows, tmp_path / "again", pretrain=str(newest / "hf"), **keys))
    with pytest.raises(ConfigError, match="checkpoint_config.hf_model"):
        config(rows, tmp_path / "none", checkpoint_config__contents="weights", checkpoint_config__hf_model="never")


def test_other_rows_do_not_continue_a_run(rows: Path, tmp_path: Path) -> None:
    SFTPipeline.start(config(rows, tmp_path, max_steps=1))
    other = tmp_path / "other.jsonl"
    other.write_text("".join(rows.read_text().splitlines(keepends=True)[1:]))

    with pytest.raises(ConfigError, match="20 rows then, 19 now"):
        SFTPipeline.start(config(other, tmp_path, max_steps=2, resume_from_checkpoint=True))


@pytest.mark.exhaustive
@pytest.mark.processes
def test_a_run_that_was_killed_goes_on_from_its_checkpoint(rows: Path, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom roll.pipelines.sft import SFTPipeline\n"
        "from tests.pipelines.test_sft import config\n"
        "before = SFTPipeline.step\n"
        "async def step(self, number):\n"
        "    if number == 4:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    await before(self, number)\n"
        "SFTPipeline.step = step\n"
        "SFTPipeline.start(config(Path(sys.argv[1]), Path(sys.argv[2]), max_steps=5))\n"
    )
    folder = tmp_path / "killed"
    words = [sys.executable, "-c", program, str(rows), str(folder)]
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    assert done.returncode == -signal.SIGKILL

    SFTPipeline.start(config(rows, folder, max_steps=5, resume_from_checkpoint=True))

    steps = [int(row["step"]) for row in metrics(folder) if "train/loss" in row]
    assert steps == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"actor_train__data_args__file_name": None}, "actor_train.data_args.file_name", "nothing to learn from"),
        ({"actor_train__data_args__messages": "talk"}, "actor_train.data_args.messages", "messages_key"),
        ({"prompt_key": "prompt"}, "response_key", "what to imitate"),
        ({"messages_key": "a", "text_key": "b"}, "text_key", "both set"),
        ({"rollout_batch_size": 8}, "rollout_batch_size", "start that with this file"),
        ({"actor_train__strategy_args": {"strategy_name": "vllm"}}, "actor_train.strategy_args", "cannot serve"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_read(rows, tmp_path, changes, key, said) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        config(rows, tmp_path, **changes)

    assert any(problem.path.startswith(key) for problem in error.value.problems)


def test_keys_without_effect_are_said(rows: Path, tmp_path: Path) -> None:
    with pytest.warns(match="max_steps says how long"):
        config(rows, tmp_path, max_steps=3, actor_train__training_args__num_train_epochs=2)
    with pytest.warns(match="nothing is graded"):
        config(rows, tmp_path, actor_train__data_args__ground_truth="answer")


def test_a_model_that_is_not_there_is_a_problem_of_its_key(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pretrain"):
        SFTPipeline.start(config(rows, tmp_path, pretrain="no/such/model"))
    assert not (tmp_path / "checkpoints").exists()


def test_the_role_may_be_called_as_in_the_guide(rows: Path) -> None:
    section = {"data_args": {"file_name": str(rows)}, "training_args": {"gradient_accumulation_steps": 16}}

    found = load({"pipeline": "sft", "sft_train": section})

    assert found.rows_per_step == 16 and found.actor_train.data_args.file_name == [str(rows)]


GAMES = {"val_env_manager": {"tags": ["SimpleSokoban"], "env_groups": 2, "group_size": 1}, "val_batch_size": 2}
SHORT = {"sequence_length": 640, "actor_infer": {"generating_args": {"max_new_tokens": 4}}}
ANSWERS = {
    "rewards": {"math_rule": {"tag_included": ["sums"]}},
    "actor_infer": {"generating_args": {"max_new_tokens": 4}},
    "val_batch_size": 8,
}


def problems_to_solve(folder: Path) -> Path:
    path = folder / "problems.jsonl"
    lines = [{"prompt": f"{a} + {b} = ?", "ground_truth": str(a + b), "tag": "sums"} for a, b in SUMS[:4]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("what", ["games", pytest.param("answers", marks=pytest.mark.exhaustive)])
def test_the_policy_is_measured_by_what_it_plays_and_answers(rows: Path, tmp_path: Path, what: str) -> None:
    data = {"validation": {"data_args": {"file_name": str(problems_to_solve(tmp_path))}}}
    section = {**GAMES, **SHORT} if what == "games" else {**ANSWERS, **data}
    changes = {"max_steps": 1, "validation": None}
    plain, folder = tmp_path / "plain", tmp_path / "measured"
    SFTPipeline.start(config(rows, plain, **changes, eval_steps=0))

    summary = SFTPipeline.start(config(rows, folder, **changes, evaluation=section))

    assert {"val/success", "val/reward", "val/response_tokens"} <= summary.after.keys()
    stored = StoredRun.open(folder).episodes(1, "val")
    assert {episode.tag for episode in stored} == {"SimpleSokoban" if what == "games" else "sums"}
    mean = sum(episode.success for episode in stored) / len(stored)
    assert summary.after["val/success"] == pytest.approx(mean) and not list(folder.glob(".*eval*"))
    # The weights are those of a run that was not looked at.
    weights = [run / "checkpoints/step=000001/hf/model.safetensors" for run in (plain, folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.exhaustive
@pytest.mark.processes
def test_what_is_measured_is_that_of_the_policy_in_its_checkpoint(rows: Path, tmp_path: Path) -> None:
    data = {"validation": {"data_args": {"file_name": str(problems_to_solve(tmp_path))}}}
    changes = {"max_steps": 1, "validation": None, "evaluation": {**ANSWERS, **data}}
    SFTPipeline.start(config(rows, tmp_path / "run", **changes, **{"actor_train.training_args.learning_rate": 1e-2}))

    from roll.api.evaluation import evaluate

    policy = tmp_path / "run/checkpoints/step=000001/hf"
    evaluate(str(policy), config={**ANSWERS, **data}, greedy=False, output_dir=tmp_path / "again")

    def said(episodes: list) -> list[list[int]]:
        return [turn.completion_ids for episode in episodes for turn in episode.turns]

    during = [said(StoredRun.open(tmp_path / "run").episodes(step, "val")) for step in (0, 1)]
    assert during[1] == said(StoredRun.open(tmp_path / "again").episodes(0, "val")) and during[0] != during[1]


@pytest.mark.parametrize(
    ("section", "key", "said"),
    [
        ("sokobann", "evaluation", "sokoban"),
        ({"val_env_manager": {"tags": ["Sokobann"]}}, "evaluation.val_env_manager.tags", "Sokoban"),
        ({**ANSWERS}, "evaluation.validation", "an evaluation needs prompts"),
        (
            {**ANSWERS, "validation": {"data_args": {"file_name": "nowhere.jsonl"}}},
            "evaluation.validation.data_args.file_name",
            "nowhere.jsonl",
        ),
        ({"val_env_manger": {}}, "evaluation.val_env_manger", "val_env_manager"),
    ],
)
def test_an_evaluation_that_cannot_be_is_said_before_anything_is_loaded(rows, tmp_path, section, key, said) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        SFTPipeline.start(config(rows, tmp_path, evaluation=section))

    assert any(problem.path.startswith(key) for problem in error.value.problems)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.exhaustive
def test_ctrl_c_saves_the_step_and_the_run_goes_on_from_there(rows: Path, tmp_path: Path, monkeypatch) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    SFTPipeline.start(config(rows, whole, max_steps=5, eval_steps=0))
    update = SFTPipeline._update

    async def stopped_in_an_update(self: SFTPipeline, batch, position: int, step: int) -> dict[str, float]:
        if step == 3:
            signal.raise_signal(signal.SIGINT)
        return await update(self, batch, position, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="step=000003. Continue with"):
        patch.setattr(SFTPipeline, "_update", stopped_in_an_update)
        SFTPipeline.start(config(rows, folder, max_steps=5, eval_steps=0))
    assert StoredRun.open(folder).state == "interrupted"
    SFTPipeline.start(config(rows, folder, max_steps=5, eval_steps=0, resume_from_checkpoint=True))

    weights = [run / "checkpoints/step=000005/hf/model.safetensors" for run in (whole, folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
