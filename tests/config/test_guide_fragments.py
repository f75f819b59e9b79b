"""The YAML of the ROLL configuration guide loads unchanged, and so does every file in examples/config."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from roll.config import AgenticConfig, ConfigWarning, load

EXAMPLES = Path(__file__).resolve().parents[2] / "roll" / "presets" / "config"

PIPELINE = """
exp_name: "agentic_pipeline"
seed: 42
rpc_timeout: 3600
logging_dir: ./output/logs
output_dir: ./output
render_save_dir: /data/oss_bucket_0/yali/output/render
system_envs:
  USE_MODELSCOPE: '1'

track_with: tensorboard
tracker_kwargs:
  log_dir: /data/oss_bucket_0/yali/llm/tensorboard/roll_exp/agentic_sokoban

num_gpus_per_node: 8

max_steps: 1024
save_steps: 10000
logging_steps: 1
eval_steps: 10
resume_from_checkpoint: false

rollout_batch_size: 64
prompt_length: 2048
response_length: 4096
num_return_sequences_in_group: 8
"""

WORKERS = """
actor_train:
  model_args:
    dtype: bf16
    disable_gradient_checkpointing: False
  training_args:
    learning_rate: 1.0e-6
    weight_decay: 0
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 32
    warmup_steps: 20
  data_args:
    template: native
    file_name: xxx/train.json
    prompt: instruction
  strategy_args:
    strategy_name: megatron_train
    strategy_config:
      tensor_model_parallel_size: 1
      pipeline_model_parallel_size: 1
      expert_model_parallel_size: 1
  infer_batch_size: 4
  device_mapping: list(range(0,16))
actor_infer:
  generating_args:
    max_new_tokens: ${response_length}
    temperature: 0.99
  strategy_args:
    strategy_name: vllm
    strategy_config:
      gpu_memory_utilization: 0.6
      block_size: 16
      max_model_len: 8000
  num_gpus_per_worker: 1
  device_mapping: list(range(0,16))
reference:
  strategy_args:
    strategy_name: megatron_infer
    strategy_config:
      tensor_model_parallel_size: 1
  device_mapping: list(range(0,16))
"""

DEEPSPEED = """
defaults:
  - ../config/envs@_here_
  - ../config/deepspeed_zero@_here_
  - ../config/deepspeed_zero2@_here_
  - ../config/deepspeed_zero3@_here_
  - ../config/deepspeed_zero3_cpuoffload@_here_
"""

DEEPSPEED_ACTOR = """
actor_train:
  strategy_args:
    strategy_name: deepspeed_train
    strategy_config: ${deepspeed_zero2}
