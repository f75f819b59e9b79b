"""Every train strategy trains the same policy: chosen by override, in one process and over several ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.e2e import rlvr_support, support
from tests.e2e.ray_support import furthest, tokens, trained_on
from tests.e2e.support import ROOT, start

STEPS = 2
SHORT = {"max_steps": STEPS, "save_steps": STEPS, "eval_steps": 0, "trajectory_dump_steps": 1, "progress": "lines"}
GENTLE = {"actor_train.training_args.adam_epsilon": 1e-4}
"""With the usual epsilon AdamW blows rounding up: it divides noise by noise where a gradient is almost 0."""


COMMANDS = {"sokoban": support.command, "rlvr_math": rlvr_support.command}
ON_CPU = "+actor_train.worker_cls=roll.rehearsal.megatron_workers.MegatronTrainWorker"

ONE = ["rlvr_math", pytest.param("sokoban", marks=pytest.mark.exhaustive)]


def train(
    folder: Path,
    *words: str,
    pipeline: str = "rlvr_math",
    variables: Mapping[str, str] | None = None,
    **changes: object,
) -> Path:
    command = COMMANDS[pipeline](output_dir=folder, **{**SHORT, **GENTLE, **changes})
    done = start([*command, *words], ROOT, timeout=400, **(variables or {}))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a pipeline with ``fsdp_train`` in one process."""
    return cache(lambda pipeline: train(tmp_path_factory.mktemp(pipeline) / "out", pipeline=pipeline))


def assert_same_learning(one: Path, other: Path) -> None:
    for step in range(1, STEPS + 1):
        assert tokens(trained_on(one, step)) == tokens(trained_on(other, step)), f"step {step}"
    final = f"checkpoints/step={STEPS:06d}/hf"
    assert furthest(one / final, other / final) < 1e-5


@pytest.mark.parametrize("pipeline", ONE)
def test_deepspeed_by_override_trains_as_plain_pytorch_does(
    plain: Callable[[str], Path], pipeline: str, tmp_path: Path
) -> None:
    deepspeed = train(tmp_path / "out", "actor_train/strategy=deepspeed_zero2", pipeline=pipeline)
    assert_same_learning(plain(pipeline), deepspeed)


@pytest.mark.exhaustive
def test_deepspeed_shares_weights_over_two_ranks_of_ray(
    plain: Callable[[str], Path], ray_machine: dict[str, str], tmp_path: Path
) -> None:
    ranks = {"cluster": "ray", "actor_train.world_size": 2}
    deepspeed = train(tmp_path / "out", "actor_train/strategy=deepspeed_zero3", variables=ray_machine, **ranks)
    assert_same_learning(plain("rlvr_math"), deepspeed)


# Of games: the two ranks above are of answers.
@pytest.mark.exhaustive
def test_megatron_splits_the_model_over_two_ranks_of_ray(
    plain: Callable[[str], Path], ray_machine: dict[str, str], tmp_path: Path
) -> None:
    words = [
        "actor_train/strategy=megatron_train",
        "actor_train.strategy_args.strategy_config.tensor_model_parallel_size=2",
        ON_CPU,
    ]
    ranks = {"cluster": "ray", "actor_train.world_size": 2}
    megatron = train(tmp_path / "out", *words, pipeline="sokoban", variables=ray_machine, **ranks)
    assert_same_learning(plain("sokoban"), megatron)


@pytest.mark.exhaustive
def test_a_run_begins_with_what_another_left_in_megatrons_format(ray_machine: dict[str, str], tmp_path: Path) -> None:
    """Its engine too, from the first sample on, though it was started with the model of `pretrain`."""
    words = ["actor_train/strategy=megatron_train", ON_CPU]
    keys: dict[str, object] = {"cluster": "ray", "actor_train.world_size": 2, "old_log_probs": "recompute"}
    keys["actor_train.training_args.learning_rate"] = 1e-2
    split = "actor_train.strategy_args.strategy_config.tensor_model_parallel_size=2"
    left_so = {"checkpoint_config.megatron_model": "last"}
    keys |= {"max_steps": 1}
    first = train(tmp_path / "first", *words, split, variables=ray_machine, **keys, **left_so)
    assert first_metrics(first)["train/grad_norm"] > 0, "it learned something"
    left = first / "checkpoints" / "step=000001" / "megatron"
    load = {"+actor_train.strategy_args.strategy_config.load": str(left)}
    second = train(tmp_path / "second", *words, variables=ray_machine, **keys, **load)
    assert first_metrics(second)["sampler/log_prob_difference_max"] < 1e-4


def first_metrics(run: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((run / "logs" / "metrics.jsonl").read_text().splitlines()[0])
    return found


def test_lora_trains_adapters_and_the_engine_samples_from_the_merged_policy(tmp_path: Path) -> None:
    out = train(
        tmp_path / "out",
        **{
            "actor_train.model_args.lora_rank": 4,
            "actor_train.training_args.learning_rate": 1e-2,
            "old_log_probs": "recompute",
        },
    )
    checkpoint = out / "checkpoints" / f"step={STEPS:06d}"
    adapter = json.loads((checkpoint / "adapter" / "adapter_config.json").read_text())
    assert adapter["r"] == 4
    merged = AutoModelForCausalLM.from_pretrained(checkpoint / "hf").state_dict()
    base = AutoModelForCausalLM.from_pretrained(adapter["base_model_name_or_path"]).state_dict()
    changed = {name for name in merged if not merged[name].equal(base[name])}
    assert changed and all("proj" in name for name in changed)
    # Sampled by an engine of its own, recomputed by the trainer: equal where the merged weights arrived.
    last = json.loads((out / "logs" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["sampler/log_prob_difference_max"] < 1e-4
