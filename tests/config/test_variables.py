"""Values that interpolations take from the environment, where everything is text."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.config import load
from roll.config.errors import ConfigError
from roll.config.resolving import value_in

_FILE = """
defaults: [sokoban, _self_]
max_steps: ${oc.env:STEPS,8}
exp_name: ${oc.env:NAME,007}
deterministic: ${oc.env:EXACT,true}
system_envs: {KEY: "${oc.env:NAME,007}"}
variables: {rate: "${oc.env:RATE,1e-4}"}
actor_train:
  training_args: {learning_rate: "${variables.rate}"}
"""


@pytest.fixture
def _file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(_FILE)
    return path


def test_what_a_key_wants_as_a_number_is_one(_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = load(_file)
    assert (job.max_steps, job.deterministic, job.actor_train.training_args.learning_rate) == (8, True, 1e-4)

    for name, value in {"STEPS": "3", "RATE": "0.002", "EXACT": "False"}.items():
        monkeypatch.setenv(name, value)
    job = load(_file)
    assert (job.max_steps, job.deterministic, job.actor_train.training_args.learning_rate) == (3, False, 0.002)


def test_what_a_key_wants_as_text_stays_as_it_was(_file: Path) -> None:
    job = load(_file)

    assert job.exp_name == "007"
    assert job.system_envs["KEY"] == "007"


def test_a_section_of_another_guide_takes_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("defaults: [sokoban, _self_]\nactor_rollout_ref: {actor: {clip_ratio_high: '${oc.env:CLIP}'}}\n")
    monkeypatch.setenv("CLIP", "0.3")

    assert load(path).pg_clip_high == 0.3


def test_what_is_no_number_is_told_as_the_text_that_it_is(_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "many")

    with pytest.raises(ConfigError) as error:
        load(_file)
    (problem,) = error.value.problems
    assert (problem.path, problem.value) == ("max_steps", "many")


@pytest.mark.parametrize(
    ("text", "value"),
    [("-3", -3), ("1e-4", 1e-4), ("TRUE", True), ("0.80", 0.8)]
    + [(text, text) for text in ("nan", "inf", "1_000", "٣", "", "x", "0x10", "0-7", "1e999")],
)
def test_only_finite_numbers_as_yaml_writes_them_are_numbers(text: str, value: object) -> None:
    assert value_in(text) == value and type(value_in(text)) is type(value)


def test_a_text_that_is_only_partly_an_interpolation_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("defaults: [sokoban, _self_]\nexp_name: '${oc.env:A}${oc.env:B}'\nmax_steps: '1${oc.env:B}'\n")
    monkeypatch.setenv("A", "1")
    monkeypatch.setenv("B", "2")

    with pytest.raises(ConfigError) as error:
        load(path)
    assert [problem.path for problem in error.value.problems] == ["max_steps"]
