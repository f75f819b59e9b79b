"""DeepSpeed's own configuration as a `strategy_config`: what is read, what is filled in, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from roll.config import load
from roll.config.errors import ConfigError
from roll.models.loading import load_model
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.deepspeed.options import DeepSpeedOptions
from roll.strategies.training.deepspeed.train import DeepSpeedTrainStrategy

EXAMPLES = Path(__file__).resolve().parents[4] / "roll" / "presets" / "config"
PRESETS = {
    "deepspeed_zero": 0,
    "deepspeed_zero2": 2,
    "deepspeed_zero2_cpuoffload": 2,
    "deepspeed_zero3": 3,
    "deepspeed_zero3_cpuoffload": 3,
}


def problems(options: dict[str, Any]) -> dict[str, str]:
    """Return what is wrong with ``options``, and how to fix it, by key path."""
    with pytest.raises(ConfigError) as error:
        DeepSpeedOptions.from_mapping(options, "actor_train.strategy_args.strategy_config")
    prefix = "actor_train.strategy_args.strategy_config."
    return {p.path.removeprefix(prefix): f"{p.message} {p.fix}" for p in error.value.problems}


def given(options: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """Return what DeepSpeed is given."""
    return DeepSpeedOptions.from_mapping(options).config(mixed_precision=False, **arguments)


@pytest.fixture
def composed(tmp_path: Path) -> Any:
    """A job that brings a preset in as the guide says."""

    def make(name: str) -> DeepSpeedOptions:
        folder = tmp_path / "config"
        folder.mkdir()
        for preset in PRESETS:
            (folder / f"{preset}.yaml").write_text((EXAMPLES / f"{preset}.yaml").read_text())
        (tmp_path / "jobs").mkdir()
        lines = "".join(f"  - ../config/{preset}@_here_\n" for preset in PRESETS)
        job = f"{{strategy_args: {{strategy_name: deepspeed_train, strategy_config: '${{{name}}}'}}}}"
        (tmp_path / "jobs" / "job.yaml").write_text(f"defaults:\n{lines}  - _self_\nactor_train: {job}\n")
        with initialize_config_dir(str(tmp_path / "jobs"), version_base=None):
            config = load(compose("job"))
        return DeepSpeedOptions.from_mapping(config.actor_train.strategy_args.strategy_config)

    return make


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_used_as_the_guide_says(composed: Any, name: str) -> None:
    options = composed(name)
    assert options.stage == PRESETS[name]
    assert options.offloads_optimizer == name.endswith("_cpuoffload")
    assert options.offloads_parameters == (name == "deepspeed_zero3_cpuoffload")
    config = options.config(mixed_precision=False, max_grad_norm=0.5, hidden_size=64, numel=10**9)
    assert config["gradient_clipping"] == 0.5
    assert config["zero_optimization"]["stage"] == options.stage
    assert "auto" not in str(config)


def test_auto_buckets_follow_the_hidden_size() -> None:
    keys = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    zero = given({"zero_optimization": {"stage": 3, **dict.fromkeys(keys, "auto")}}, hidden_size=100)
    assert [zero["zero_optimization"][key] for key in keys] == [10_000, 9_000, 1_000]


def test_buckets_are_no_larger_than_the_model() -> None:
    zero = given({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}, numel=1000)["zero_optimization"]
    assert 1000 <= zero["reduce_bucket_size"] < 1200


def test_other_keys_reach_deepspeed_as_they_are() -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "memory_efficient_linear": False}
    config = given({"zero_optimization": zero, "wall_clock_breakdown": True, "comms_logger": {"enabled": True}})
    assert config["zero_optimization"].items() >= zero.items()
    assert config["wall_clock_breakdown"] is True and config["comms_logger"] == {"enabled": True}


@pytest.mark.parametrize(
    ("key", "value", "decides"),
    [
        ("train_batch_size", 64, "training_args"),
        ("train_micro_batch_size_per_gpu", 4, "per_device_train_batch_size"),
        ("gradient_accumulation_steps", 8, "training_args.gradient_accumulation_steps"),
        ("gradient_clipping", 1.0, "max_grad_norm"),
        ("optimizer", {"type": "AdamW", "params": {"lr": 1e-5}}, "learning_rate"),
        ("scheduler", {"type": "WarmupLR"}, "lr_scheduler_type"),
        ("zero_allow_untested_optimizer", False, "AdamW"),
    ],
)
def test_a_value_that_another_key_decides_is_refused_and_auto_is_not(key: str, value: Any, decides: str) -> None:
    found = problems({key: value})
    assert decides in found[key] and "auto" in found[key]
    DeepSpeedOptions.from_mapping({key: "auto"})


def test_an_optimizer_whose_values_are_all_auto_is_the_one_there_is() -> None:
    options = {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}}}
    assert "optimizer" not in given(options)


def test_all_problems_are_told_at_once_with_their_place() -> None:
    found = problems(
        {
            "zero_optimisation": {"stage": 3},
            "zero_optimization": {"stage": 4, "overlap_comm": "yes", "offload_optimizer": {"device": "nvme"}},
            "fp16": {"enabled": True},
            "amp": {"enabled": True},
            "comms_logger": {"enabled": "auto", "verbose": False},
        }
    )
    assert "did you mean zero_optimization?" in found["zero_optimisation"]
    assert found.keys() >= {
        "zero_optimization.stage",
        "zero_optimization.overlap_comm",
        "zero_optimization.offload_optimizer.device",
        "amp",
        "comms_logger.enabled",
    }


@pytest.mark.parametrize(
    ("options", "key", "fix"),
    [
        ({"fp16": {"enabled": True}}, "fp16.enabled", "model_args.dtype"),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            "zero_optimization.offload_param",
            "stage: 3",
        ),
        (
            {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
            "zero_optimization.offload_optimizer",
            "1, 2 or 3",
        ),
    ],
)
def test_contradictions_name_the_way_out(options: dict[str, Any], key: str, fix: str) -> None:
    assert fix in problems(options)[key]


@pytest.mark.parametrize(("written", "mixed"), [(True, False), (False, True)])
def test_a_precision_other_than_that_of_the_model_is_refused(written: bool, mixed: bool) -> None:
    options = DeepSpeedOptions.from_mapping({"bf16": {"enabled": written}})
    with pytest.raises(ConfigError, match=r"bf16.enabled(.|\n)*model_args.dtype decides"):
        options.check_precision(mixed)
    options.check_precision(written)


def test_bf16_sums_gradients_in_fp32_and_needs_master_weights() -> None:
    config = DeepSpeedOptions.from_mapping({}).config(mixed_precision=True)
    assert config["bf16"] == {"enabled": True} and config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["zero_optimization"]["stage"] == 1


def test_the_compiled_optimizer_is_asked_for_by_name() -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert not DeepSpeedOptions.from_mapping({"zero_optimization": zero}).compiled_optimizer
    asked = {"zero_optimization": zero, "zero_force_ds_cpu_optimizer": True}
    assert DeepSpeedOptions.from_mapping(asked).compiled_optimizer


def test_a_missing_deepspeed_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ImportError, match=r"pip install 'roll-rl\[deepspeed\]'"):
        DeepSpeedTrainStrategy(load_model("toy"), TrainOptions())