"""

Compose = Callable[..., DictConfig]


@pytest.fixture
def composed(tmp_path: Path) -> Compose:
    """Compose a YAML text through Hydra, from a folder next to a ``config`` folder, as ROLL's examples are laid out."""

    def build(text: str, *overrides: str) -> DictConfig:
        (tmp_path / "config").symlink_to(EXAMPLES)
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "guide.yaml").write_text(textwrap.dedent(text))
        with initialize_config_dir(str(tmp_path / "job"), version_base="1.3"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*missing `_self_`.*")
            return compose("guide", list(overrides))

    return build


def test_the_pipeline_fragment_loads(composed: Compose) -> None:
    config = load(composed(PIPELINE))
    assert (config.rollout_batch_size, config.sequence_length, config.max_steps) == (64, 6144, 1024)
    assert config.system_envs == {"USE_MODELSCOPE": "1"}
    assert config.num_return_sequences_in_group == 8


def test_the_worker_fragment_loads_with_the_pipeline_fragment(composed: Compose) -> None:
    with pytest.warns(ConfigWarning) as caught:
        config = load(composed(DEEPSPEED + PIPELINE + WORKERS))
    assert [str(item.message).partition(":")[0] for item in caught] == [
        "reference",
        "actor_train.training_args.gradient_accumulation_steps",
        "cluster",
    ]
    assert config.actor_train.device_mapping == list(range(16))
    assert config.actor_infer.generating_args.max_new_tokens == 4096
    assert config.actor_train.model_args.dtype == "bf16"
    assert config.actor_train.data_parallel_size == 16
    assert config.nodes == 2


def test_the_deepspeed_fragment_loads(composed: Compose) -> None:
    config = load(composed(DEEPSPEED + DEEPSPEED_ACTOR))
    options = config.actor_train.strategy_args.strategy_config
    assert options is not None and options["zero_optimization"]["stage"] == 2
    assert set(config.tags()) >= {"SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "FrozenLake"}


@pytest.mark.parametrize(("name", "stage"), [("", 0), ("2", 2), ("3", 3), ("3_cpuoffload", 3)])
def test_every_deepspeed_file_holds_its_stage(composed: Compose, name: str, stage: int) -> None:
    config = load(composed(f"defaults:\n  - ../config/deepspeed_zero{name}@_here_\n"))
    options = getattr(config, f"deepspeed_zero{name}")
    assert options["zero_optimization"]["stage"] == stage
    assert ("offload_param" in options["zero_optimization"]) == (name == "3_cpuoffload")


def test_a_job_in_rolls_idiom_loads(composed: Compose) -> None:
    text = (
        DEEPSPEED
        + """
hydra:
  run:
    dir: .
  output_subdir: null
rollout_batch_size: 64
val_batch_size: 64
sequence_length: 8192
reward_normalization:
  grouping: traj_group_id
  method: mean_std
train_env_manager:
  format_penalty: -0.15
  max_env_num_per_worker: 16
  num_env_groups: 8
  group_size: 8
  tags: [SimpleSokoban]
  num_groups_partition: [8]
val_env_manager:
  max_env_num_per_worker: 32
  num_env_groups: 64
  group_size: 1
  tags: [SimpleSokoban, LargerSokoban, SokobanDifferentGridVocab, FrozenLake]
  num_groups_partition: [16, 16, 16, 16]
max_tokens_per_step: 64
custom_envs:
  SimpleSokoban:
    ${custom_env.SimpleSokoban}
"""
    )
    config = load(composed(text))
    assert config.custom_envs["SimpleSokoban"].max_tokens_per_step == 64
    assert config.custom_envs["SimpleSokoban"].env_config["dim_room"] == [6, 6]
    assert [count for _, count in config.val_env_manager.groups_per_tag()] == [16] * 4


def example(name: str, *overrides: str) -> AgenticConfig:
    with initialize_config_dir(str(EXAMPLES), version_base="1.3"):
        return load(compose(name, list(overrides)))


@pytest.mark.parametrize("name", ["sokoban", "frozen_lake", "sokoban_qwen2.5_0.5b"])
def test_every_example_loads_without_a_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = example(name)
    assert set(config.train_env_manager.tags + config.val_env_manager.tags) <= set(config.tags())
    assert config.plan().describe()


def test_the_laptop_job_trains_many_groups_and_validates_on_held_out_levels() -> None:
    config = example("sokoban")
    assert config.pretrain == "toy_sokoban" and config.seed == 42 and config.cluster == "local"
    assert (config.train_env_manager.env_groups, config.train_env_manager.group_size) == (64, 4)
    assert (config.val_env_manager.env_groups, config.val_env_manager.group_size) == (256, 1)
    assert config.actor_train.strategy_args.strategy_name == "fsdp_train"
    assert config.actor_infer.strategy_args.strategy_name == "hf_infer"


def test_the_laptop_job_takes_a_real_model_by_plain_overrides() -> None:
    config = example(
        "sokoban",
        "pretrain=Qwen/Qwen2.5-0.5B-Instruct",
        "actor_infer.strategy_args.strategy_name=vllm",
        "+actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.6",
        "actor_train.strategy_args.strategy_name=megatron_train",
        "+actor_train.device_mapping='list(range(0,8))'",
        "+num_gpus_per_node=8",
    )
    assert config.model_path("actor_infer") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert config.actor_train.data_parallel_size == 8


def test_every_tag_of_the_library_is_a_tag_of_the_guide() -> None:
    tags = example("sokoban_qwen2.5_0.5b").tags()
    assert {name: tag.env_type for name, tag in tags.items()} == {
        "SimpleSokoban": "sokoban",
        "LargerSokoban": "sokoban",
        "SokobanDifferentGridVocab": "sokoban",
        "FrozenLake": "frozen_lake",
        "FrozenLakeThink": "frozen_lake",
    }
    for tag in tags.values():
        assert tag.agent_template is not None and "{observation}" in tag.agent_template
        assert "{turn_idx}" in tag.agent_template and "{actions_left}" in tag.agent_template
