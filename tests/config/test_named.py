"""Configurations by name and by file, from any folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from roll.config import (
    AgenticConfig,
    ConfigError,
    DistillConfig,
    DPOConfig,
    EvaluationConfig,
    PromptDistillConfig,
    RewardModelConfig,
    RLVRConfig,
    RowDistillConfig,
    SFTConfig,
    load,
)
from roll.config.composing import primary_names
from roll.config.shipped import SHIPPED, shipped_configs, shipped_data
from roll.config.staged import StagedConfig
from tests.rings import exhaustive_but

ROOT = Path(__file__).resolve().parents[2]
KINDS = {
    "rlvr_math": RLVRConfig,
    "rlvr_choices": RLVRConfig,
    "rlvr_smollm2": RLVRConfig,
    "mix_math": RLVRConfig,
    "luffy_math": RLVRConfig,
    "eval_math": EvaluationConfig,
    "sft_sokoban": SFTConfig,
    "dpo_sokoban": DPOConfig,
    "kto_math": DPOConfig,
    "three_stages": StagedConfig,
    "frozen_lake_two_stages": StagedConfig,
    "reward_math": RewardModelConfig,
    "process_reward_math": RewardModelConfig,
    "math_tools": AgenticConfig,
    "search_qa": AgenticConfig,
    "countdown_tools": AgenticConfig,
    "taxi": AgenticConfig,
    "distill_sokoban": DistillConfig,
    "distill_math": PromptDistillConfig,
    "distill_rows_sokoban": RowDistillConfig,
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    "name", exhaustive_but(primary_names([shipped_configs()]), "rlvr_math", "three_stages", "eval_math")
)
def test_every_shipped_configuration_is_found_by_its_name(name: str) -> None:
    assert type(load(name)) is KINDS.get(name, AgenticConfig)


def test_keys_are_changed_by_arguments_mappings_and_texts() -> None:
    rate = "actor_train.training_args.learning_rate"
    by_mapping = load("sokoban", max_steps=5, overrides={rate: 3e-5, "train_env_manager": {"tags": ["FrozenLake"]}})
    assert (by_mapping.max_steps, by_mapping.actor_train.training_args.learning_rate) == (5, 3e-5)
    assert by_mapping.train_env_manager.tags == ["FrozenLake"] and by_mapping.train_env_manager.group_size == 4
    by_text = load("sokoban", overrides=[f"{rate}=3e-5", "actor_train/strategy=deepspeed_zero2", "system_envs.A=1"])
    assert by_text.actor_train.training_args.learning_rate == 3e-5
    assert by_text.actor_train.strategy_args.strategy_name == "deepspeed_train"
    assert load({"max_steps": 2}, seed=3, overrides={rate: 1e-3}).actor_train.training_args.learning_rate == 1e-3


def test_a_file_of_ones_own_builds_on_the_shipped_ones(elsewhere: Path) -> None:
    (elsewhere / "mine").mkdir()
    file = elsewhere / "mine" / "own.yaml"
    file.write_text("defaults:\n  - sokoban\n  - ../config/envs@_here_\n  - _self_\nmax_steps: 7\n")
    for name in (file, "mine/own.yaml", "mine/own"):
        config = load(name)
        assert config.max_steps == 7 and config.seed == 42 and "LargerSokoban" in config.custom_env
        assert config.origins.of(["max_steps"]) == "mine/own.yaml:5"


def test_the_type_can_be_named() -> None:
    assert type(load("rlvr_math", kind=EvaluationConfig)) is EvaluationConfig


def test_problems_name_file_and_fix() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sokoban'"):
        load("sokobann")
    with pytest.raises(ConfigError, match=r"\[from Python: max_stepz=5\]\n.*unknown key.\n.*did you mean max_steps"):
        load("sokoban", max_stepz=5)
    with pytest.raises(ConfigError, match="quote the value for Hydra"):
        load("sokoban", overrides=["seed={1"])


def test_shipped_exercises_are_found_from_any_folder(elsewhere: Path) -> None:
    path = Path("examples/data/arithmetic_val.jsonl")
    assert shipped_data(path).is_file()
    (elsewhere / "examples" / "data").mkdir(parents=True)
    (elsewhere / path).write_text("{}")
    assert shipped_data(path) == path
    assert shipped_data(Path("examples/data/none.jsonl")) == Path("examples/data/none.jsonl")


@pytest.mark.processes
def test_loading_by_name_imports_neither_torch_nor_ray() -> None:
    script = "import sys; from roll.config import load; load('sokoban'); print({'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.exhaustive
@pytest.mark.long
def test_the_checkpoints_that_the_pages_name_are_there_after_a_run() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    text += "".join(path.read_text(encoding="utf-8") for path in shipped_configs().glob("*.yaml"))
    named = set(re.findall(r"output/(\w+)/checkpoints/step=(\d+)", text))
    shipped = {run: load(run) for run in {run for run, _ in named} & set(primary_names([shipped_configs()]))}
    assert all(config.output_dir.name == run for run, config in shipped.items())
    checked = [(shipped[run], int(step)) for run, step in named if run in shipped]
    assert checked
    for config, step in checked:
        if isinstance(config, SFTConfig | DPOConfig | RewardModelConfig):  # the data say how many steps an epoch has
            kwargs = config.actor_train.data_args.custom_cls.kwargs
            config = config.for_rows(kwargs.get("games") or kwargs.get("pairs") or kwargs["workings"])
        saved = sorted({*range(config.save_steps, config.max_steps, config.save_steps), config.max_steps})
        assert step in saved[-config.checkpoint_config.keep :], (config.exp_name, step)


def test_presets_and_problems_are_files_of_the_package_and_there_is_one_copy() -> None:
    names = [path.name for path in (*SHIPPED.rglob("*.yaml"), *SHIPPED.rglob("*.jsonl")) if not path.is_symlink()]
    assert {"sokoban.yaml", "rlvr_math.yaml", "fsdp_train.yaml", "arithmetic_train.jsonl"} <= set(names)
    copies = [path for path in (ROOT / "examples").rglob("*") if path.name in names]
    assert copies == [] and not any(path.is_symlink() for path in SHIPPED.rglob("*"))
