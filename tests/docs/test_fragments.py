"""YAML on the pages is accepted: as a file where it is one, else on top of a shipped configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from docs_support import Block, blocks
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from roll.config import (
    AgenticConfig,
    DistillConfig,
    DPOConfig,
    PromptDistillConfig,
    RewardModelConfig,
    RLVRConfig,
    RowDistillConfig,
    RunConfig,
    SFTConfig,
    launch,
    load,
)
from roll.config.shipped import shipped_configs
from roll.config.staged import StagedConfig
from roll.pipelines.policy_evaluation import PolicyEvaluation
from tests.rings import exhaustive_but

CONFIGS = shipped_configs()

RLVR_PAGES = ("docs/data.md", "docs/rewards.md", "docs/rlvr.md", "docs/sandbox.md")

RUN_ELSEWHERE = {"docs/extending.md", "docs/from_trl.md", "docs/from_verl.md", "docs/from_roll.md"}
"""Their configurations are started beside their modules, by test_extending.py and test_from_elsewhere.py."""

WHERE: dict[tuple[str, str], str] = {
    ("docs/data.md", "prompt"): "actor_train.data_args",
    ("docs/data.md", "data_args"): "actor_train",
    ("docs/data.md", "custom_cls"): "actor_train.data_args",
    ("docs/rewards.md", "llm_judge"): "rewards.math_rule.verifiers",
}
"""Fragments that the text places inside a section, by page and first key."""

BLOCKS = [block for block in blocks("yaml") if block.page not in RUN_ELSEWHERE]
NEWCOMERS = ("README.md", "docs/configuration.md", "docs/environments.md", "docs/rlvr.md")
"""Pages whose fragments ``make test`` tries, all others are tried by ``make test-all``."""

ALONE = {("docs/dialects.md", "algorithm"), ("docs/rlvr.md", "exp_name")}
"""Whole configurations without a defaults list."""
_IMITATION = {"pipeline": "sft", "actor_train": {"data_args": {"file_name": "rows.jsonl"}}}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::roll.config.ConfigWarning")
@pytest.mark.parametrize(
    "block", exhaustive_but(BLOCKS, *(block for block in BLOCKS if block.page in NEWCOMERS)), ids=str
)
def test_the_yaml_of_the_page_is_accepted(block: Block, tmp_path: Path) -> None:
    fragment = OmegaConf.create(block.text)
    assert isinstance(fragment, DictConfig)
    first = str(next(iter(fragment)))
    prompts = block.page in RLVR_PAGES or "rewards" in fragment
    rlvr = prompts and "train_env_manager" not in fragment
    kind: type[RunConfig] = RLVRConfig if rlvr else AgenticConfig
    base = "rlvr_math" if rlvr else "sokoban"
    if block.page == "docs/distillation.md" and first != "reference":
        kind, base = DistillConfig, "distill_sokoban"
    if "stages" in fragment:
        kind = StagedConfig
    whole: dict[str, type[RunConfig]] = {
        **{"sft": SFTConfig, "dpo": DPOConfig, "reward_model": RewardModelConfig},
        **{"distill_rows": RowDistillConfig, "distill_prompts": PromptDistillConfig},
    }
    if fragment.get("pipeline") in whole:
        assert load(fragment, kind=whole[fragment["pipeline"]])
        return
    if first == "evaluation":
        assert PolicyEvaluation.of(load({**_IMITATION, **fragment}))
        return
    if first == "defaults":
        assert _started(block.text, tmp_path, kind)
    elif (block.page, first) in ALONE:
        assert load(fragment, kind=kind)
    else:
        assert load(_on_top(fragment, base, (block.page, first)), kind=kind)


def _started(text: str, folder: Path, kind: type[RunConfig]) -> list[RunConfig]:
    """Return what a program is given that is started with a file in a folder of the reader's."""
    (folder / "page.yaml").write_text(text, encoding="utf-8")
    runs: list[RunConfig] = []
    launch(runs.append, config_dir=CONFIGS, kind=kind, argv=["--config-dir", str(folder), "--config-name", "page"])
    return runs


def _on_top(fragment: DictConfig, name: str, place: tuple[str, str]) -> DictConfig:
    """Return a shipped configuration with a fragment over it, in the section that the page names."""
    base = _shipped(name)
    section = WHERE.get(place)
    nested: Any = fragment
    for key in reversed(section.split(".") if section else []):
        nested = {key: nested}
    with open_dict(base):
        if "rewards" in nested or "custom_reward_function" in nested:
            base.pop("rewards", None)  # domains of the page take the place of the shipped ones
        merged = OmegaConf.merge(base, nested)
    assert isinstance(merged, DictConfig)
    return merged


def _shipped(name: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(name)
