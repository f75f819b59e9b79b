"""Stages are laid over what they share, each checked as a configuration by itself, under the keys a user can set."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from roll.config import AgenticConfig, ConfigError, ConfigWarning, DPOConfig, SFTConfig, load
from roll.config.staged import StagedConfig
from roll.config.written import flat, to_mapping, to_yaml

LISTED = """
defaults: [_self_]
pretrain: toy_math
seed: 3
output_dir: out
max_steps: 4
stages:
  - name: sft
    pipeline: sft
    max_steps: 2
    actor_train: {data_args: {file_name: sums.jsonl}}
  - name: dpo
    pipeline: dpo
    actor_train: {data_args: {file_name: "${stages.sft.output_dir}/pairs.jsonl"}}
  - name: rl
    pipeline: agentic
    start_from: sft
    train_env_manager: {tags: [SimpleSokoban]}
rollout_batch_size: 8
train_env_manager: {env_groups: 2, group_size: 4}
"""


def staged(path: Path, *overrides: str, text: str = LISTED) -> StagedConfig:
    file = path / "mine.yaml"
    file.write_text(text)
    found = load(file, overrides=list(overrides))
    assert isinstance(found, StagedConfig)
    return found


def problems(path: Path, *overrides: str, text: str = LISTED) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as error:
        staged(path, *overrides, text=text)
    return [(problem.path, problem.message) for problem in error.value.problems]


def test_a_stage_has_its_own_keys_over_those_that_all_share(tmp_path: Path) -> None:
    config = staged(tmp_path)
    kinds = {name: type(stage.config) for name, stage in config.stages.items()}
    assert list(kinds.items()) == [("sft", SFTConfig), ("dpo", DPOConfig), ("rl", AgenticConfig)]
    runs = {name: stage.config for name, stage in config.stages.items()}
    assert [run.max_steps for run in runs.values()] == [2, 4, 4] and {run.seed for run in runs.values()} == {3}
    assert runs["rl"].train_env_manager.group_size == 4 and runs["rl"].train_env_manager.tags == ["SimpleSokoban"]
    assert [run.output_dir for run in runs.values()] == [Path("out/sft"), Path("out/dpo"), Path("out/rl")]
    assert runs["dpo"].actor_train.data_args.file_name == ["out/sft/pairs.jsonl"]
    assert [run.exp_name for run in runs.values()] == ["mine_sft", "mine_dpo", "mine_rl"]
    assert [config.origin_of(name) for name in runs] == [None, "sft", "sft"]


def test_what_a_stage_is_does_not_depend_on_whether_stages_are_a_list(tmp_path: Path) -> None:
    mapped = LISTED.replace("  - name: sft\n", "  sft:\n").replace("  - name: dpo\n", "  dpo:\n")
    mapped = mapped.replace("  - name: rl\n", "  rl:\n")
    assert staged(tmp_path, text=mapped) == staged(tmp_path)


@pytest.mark.parametrize("key", ["stages.dpo.beta", "stages.1.beta"])
def test_an_override_reaches_a_stage_by_name_and_by_number(tmp_path: Path, key: str) -> None:
    config = staged(tmp_path, f"{key}=0.5", "seed=9")
    dpo = config.stages["dpo"].config
    assert isinstance(dpo, DPOConfig) and dpo.beta == 0.5 and config.seed == dpo.seed == 9
    assert "mine.yaml" in dpo.origins.of(["max_steps"]) and "beta" in dpo.origins.of(["beta"])


def test_a_mapping_from_python_takes_them_by_name_too() -> None:
    stages = [{"name": "sft", "pipeline": "sft", "actor_train": {"data_args": {"file_name": "sums.jsonl"}}}]
    config = load({"stages": stages}, overrides={"stages.sft.sequence_length": 32})
    assert config.stages["sft"].config.sequence_length == 32


def test_the_problems_of_all_stages_are_said_at_once_and_those_that_they_share_once(tmp_path: Path) -> None:
    found = problems(tmp_path, "stages.sft.bata=1", "stages.dpo.beta=x", "seed=-1", "max_stepz=2")
    assert [path for path, _ in found] == ["seed", "max_stepz", "stages.sft.bata", "stages.dpo.beta"]


def test_a_key_that_only_some_stages_know_is_none_of_the_others(tmp_path: Path) -> None:
    config = staged(tmp_path, "beta=0.3", "rollout_batch_size=8")
    assert not hasattr(config.stages["rl"].config, "beta")
    assert getattr(config.stages["dpo"].config, "beta") == 0.3  # noqa: B009
    # In the section of a stage it is wrong.
    assert problems(tmp_path, "stages.rl.beta=0.3")[0] == ("stages.rl.beta", "unknown key.")


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "path", "said"),
    [
        (["stages.1.name=sft"], "stages.1.name", "another stage has this name"),
        (["stages.1.name=a.b"], "stages.1.name", "cannot be called so"),
        (["stages.1.name=logs"], "stages.1.name", "cannot be called so"),
        (["stages.1.output_dir=x"], "stages.1.output_dir", "key of the whole run"),
        (["stages.1.pretrain=toy"], "stages.1.pretrain", "starts from the weights of the stage before"),
        (["stages.1.pipeline=null"], "stages.1.pipeline", "does not say what it runs"),
        (["stages.1.pipeline=multi_stage"], "stages.1.pipeline", "has no stages"),
        (["stages.1.pipeline=dppo"], "stages.1.pipeline", "unknown pipeline"),
        (["stages.sft.start_from=dpo"], "stages.sft.start_from", "no earlier stage"),
        (["stages.dpo.start_from=3"], "stages.dpo.start_from", "must be text"),
        (["resume_from_checkpoint=some/where"], "resume_from_checkpoint", "goes on in the stage"),
        (["stages=[]", "pipeline=multi_stage"], "stages", "there is no stage"),
    ],
)
def test_what_cannot_be_is_said_at_its_place(tmp_path: Path, overrides: list[str], path: str, said: str) -> None:
    found = problems(tmp_path, *overrides)
    assert [place for place, _ in found] == [path] and said in found[0][1]


def test_a_stage_behind_it_cannot_be_referred_to(tmp_path: Path) -> None:
    text = LISTED.replace("file_name: sums.jsonl", 'file_name: "${stages.dpo.output_dir}"')
    assert problems(tmp_path, text=text)[0][0] == "stages.sft.actor_train.data_args.file_name"


def test_an_override_that_every_stage_overrides_is_said_to_have_no_effect(tmp_path: Path) -> None:
    text = LISTED.replace("    start_from: sft", "    max_steps: 3\n    start_from: sft")
    with pytest.warns(ConfigWarning, match=r"max_steps: has no effect.*set stages.sft.max_steps"):
        staged(tmp_path, "stages.dpo.max_steps=1", "max_steps=7", text=text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert staged(tmp_path, "max_steps=7", text=text).stages["dpo"].config.max_steps == 7


def test_folders_that_are_spelled_out_are_each_stage_s_own(tmp_path: Path) -> None:
    config = staged(tmp_path, "logging_dir=out/mylogs", "checkpoint_config.output_dir=/elsewhere")
    runs: list[Any] = [stage.config for stage in config.stages.values()]
    assert len({run.logs_path for run in runs}) == len({run.checkpoint_path for run in runs}) == 3
    assert all(
        run.logs_path.is_relative_to(Path.cwd() / run.output_dir) or run.logs_path.is_relative_to(run.output_dir)
        for run in runs
    )


def test_what_is_written_is_the_same_configuration(tmp_path: Path) -> None:
    config = staged(tmp_path, "stages.dpo.beta=0.5")
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(config))
    assert load(again) == config != staged(tmp_path)
    assert flat(to_mapping(config))["stages.dpo.beta"] == 0.5
    assert load(again, overrides=["stages.dpo.beta=0.6"]).stages["dpo"].config != config.stages["dpo"].config
