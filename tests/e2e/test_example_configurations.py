"""Every shipped configuration is loaded as it is, and rehearsed: one step with a random model of its family."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from roll.algorithms.registry import ADVANTAGES, LOSSES
from roll.config import (
    AgenticConfig,
    DistillConfig,
    DPOConfig,
    EvaluationConfig,
    PromptDistillConfig,
    RewardModelConfig,
    RLVRConfig,
    RowDistillConfig,
    RunConfig,
    SFTConfig,
    launch,
)
from roll.config.composing import primary_names
from roll.config.shipped import shipped_configs
from roll.config.staged import StagedConfig
from roll.envs import ENV_TYPES, TAGS
from roll.models.loading import load_tokenizer
from roll.pipelines.agentic import run_agentic
from roll.pipelines.distill import DistillPipeline, PromptDistillPipeline
from roll.pipelines.distill_rows import RowDistillPipeline
from roll.pipelines.dpo import DPOPipeline
from roll.pipelines.evaluation import run_evaluation
from roll.pipelines.reward_model import RewardModelPipeline
from roll.pipelines.rlvr import run_rlvr
from roll.pipelines.sft import SFTPipeline
from roll.strategies import STRATEGIES
from tests.e2e.support import ROOT
from tests.rings import exhaustive_but

CONFIGS = ROOT / "examples" / "config"

RUNS = {
    AgenticConfig: run_agentic,
    RLVRConfig: run_rlvr,
    EvaluationConfig: run_evaluation,
    SFTConfig: SFTPipeline.start,
    DPOConfig: DPOPipeline.start,
    RewardModelConfig: RewardModelPipeline.start,
    DistillConfig: DistillPipeline.start,
    PromptDistillConfig: PromptDistillPipeline.start,
    RowDistillConfig: RowDistillPipeline.start,
}

KINDS: dict[str, type[RunConfig]] = {
    "sokoban": AgenticConfig,
    "larger_sokoban": AgenticConfig,
    "sokoban_curriculum": AgenticConfig,
    "frozen_lake": AgenticConfig,
    "replay": AgenticConfig,
    "frozen_lake_slippery": AgenticConfig,
    "math_tools": AgenticConfig,
    "search_qa": AgenticConfig,
    "countdown_tools": AgenticConfig,
    "taxi": AgenticConfig,
    "textarena_duel": AgenticConfig,
    "mixed": AgenticConfig,
    "custom_env": AgenticConfig,
    "custom_algorithm": AgenticConfig,
    "custom_engine": AgenticConfig,
    "sokoban_qwen2.5_0.5b": AgenticConfig,
    "guess_smollm2": AgenticConfig,
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
    "distill_sokoban": DistillConfig,
    "distill_math": PromptDistillConfig,
    "distill_rows_sokoban": RowDistillConfig,
}

SMALL_GAMES = {
    "rollout_batch_size": 8,
    "train_env_manager.env_groups": 2,
    "train_env_manager.group_size": 4,
    "val_batch_size": 4,
    "val_env_manager.env_groups": 4,
    "max_actions_per_traj": 2,
    "max_tokens_per_step": 8,
}
SHORT = {"actor_infer.generating_args.max_new_tokens": 8, "validation.generating_args.max_new_tokens": 8}
"""A random model hardly ever ends an answer by itself."""
SMALL_ANSWERS = {
    **SHORT,
    "rollout_batch_size": 4,
    "num_return_sequences_in_group": 2,
    "validation.data_args.max_samples": 4,
}
SIZES: dict[str, dict[str, Any]] = {
    "distill_sokoban": {
        **SMALL_GAMES,
        "rollout_batch_size": 4,
        "train_env_manager.env_groups": 4,
        "train_env_manager.group_size": 1,
    },
    "math_tools": SMALL_GAMES,
    "search_qa": SMALL_GAMES,
    "countdown_tools": SMALL_GAMES,
    "mixed": {**SMALL_GAMES, **SHORT, "prompts_per_step": 2, "validation.data_args.max_samples": 4},
    "rlvr_math": SMALL_ANSWERS,
    "rlvr_choices": SMALL_ANSWERS,
    "rlvr_smollm2": {
        **SMALL_ANSWERS,
        "actor_train.model_args.dtype": "fp32",
    },
    "guess_smollm2": {**SMALL_GAMES, "sequence_length": 2048},
    "mix_math": SMALL_ANSWERS,
    "luffy_math": SMALL_ANSWERS,
    "distill_math": {**SHORT, "rollout_batch_size": 4, "validation.data_args.max_samples": 4},
    "eval_math": {"validation.data_args.max_samples": 4, "validation.generating_args.max_new_tokens": 8},
    "sft_sokoban": {
        **{"actor_train.data_args.custom_cls.kwargs.games": 4, "validation.data_args.max_samples": 2},
        **{"evaluation.val_batch_size": 2, "evaluation.val_env_manager.env_groups": 2},
    },
    "dpo_sokoban": {
        **{"actor_train.data_args.custom_cls.kwargs.pairs": 4, "validation.data_args.max_samples": 2},
        **{"evaluation.val_batch_size": 2, "evaluation.val_env_manager.env_groups": 2},
    },
    "distill_rows_sokoban": {
        **{"actor_train.data_args.custom_cls.kwargs.games": 4, "validation.data_args.max_samples": 2},
        **{"evaluation.val_batch_size": 2, "evaluation.val_env_manager.env_groups": 2},
    },
    "kto_math": {
        "actor_train.data_args.custom_cls.kwargs.answers": 4,
        "validation.data_args.max_samples": 2,
        "evaluation.validation.data_args.max_samples": 4,
        "evaluation.validation.generating_args.max_new_tokens": 8,
    },
    "reward_math": {"actor_train.data_args.custom_cls.kwargs.pairs": 4, "validation.data_args.max_samples": 2},
    "process_reward_math": {
        "actor_train.data_args.custom_cls.kwargs.workings": 4,
        "validation.data_args.max_samples": 2,
    },
    # What needs its eight GPUs: where the parts run, and the engines that do.
    "sokoban_qwen2.5_0.5b": {
        **SMALL_GAMES,
        "cluster": "local",
        "train_env_manager.n_groups": "[2]",
        "val_env_manager.n_groups": "[1,1,1,1]",
        "actor_train.device_mapping": "null",
        "~actor_train.strategy_args.strategy_config": None,
        "actor_train.strategy_args.strategy_name": "fsdp_train",
        "actor_train.model_args.attn_implementation": "auto",
        "actor_train.training_args.gradient_accumulation_steps": 2,
        "actor_infer.device_mapping": "null",
        "~actor_infer.strategy_args.strategy_config": None,
        "actor_infer.strategy_args.strategy_name": "hf_infer",
        "actor_infer.model_args.attn_implementation": "auto",
    },
}


def test_every_configuration_of_a_run_is_tried_here() -> None:
    names = primary_names([CONFIGS, shipped_configs()])
    assert set(names) == set(KINDS)


@pytest.fixture(scope="module")
def random_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2.5 of 60 thousand parameters that nobody trained."""
    folder = tmp_path_factory.mktemp("qwen2.5")
    tokenizer = load_tokenizer("toy")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def composed(name: str, changes: dict[str, Any]) -> RunConfig:
    """Return a shipped configuration as its program reads it, with overrides."""
    found: list[RunConfig] = []
    words = [key if value is None else f"{key}={value}" for key, value in changes.items()]
    launch(found.append, config_dir=CONFIGS, kind=KINDS[name], argv=["--config-name", name, *words])
    return found[0]


