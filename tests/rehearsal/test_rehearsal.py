"""Jobs rehearsed with faults that somebody made: each is found, and a sound job is not accused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from roll.config import PromptDistillConfig, RLVRConfig, RunConfig
from roll.config.loading import load
from roll.config.strategies import is_installed
from roll.rehearsal import rehearse, render_rehearsal
from roll.rehearsal.stand_in import make_stand_in

pytestmark = pytest.mark.long


def job(data: Path, **changes: Any) -> RLVRConfig:
    keys: dict[str, Any] = {
        "pretrain": "toy_math",
        "prompt_length": 96,
        "sequence_length": 144,
        "rollout_batch_size": 64,
        "num_return_sequences_in_group": 8,
        "rewards": {"math_rule": {"verifiers": {"math": 1.0}}},
        "actor_train.data_args.file_name": [str(data)],
        "actor_infer.generating_args.max_new_tokens": 48,
    }
    return load({}, kind=RLVRConfig, overrides={**keys, **changes})


def written(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


GOOD = [{"prompt": f"What is {number} plus 2?", "ground_truth": str(number + 2)} for number in range(12)]


def test_a_sound_job_is_rehearsed_in_two_steps_and_what_was_folded_is_said(tmp_path: Path) -> None:
    found = rehearse(job(written(tmp_path / "rows.jsonl", *GOOD)), processes=False)
    assert found.is_sound, render_rehearsal(found)
    assert any("random model" in note for note in found.folded)
    assert any("became 2" in note for note in found.folded)
    assert {"local: rollout", "local: update"} <= set(found.seconds)


def taught(data: Path) -> PromptDistillConfig:
    keys: dict[str, Any] = {
        **{"pretrain": "toy_math", "sequence_length": 144, "prompt_length": 96, "rollout_batch_size": 16},
        "teacher.model_args.model_name_or_path": "toy_math",
        "actor_train.data_args.file_name": [str(data)],
        "actor_infer.generating_args.max_new_tokens": 24,
    }
    return load({}, kind=PromptDistillConfig, overrides=keys)


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", [job, taught])
def test_every_row_is_read_and_those_that_fail_are_named(job: Callable[[Path], RunConfig], tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", *GOOD, '{"prompt": ', {"prompt": "word " * 400, "ground_truth": "1"})
    found = rehearse(job(data), processes=False)
    assert not found.is_sound
    assert [(row.rows, row.bad, row.too_long) for row in found.rows] == [(14, 1, 1)]
    assert "line 13" in found.rows[0].examples[0]


@pytest.mark.exhaustive
def test_a_key_that_nothing_reads_is_listed(tmp_path: Path) -> None:
    found = rehearse(job(written(tmp_path / "rows.jsonl", *GOOD), lambd=0.9), processes=False)
    assert "lambd" in found.unread


@pytest.mark.exhaustive
def test_a_job_over_rows_has_the_sizes_of_its_kind_only(tmp_path: Path) -> None:
    """A model that is not here has the toy's tokenizer, so that lengths are widened: of keys that this kind has."""
    pairs = [{"prompt": f"{number} + 2?", "chosen": str(number + 2), "rejected": "0"} for number in range(8)]
    keys = {"pipeline": "dpo", "pretrain": "Qwen/Qwen3-8B", "output_dir": str(tmp_path / "run")}
    data = {"actor_train": {"data_args": {"file_name": str(written(tmp_path / "pairs.jsonl", *pairs))}}}
    found = rehearse(load({**keys, **data}), processes=False)
    assert found.is_sound, render_rehearsal(found)


@pytest.mark.exhaustive
def test_what_breaks_is_told_with_its_place(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", *GOOD)
    changes = {"algorithm_modules": ["module_that_is_not_there"]}
    found = rehearse(job(data, **changes), processes=False)
    assert found.breaks
    assert "module_that_is_not_there" in found.breaks[0].message


@pytest.fixture
def ranks_of_one() -> Iterator[None]:
    """Afterwards no other test of this process is a rank of the group in which Megatron-Core was alone."""
    had_group = torch.distributed.is_initialized()
    yield
    if torch.distributed.is_initialized() and not had_group:
        from roll.strategies.training.megatron.parallel import close_parallel

        close_parallel()
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def running_ray() -> Iterator[None]:
    """One Ray for several rehearsals, which find it started and leave it running."""
    ray = pytest.importorskip("ray")
    from roll.distributed.ray_starting import start_here

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        start_here(num_cpus=16, include_dashboard=False, logging_level=logging.WARNING)
        yield
        ray.shutdown()


needs_megatron = pytest.mark.skipif(not is_installed("megatron.core"), reason="Megatron-Core is not installed")


def megatron_job(folder: Path, devices: int, **options: Any) -> RLVRConfig:
    changes: dict[str, Any] = {"actor_train.strategy_args.strategy_name": "megatron_train"}
    changes["actor_train.strategy_args.strategy_config"] = options
    changes["actor_train.device_mapping"] = f"list(range(0,{devices}))"
    return job(written(folder / "rows.jsonl", *GOOD), **changes)


@pytest.mark.exhaustive
@needs_megatron
@pytest.mark.processes
@pytest.mark.usefixtures("ranks_of_one")
def test_megatron_core_runs_on_one_rank_and_divided_on_two_and_leaves_pytorch_as_it_was(tmp_path: Path) -> None:
    current_device, stream = torch.cuda.current_device, torch.cuda.Stream
    size = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "sequence_parallel": True}
    found = rehearse(megatron_job(tmp_path, 64, **size))
    assert found.is_sound, render_rehearsal(found)
    assert {"local: update", "ray: update", "ray: checkpoint"} <= set(found.seconds)
    assert "actor_train: Megatron-Core runs on the CPU, without CUDA's kernels." in found.folded
    assert any("became 1" in note for note in found.folded if note.startswith("actor_train: tensor"))
    assert any("parallel_size 8 became 2" in note for note in found.folded if note.startswith("On Ray"))
    assert (torch.cuda.current_device, torch.cuda.Stream) == (current_device, stream)


