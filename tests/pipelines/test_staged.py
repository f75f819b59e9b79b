"""A run of several stages: all are checked first, each starts from the weights of another, a stop loses nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import roll
from roll.config import ConfigError, RunError, load
from roll.config.staged import StagedConfig
from roll.pipelines.dpo import DPOPipeline
from roll.pipelines.sft import SFTPipeline
from roll.pipelines.staged import run_stages
from roll.runs.outcome import State
from roll.runs.stored import StoredRun, find_runs
from tests import programs

pytestmark = pytest.mark.long  # whole runs

SUMS = [(a, b) for a in range(1, 5) for b in range(1, 6)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    asked = [f"{a} + {b} = ?" for a, b in SUMS]
    said = [{"prompt": text, "response": str(a + b)} for text, (a, b) in zip(asked, SUMS, strict=True)]
    pairs = [{"prompt": text, "chosen": str(a + b), "rejected": "0"} for text, (a, b) in zip(asked, SUMS, strict=True)]
    for name, rows in (("sums", said), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def config(data: Path, folder: Path, **changes: Any) -> StagedConfig:
    """Return two stages of three steps each: demonstrations, then pairs."""
    rows = {"training_args": {"per_device_train_batch_size": 4}}
    keys = {
        "pretrain": "toy_math",
        "output_dir": str(folder),
        "track_with": ["jsonl"],
        "progress": "none",
        "sequence_length": 64,
        "max_steps": 3,
        "save_steps": 2,
        "eval_steps": 3,
        "actor_train": {"model_args": {"disable_gradient_checkpointing": True}, **rows},
        "stages": [
            {
                "name": "sft",
                "pipeline": "sft",
                "actor_train": {"data_args": {"file_name": str(data / "sums.jsonl")}},
                "validation": {"data_args": {"file_name": str(data / "sums.jsonl"), "max_samples": 4}},
            },
            {
                "name": "dpo",
                "pipeline": "dpo",
                "reference_log_probs": "stored",
                "actor_train": {"data_args": {"file_name": str(data / "pairs.jsonl")}},
            },
        ],
    }
    return load(keys, overrides={key.replace("__", "."): value for key, value in changes.items()})


def weights(folder: Path, stage: str) -> bytes:
    return (folder / stage / "checkpoints/step=000003/hf/model.safetensors").read_bytes()


def logged(folder: Path) -> list[dict[str, float]]:
    return [{key: row[key] for key in row if not key.startswith("time/")} for row in StoredRun.open(folder).metrics()]


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_stages(config(data, folder))
    return folder


def test_a_stage_is_the_run_of_its_kind_that_starts_from_the_weights_of_the_one_before(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    alone = config(data, tmp_path)
    first, second = (stage.config for stage in alone.stages.values())
    SFTPipeline.start(first)
    start = tmp_path / "sft/checkpoints/step=000003/hf"
    DPOPipeline.start(second.model_copy(update={"pretrain": str(start)}))

    assert weights(whole, "sft") == weights(tmp_path, "sft") and weights(whole, "dpo") == weights(tmp_path, "dpo")
    moved = [
        (a - b).abs().max()
        for a, b in zip(load_file(start / "model.safetensors").values(), torch_weights(whole, "dpo"), strict=True)
    ]
    assert max(moved) > 0


def torch_weights(folder: Path, stage: str) -> list[torch.Tensor]:
    return list(load_file(folder / stage / "checkpoints/step=000003/hf/model.safetensors").values())


def test_the_folder_of_the_whole_tells_of_every_stage(whole: Path) -> None:
    run = StoredRun.open(whole)
    assert run.state is State.FINISHED and (run.steps, run.max_steps) == (2, 2)
    curve, sft = run.curve("val/loss"), StoredRun.open(whole / "sft")
    assert list(curve) == [(0, sft.curve("val/loss").values[0]), (1, sft.curve("val/loss").last)]
    assert {found.folder for found in find_runs(whole.parent)} == {whole, whole / "sft", whole / "dpo"}


@pytest.mark.exhaustive
@pytest.mark.processes
def test_a_run_that_was_killed_in_its_second_stage_is_the_run_that_was_not(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom roll.pipelines.dpo import DPOPipeline\n"
        "from roll.pipelines.staged import run_stages\nfrom tests.pipelines.test_staged import config\n"
        "before = DPOPipeline.step\n"
        "async def step(self, number):\n"
        "    if number == 3:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    await before(self, number)\n"
        "DPOPipeline.step = step\n"
        "run_stages(config(Path(sys.argv[1]), Path(sys.argv[2])))\n"
    )
    folder = tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)}
    with open(os.devnull) as nothing:
        words = ["-c", program, str(data), str(folder)]
        done = programs.start("program", words, tmp_path, environment, [nothing.fileno(), 1, 2])
    assert done.wait(240) == -signal.SIGKILL
    first = (folder / "sft/outcome.json").stat().st_mtime_ns

    run_stages(config(data, folder, resume_from_checkpoint=True))

    assert weights(folder, "dpo") == weights(whole, "dpo")
    assert logged(folder / "dpo") == logged(whole / "dpo") and logged(folder) == logged(whole)
    assert (folder / "sft/outcome.json").stat().st_mtime_ns == first


@pytest.mark.exhaustive
def test_what_stops_a_stage_stops_the_run_which_goes_on_there(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = SFTPipeline.step

    async def step(self: SFTPipeline, number: int) -> None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
        await before(self, number)

    monkeypatch.setattr(SFTPipeline, "step", step)
    with pytest.raises(KeyboardInterrupt, match="Continue with"):
        run_stages(config(data, tmp_path / "run"))
    assert StoredRun.open(tmp_path / "run").state is State.INTERRUPTED and not (tmp_path / "run/dpo").exists()
    monkeypatch.setattr(SFTPipeline, "step", before)

    run_stages(config(data, tmp_path / "run", resume_from_checkpoint=True))

    assert weights(tmp_path / "run", "dpo") == weights(whole, "dpo")
    assert StoredRun.open(tmp_path / "run").state is State.FINISHED


def test_a_complete_stage_is_not_gone_on_from_with_other_settings(data: Path, whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"stages\.sft\n.*l2: 0\.0 → 0\.5.*\n.*start all stages anew"):
        run_stages(config(data, whole, stages__sft__l2=0.5, resume_from_checkpoint=True))
    assert StoredRun.open(whole).state is State.FINISHED


@pytest.mark.exhaustive
def test_a_new_run_moves_all_stages_of_the_earlier_one_aside(data: Path, tmp_path: Path) -> None:
    for stage in ("sft", "dpo"):
        (tmp_path / "run" / stage / "checkpoints/step=000009").mkdir(parents=True)
        (tmp_path / "run" / stage / "outcome.json").write_text('{"state": "finished", "ended": ""}')
    run_stages(config(data, tmp_path / "run", max_steps=1, eval_steps=0))
    assert (tmp_path / "run.1/sft/outcome.json").is_file() and (tmp_path / "run.1/dpo/checkpoints").is_dir()
    assert [path.name for path in (tmp_path / "run/dpo/checkpoints").iterdir()] == ["step=000001"]


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"stages__dpo__actor_train__data_args__file_name": "no.jsonl"}, "stages.dpo.actor_train", "no such file"),
        ({"stages__dpo__actor_train__data_args__file_name": "{out}/sft"}, "stages.dpo.actor_train", "samples nothing"),
        ({"stages__dpo__actor_train__data_args__file_name": "{out}/rl"}, "stages.dpo.actor_train", "no stage before"),
        ({"stages__dpo__actor_train__strategy_args__strategy_name": "vllm"}, "stages.dpo.actor_train", "cannot serve"),
        ({"stages__dpo__actor_train__model_args__model_name_or_path": "toy"}, "stages.dpo.actor_train", "starts from"),
        ({"stages__sft__optimizer": True}, "stages.sft.optimizer", "no stage before it has an optimiser"),
        (
            {"stages__dpo__optimizer": True, "stages__dpo__actor_train__model_args__lora_rank": 4},
            "stages.dpo.optimizer",
            "no optimiser has seen",
        ),
        ({"stages__sft__best_by": "val/loss"}, "stages.sft.best_by", "no stage before it has checkpoints"),
        (
            {"stages__dpo__best_by": "val/loss", "stages__sft__save_steps": 1},
            "stages.dpo.best_by",
            "keeps the newest 2 of its 3 checkpoints",
        ),
        ({"stages__dpo__best_by": "val/loss", "eval_steps": 0}, "stages.dpo.best_by", "sft is never evaluated"),
        ({"stages__dpo__evaluation": {"config": "nothing"}}, "stages.dpo.evaluation", "no such configuration"),
    ],
)
def test_all_stages_are_checked_before_the_first_begins(
    data: Path, tmp_path: Path, changes: dict[str, Any], path: str, said: str
) -> None:
    out = tmp_path / "run"
    filled = {k: v.replace("{out}", str(out)) if isinstance(v, str) else v for k, v in changes.items()}
    with pytest.raises(ConfigError, match=said) as error:
        run_stages(config(data, out, **filled))
    assert any(problem.path.startswith(path) for problem in error.value.problems) and not out.exists()


@pytest.mark.exhaustive
def test_a_stage_may_start_from_the_best_checkpoint_of_the_one_before(data: Path, tmp_path: Path) -> None:
    """Steps that are far too large after the first: the newest checkpoint is the worst."""
    every = {"stages__sft__save_steps": 1, "stages__sft__eval_steps": 1, "stages__sft__checkpoint_config__keep": 3}
    rate = {"stages__sft__actor_train__training_args__learning_rate": 0.3, "stages__dpo__eval_steps": 0}
    best = {"stages__dpo__best_by": "val/loss", "stages__dpo__max_steps": 1}
    run_stages(config(data, tmp_path / "run", **every, **rate, **best))

    losses = dict(StoredRun.open(tmp_path / "run/sft").curve("val/loss"))
    step = min((step for step in losses if step), key=losses.__getitem__)
    assert step < 3
    start = StoredRun.open(tmp_path / "run/dpo").config["pretrain"]
    assert start == str(tmp_path / f"run/sft/checkpoints/step={step:06d}/hf")


def test_a_metric_that_no_checkpoint_has_is_told(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no val/success after the steps of its checkpoints \(3\)"):
        run_stages(config(data, tmp_path, max_steps=3, stages__dpo__best_by="val/success", save_steps=0))


@pytest.mark.exhaustive
def test_a_stage_with_the_optimiser_of_the_one_before_is_the_run_that_had_both_their_rows(
    data: Path, tmp_path: Path
) -> None:
    lines = (data / "sums.jsonl").read_text().splitlines(keepends=True)
    for name, some in (("all", lines[:16]), ("first", lines[:8]), ("second", lines[8:16])):
        (tmp_path / f"{name}.jsonl").write_text("".join(some))

    def trained(*names: str, optimizer: bool = False) -> bytes:
        shared = {
            "pretrain": "toy_math",
            "output_dir": str(tmp_path / f"{'-'.join(names)}{optimizer}"),
            "progress": "none",
            "track_with": "jsonl",
            "sequence_length": 64,
            "pipeline": "sft",
            "actor_train": {
                "data_args": {"shuffle": False},
                "training_args": {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant"},
            },
        }
        stages = {name: {"actor_train": {"data_args": {"file_name": f"{tmp_path}/{name}.jsonl"}}} for name in names}
        if optimizer:
            stages[names[-1]]["optimizer"] = True
        run_stages(load({**shared, "stages": stages}))
        last = StoredRun.open(Path(str(shared["output_dir"])) / names[-1]).checkpoint
        assert last is not None
        return (last / "hf/model.safetensors").read_bytes()

    whole = trained("all")
    assert trained("first", "second", optimizer=True) == whole
    assert trained("first", "second") != whole


@pytest.mark.exhaustive
def test_what_a_stage_played_is_preferred_by_the_next_and_then_rewarded(tmp_path: Path) -> None:
    short = {
        "sft": ["max_steps=1", "evaluation=null", "actor_train.data_args.custom_cls.kwargs.games=4"],
        "play": ["rollout_batch_size=16", "train_env_manager.env_groups=2"],
        "dpo": ["max_steps=1", "evaluation=null", "actor_train.training_args.per_device_train_batch_size=1"],
        "rl": ["max_steps=1", "eval_steps=0", "rollout_batch_size=16", "train_env_manager.env_groups=2"],
    }
    texts = [f"stages.{name}.{text}" for name, some in short.items() for text in some]
    run_stages(load("three_stages", overrides=[*texts, f"output_dir={tmp_path}/run", "progress=none"]))

    stages = {path.name: StoredRun.open(path) for path in StoredRun.open(tmp_path / "run").stages}
    assert [run.state for run in stages.values()] == [State.FINISHED] * 4
    played = stages["play"].trajectories(1, "train", ["score", "group_id"]).to_pydict()
    assert len(played["score"]) == 16 and len(set(played["score"])) > 1
    assert stages["dpo"].curve("train/rows").last == 1 and stages["dpo"].curve("train/grad_norm").last > 0
    assert stages["dpo"].config["pretrain"] == str(tmp_path / "run/sft/checkpoints/step=000001/hf")
    assert stages["rl"].config["pretrain"] == str(tmp_path / "run/dpo/checkpoints/step=000001/hf")
    # The policy of the whole is that of its last stage, measured on what that validates with.
    found = [roll.evaluate(folder, episodes=4) for folder in (tmp_path / "run", tmp_path / "run/rl")]
    assert found[0].metrics == found[1].metrics and found[0].sampled.success.episodes == 4
    assert stages["rl"].trajectories(1, "train").num_rows == 16


@pytest.mark.exhaustive
def test_what_was_practised_everywhere_near_the_first_policy_crosses_from_the_start(tmp_path: Path) -> None:
    small = ["max_steps=1", "save_steps=1", "eval_steps=0", "rollout_batch_size=4"]
    small += ["train_env_manager.env_groups=2", "train_env_manager.group_size=2"]
    texts = [f"stages.{name}.{text}" for name in ("practise", "cross") for text in small]
    run_stages(load("frozen_lake_two_stages", overrides=[*texts, f"output_dir={tmp_path}/run", "progress=none"]))
    practise, cross = (StoredRun.open(path) for path in StoredRun.open(tmp_path / "run").stages)
    assert cross.config["pretrain"] == str(tmp_path / "run/practise/checkpoints/step=000001/hf")
    for run, random_start in ((practise, True), (cross, False)):
        assert run.config["reference"]["model_args"]["model_name_or_path"] == "toy"
        assert run.config["custom_envs"]["FrozenLakeSlippery"]["env_config"].get("random_start", False) is random_start
        assert run.curve("train/loss/kl").last >= 0


def test_a_policy_does_not_start_from_a_reward_model(data: Path, tmp_path: Path) -> None:
    compared = {
        "name": "judge",
        "pipeline": "reward_model",
        "actor_train": {"data_args": {"file_name": str(data / "pairs.jsonl")}},
    }
    keys = {"pretrain": "toy_math", "output_dir": str(tmp_path), "progress": "none", "max_steps": 1}
    imitated = {"name": "sft", "pipeline": "sft", "actor_train": {"data_args": {"file_name": str(data / "sums.jsonl")}}}
    with pytest.raises(ConfigError, match="judge trains a reward model, not a policy"):
        run_stages(load({**keys, "stages": [compared, imitated]}))
