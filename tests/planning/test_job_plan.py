"""Whole plans: jobs that ran fit, jobs that cannot fit do not, and the advice helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll.cli.app import main
from roll.config import RLVRConfig
from roll.config.loading import load
from roll.planning import GPUS, JobPlan, plan_job, read_configuration

VERL = """python3 -m verl.trainer.main_ppo
algorithm.adv_estimator=grpo
data.train_files=gsm8k.parquet
data.train_batch_size=1024
data.max_prompt_length=512
data.max_response_length=1024
actor_rollout_ref.model.path={model}
actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.ppo_mini_batch_size=256
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={rows}
actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.001
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={rows}
actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.n=5
actor_rollout_ref.rollout.tensor_model_parallel_size={tensor}
actor_rollout_ref.rollout.gpu_memory_utilization=0.6
trainer.n_gpus_per_node=8
trainer.nnodes={nodes}
"""
BF16 = ["actor_train.model_args.dtype=bf16", "actor_infer.model_args.dtype=bf16"]


# Model, rows of a pass, parts of the engine's matrices and machines as in the system's own examples for 80 GB.
@pytest.mark.parametrize(
    ("model", "rows", "tensor", "nodes"),
    [
        ("Qwen/Qwen2.5-3B-Instruct", 32, 2, 1),
        ("Qwen/Qwen2-7B-Instruct", 16, 2, 1),
        ("Qwen/Qwen3-8B", 32, 2, 1),
        ("Qwen/Qwen2.5-14B-Instruct", 8, 4, 1),
        ("Qwen/Qwen2.5-32B-Instruct", 4, 4, 4),
    ],
)
@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_jobs_that_ran_on_80_gb_fit(tmp_path: Path, model: str, rows: int, tensor: int, nodes: int, gpu: str) -> None:
    path = tmp_path / "job.txt"
    path.write_text(VERL.format(model=model, rows=rows, tensor=tensor, nodes=nodes))
    config, _ = read_configuration(str(path), BF16)
    found = plan_job(config, GPUS.get(gpu))
    assert found.fits, found.short


def job(**changes: Any) -> RLVRConfig:
    keys: dict[str, Any] = {
        "pretrain": "Qwen/Qwen2.5-72B-Instruct",
        "cluster": "ray",
        "num_gpus_per_node": 8,
        "rollout_batch_size": 64,
        "num_return_sequences_in_group": 8,
        "prompt_length": 1024,
        "response_length": 4096,
        "rewards": {"math_rule": {"verifiers": {"math": 1.0}}},
        "actor_train.data_args.file_name": ["problems.jsonl"],
        "actor_train.device_mapping": "0-7",
        "actor_train.model_args.dtype": "bf16",
        "actor_train.strategy_args.strategy_name": "fsdp_train",
        "actor_infer.device_mapping": "0-7",
        "actor_infer.num_gpus_per_worker": 8,
        "actor_infer.model_args.dtype": "bf16",
        "actor_infer.strategy_args.strategy_name": "vllm",
        "actor_infer.generating_args.max_new_tokens": 4096,
    }
    return load({}, kind=RLVRConfig, overrides={**keys, **changes})


def most(found: JobPlan) -> int:
    return max(stage.bytes for stage in found.stages if stage.stage == "update")


def test_a_job_that_cannot_fit_is_told_what_would_help() -> None:
    found = plan_job(job(), GPUS.get("h100"))
    assert not found.fits
    assert any("offload_params" in each.change for each in found.advice["actor_train"])


def test_advice_saves_what_it_says() -> None:
    found = plan_job(job(), GPUS.get("h100"))
    offload = next(each for each in found.advice["actor_train"] if "offload_params" in each.change)
    changed = {"actor_train.strategy_args.strategy_config": {"offload_params": True}}
    less = most(found) - most(plan_job(job(**changed), GPUS.get("h100")))
    assert less == pytest.approx(offload.saved, rel=0.05)


def test_roles_that_share_devices_take_turns() -> None:
    found = plan_job(job(), GPUS.get("h100"))
    update = next(stage for stage in found.stages if stage.stage == "update")
    rollout = next(stage for stage in found.stages if stage.stage == "rollout")
    assert {share.role for share in update.shares} == {"actor_train"}
    assert {share.role for share in rollout.shares} == {"actor_infer"}


def test_twice_the_responses_cost_about_twice_the_hours() -> None:
    short = plan_job(job(), GPUS.get("h100"), response_tokens=1000)
    long = plan_job(job(), GPUS.get("h100"), response_tokens=2000)
    assert 1.5 < long.gpu_hours / short.gpu_hours < 2.5


def test_the_command_says_with_its_code_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", "sokoban", "--gpu", "h100", "--json"])
    assert left.value.code == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    with pytest.raises(SystemExit) as left:
        main(["plan", "sokoban", "--gpu", "abacus"])
    assert left.value.code == 2


def test_a_model_that_nobody_knows_is_told_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", "sokoban", "pretrain=somebody/own-model"])
    assert left.value.code == 2
    assert "--model-config" in capsys.readouterr().err


def test_a_teacher_that_is_an_engine_keeps_its_device_and_reads_every_token() -> None:
    keys = {
        "pretrain": "Qwen/Qwen2.5-1.5B-Instruct",
        "teacher.model_args.model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
        "teacher.strategy_args.strategy_name": "vllm",
        "teacher.device_mapping": "[2, 3]",
        "teacher.num_gpus_per_worker": 2,
        "teacher_top_k": 8,
        "actor_infer.strategy_args.strategy_name": "vllm",
        "actor_infer.device_mapping": "[0]",
        "actor_train.device_mapping": "[1]",
        "cluster": "ray",
    }
    found = plan_job(load("distill_sokoban", overrides=keys), GPUS.get("h100"))
    teaching = {stage.stage: stage.shares for stage in found.stages if 2 in stage.devices}
    assert len(teaching) == 3
    for shares in teaching.values():
        # Half of 7.6 billion numbers in two bytes each, and a cache beside them; never weights of the student.
        assert [(share.role, share.part) for share in shares] == [
            ("teacher", "weights"),
            ("teacher", "key-value cache"),
        ]
        assert shares[0].bytes == pytest.approx(7.6e9, rel=0.02)
    read = next(time for time in found.times if time.stage == "scoring by teacher")
    assert read.seconds > 0 and read.tokens_per_second > 0
    assert [time.stage for time in found.times].count("sampling") == 1