@needs_megatron
@pytest.mark.exhaustive
@pytest.mark.usefixtures("ranks_of_one")
def test_an_option_that_megatron_core_refuses_breaks_where_it_is_refused(tmp_path: Path) -> None:
    options = {"recompute_granularity": "selective", "recompute_modules": ["everything"]}
    found = rehearse(megatron_job(tmp_path, 1, **options), processes=False)
    assert [each.stage for each in found.breaks] == ["run in one process"]
    assert "everything" in found.breaks[0].message
    assert found.breaks[0].where.startswith("strategies/training/megatron/")


@needs_megatron
@pytest.mark.exhaustive
@pytest.mark.usefixtures("ranks_of_one")
def test_megatron_core_is_rehearsed_in_threads_and_again_in_the_same_process(tmp_path: Path) -> None:
    """A run ahead of its learner calls the worker in threads, and patches of PyTorch's modes count for one thread."""
    changes: dict[str, Any] = {"actor_train.strategy_args.strategy_name": "megatron_train"}
    changes |= {"async_generation_ratio": 1, "actor_infer.strategy_args.strategy_name": "hf_infer"}
    for _ in range(2):
        found = rehearse(job(written(tmp_path / "rows.jsonl", *GOOD), **changes), processes=False)
        assert found.is_sound, render_rehearsal(found)


@needs_megatron
@pytest.mark.exhaustive
def test_an_option_that_nobody_has_is_found_before_anything_runs(tmp_path: Path) -> None:
    found = rehearse(megatron_job(tmp_path, 1, tensor_model_parallel=2), processes=False)
    assert (found.breaks[0].stage, found.breaks[0].where) == (
        "check",
        "actor_train.strategy_args.strategy_config.tensor_model_parallel",
    )


@needs_megatron
@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("megatron_train", "pipeline_model_parallel_size"),
        ("megatron_train", "context_parallel_size"),
        ("fsdp_train", "ulysses_size"),
    ],
)
@pytest.mark.usefixtures("ranks_of_one", "running_ray")
def test_each_width_runs_on_two_ranks(tmp_path: Path, name: str, option: str) -> None:
    changes: dict[str, Any] = {"actor_train.device_mapping": "list(range(0,8))"}
    changes["actor_train.strategy_args"] = {"strategy_name": name, "strategy_config": {option: 4}}
    found = rehearse(job(written(tmp_path / "rows.jsonl", *GOOD), **changes))
    assert found.is_sound, render_rehearsal(found)
    assert f"On Ray: actor_train: {option} 4 became 2." in found.folded
    assert "ray: update" in found.seconds


@needs_megatron
@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.usefixtures("ranks_of_one", "running_ray")
def test_experts_and_a_reference_of_megatron_core_are_spread_over_two_ranks(tmp_path: Path) -> None:
    strategy = {"strategy_config": {"expert_model_parallel_size": 8, "moe_grouped_gemm": True}}
    changes: dict[str, Any] = {"pretrain": "Qwen/Qwen3-30B-A3B", "use_kl_loss": True, "kl_loss_coef": 0.1}
    for role, name in (("actor_train", "megatron_train"), ("reference", "megatron_infer")):
        changes[f"{role}.strategy_args"] = {"strategy_name": name, **strategy}
        changes[f"{role}.device_mapping"] = "list(range(0,8))"
    found = rehearse(job(written(tmp_path / "rows.jsonl", *GOOD), **changes))
    assert found.is_sound, render_rehearsal(found)
    assert "On Ray: reference: expert_model_parallel_size 8 became 2." in found.folded
    assert "reference: Megatron-Core runs on the CPU, without CUDA's kernels (moe_grouped_gemm)." in found.folded
    assert {"local: update", "ray: update"} <= set(found.seconds)


@pytest.mark.exhaustive
def test_a_job_whose_files_are_elsewhere_answers_sums_without_an_evaluation(tmp_path: Path) -> None:
    changes = {"validation.data_args.file_name": [str(tmp_path / "val.jsonl")]}
    found = rehearse(job(tmp_path / "rows.jsonl", **changes), processes=False)
    assert found.is_sound, render_rehearsal(found)
    assert "local: update" in found.seconds


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B-Instruct"])
def test_the_stand_in_is_of_the_same_family(tmp_path: Path, name: str) -> None:
    from roll.planning.families import known_config

    known = known_config(name)
    assert known is not None
    model = make_stand_in(name, tmp_path / "model", 0)
    assert model.family == known["model_type"]
    assert not model.own_tokenizer
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == model.family