@pytest.mark.parametrize("name", KINDS)
def test_a_shipped_configuration_loads_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert composed(name, {}).exp_name == name


# One of several stages is rehearsed by tests/pipelines/test_staged.py, stage by stage.
@pytest.mark.parametrize(
    "name",
    exhaustive_but([name for name in KINDS if KINDS[name] is not StagedConfig], "sokoban", "rlvr_math", "sft_sokoban"),
)
def test_a_shipped_configuration_is_rehearsed_with_a_random_model(
    name: str, random_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "examples")  # as their programs have it
    if name == "custom_env":
        monkeypatch.setattr(sys, "argv", ["custom_env.py"])
        runpy.run_path(str(ROOT / "examples" / "custom_env.py"))
    kind = KINDS[name]
    changes: dict[str, Any] = {"pretrain": str(random_qwen), "output_dir": str(tmp_path / "out"), "progress": "none"}
    if kind is not EvaluationConfig:
        changes |= {"max_steps": 1, "save_steps": 1, "eval_steps": 1}
    if kind in (DistillConfig, PromptDistillConfig, RowDistillConfig):  # a teacher has the tokenizer of its student
        changes["teacher.model_args.model_name_or_path"] = str(random_qwen)
    config = composed(name, changes | SIZES.get(name, SMALL_GAMES))
    outcome = RUNS[kind](config)
    assert outcome if kind is EvaluationConfig else outcome.after
    if kind is not EvaluationConfig:
        assert (tmp_path / "out" / "checkpoints" / "step=000001" / "hf" / "config.json").is_file()


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """Forget what the examples register: workers of later tests could not import it."""
    with ENV_TYPES.restored(), TAGS.restored(), ADVANTAGES.restored(), LOSSES.restored(), STRATEGIES.restored():
        yield
    sys.modules.pop("custom_algorithm", None)
    sys.modules.pop("custom_engine", None)
