"""The file that says what a configuration was: loaded again it is the same, and it tells where each key came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.config import AgenticConfig, RLConfig, RLVRConfig, load
from roll.config.base import ConfigModel
from roll.config.composing import primary_names
from roll.config.shipped import shipped_configs
from roll.config.written import differences, flat, to_mapping, to_yaml, without_secrets
from tests.rings import exhaustive_but

FRAGMENTS = Path(__file__).parent / "dialect_fragments"


def again(config: RLConfig, folder: Path) -> RLConfig:
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    return load(folder / "config.yaml", kind=type(config))


def set_keys(value: Any, path: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Which keys of every section were set: some mean something else where they are not."""
    if isinstance(value, ConfigModel):
        yield path, frozenset(value.model_fields_set)
        for name in type(value).model_fields:
            yield from set_keys(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from set_keys(item, f"{path}.{name}")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    exhaustive_but(primary_names([shipped_configs()]), "sokoban", "rlvr_math"),
)
def test_a_written_configuration_is_the_same_when_loaded_again(name: str, tmp_path: Path) -> None:
    config = load(name)
    read = again(config, tmp_path)
    assert read == config and dict(set_keys(read)) == dict(set_keys(config))
    assert to_yaml(again(read, tmp_path)).count("\n") == to_yaml(config).count("\n")


@pytest.mark.long
@pytest.mark.parametrize("guide", ["chatlearn", "trinity", "verl"])
@pytest.mark.filterwarnings("ignore::roll.config.ConfigWarning")
def test_keys_of_other_guides_are_written_as_native_ones(guide: str, tmp_path: Path) -> None:
    config = load(FRAGMENTS / f"{guide}.yaml", kind=RLVRConfig, overrides={"rewards": {"math_rule": {}}})
    read = again(config, tmp_path)
    assert read == config and dict(set_keys(read)) == dict(set_keys(config))
    assert f"{guide}.yaml:" in to_yaml(config) and " as " in to_yaml(config)


def test_text_that_yaml_or_omegaconf_would_read_otherwise_survives(tmp_path: Path) -> None:
    odd = [
        "on",
        "1e-5",
        "1_0",
        "~",
        "a: b # c",
        " x ",
        "line\nbreak\t\u2028",
        "${x}",
        r"\${x}",
        r"a\${x} ${y}",
        "é",
        "",
    ]
    odd += ["é", "", "- a", "'\"", "0x1F", "?", "end\\"]
    variables = {"list": odd, "nested": {"1": odd[5], "b": [{"c": odd[6]}, [1.5e-7, None, True]]}, "int": {0: "W"}}
    # Named, because a file that gives no name is named after itself.
    named = {"exp_name": "odd", "variables": variables, "agent_template": "{observation}\n# no\n"}
    config = AgenticConfig.model_validate(named)
    assert again(config, tmp_path) == config


def test_every_key_has_a_line_and_says_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("defaults: [sokoban, _self_]\n\nalgorithm: {gamma: 0.5}\nsave_steps: 3\n")
    rate = "actor_train.training_args.learning_rate"
    config = load("own", max_steps=5, overrides=[f"{rate}=3e-5", "actor_train/strategy=deepspeed_zero2"])
    lines = to_yaml(config).splitlines()
    assert "save_steps: 3  # own.yaml:4" in lines and "max_steps: 5  # from Python" in lines
    assert "gamma: 0.5  # own.yaml:3 as algorithm.gamma" in lines
    assert "# rpc_timeout: 3600" in lines  # not set: the default
    (chosen,) = (line for line in lines if "strategy_name: deepspeed_train" in line)
    assert chosen.endswith("deepspeed_zero2.yaml:7")
    assert "    learning_rate: 3.0e-05  # from Python" in lines
    keys = {line.strip("# ").partition(":")[0] for line in lines}
    names = {path.rpartition(".")[2] for path in flat(to_mapping(config))}
    assert {name for name in names if name.isidentifier()} <= keys


def test_secrets_are_hidden_everywhere(tmp_path: Path) -> None:
    secret, login = "sk-12345", "https://me:pass@host/x"
    config = load(
        "sokoban",
        overrides={
            "tracker_kwargs": {"wandb": {"api_key": secret}, "eos_token": "</s>", "tracking_uri": login},
            "system_envs": {"HF_TOKEN": secret, "A": "1"},
            "max_tokens_per_step": 8,
        },
    )
    written, mapping = to_yaml(config), flat(to_mapping(config))
    assert secret not in written and "pass@" not in written
    assert yaml.safe_load(written)["tracker_kwargs"] == {"wandb": {}, "eos_token": "</s>"}
    assert "#   HF_TOKEN: '***'" in written and '  A: "1"' in written
    assert mapping["tracker_kwargs.wandb.api_key"] == mapping["system_envs.HF_TOKEN"] == "***"
    assert mapping["tracker_kwargs.eos_token"] == "</s>" and mapping["max_tokens_per_step"] == 8
    words = ["start.py", f"tracker_kwargs.wandb.api_key={secret}", "x=http://a:b@c", "seed=1"]
    assert without_secrets(words, config) == [
        "start.py",
        "tracker_kwargs.wandb.api_key=***",
        "x=http://***@c",
        "seed=1",
    ]
    assert again(config, tmp_path).system_envs == {"A": "1"}


def test_differences_are_listed_by_key() -> None:
    before, after = (
        to_mapping(load("rlvr_math", kind=RLVRConfig, output_dir=name, max_steps=steps, variables=values))
        for name, steps, values in (("a", 3, {"x": 1}), ("b", 4, {"y": [2]}))
    )
    assert differences(before, before) == []
    assert differences(before, after) == ["max_steps: 3 → 4", "variables.y: (none) → [2]", "variables.x: 1 → (none)"]


def test_a_list_of_sections_is_written_with_what_was_set(tmp_path: Path) -> None:
    operators = {"experience": [{"name": "spread", "args": {"least": 0.1}}, "deduplicate_groups"]}
    config = AgenticConfig.model_validate({"operators": operators})
    assert "experience: [{name: spread, args: {least: 0.1}}, {name: deduplicate_groups}]" in to_yaml(config)
    assert again(config, tmp_path) == config
