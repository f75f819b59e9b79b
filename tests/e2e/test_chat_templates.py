"""Runs with models that have no chat template, or one with habits of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError
from roll.models.loading import load_tokenizer
from roll.models.toy import MATH_WEIGHTS_DIRECTORY, WEIGHTS_DIRECTORY
from roll.pipelines import answering, playing
from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from roll.trajectories.model import Status
from roll.trajectories.store import read_trajectories, trajectory_path
from tests.e2e import rlvr_support
from tests.e2e.support import small_config
from tests.rings import exhaustive_but

NO_SYSTEM = (
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('Roles are user and assistant') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONE_TURN = "{% if messages | length > 2 %}{{ raise_exception('only one question') }}{% endif %}" + NO_SYSTEM
PARTS = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
SMALL = {"max_steps": 1, "save_steps": 0, "eval_steps": 0}


def base_model(folder: Path, template: str | None = None, weights: Path = WEIGHTS_DIRECTORY) -> Path:
    """Write a toy whose tokenizer has no chat template, or another one."""
    shutil.copytree(weights, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = folder / "tokenizer_config.json"
    said = json.loads(settings.read_text())
    said.pop("chat_template", None)
    settings.write_text(json.dumps(said))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def played(output_dir: Path, step: int = 1) -> list[Any]:
    return list(read_trajectories(trajectory_path(output_dir, step, "train")))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a run gets as far as building its parts."""

    def build(*_: Any) -> None:
        raise AssertionError("the model was about to be loaded")

    monkeypatch.setattr(playing, "build_core", build)
    monkeypatch.setattr(answering, "build_core", build)


@pytest.mark.exhaustive
def test_a_base_model_plays_games_in_the_template_that_is_named_and_keeps_it(tmp_path: Path) -> None:
    changes = {"pretrain": base_model(tmp_path / "base"), "actor_train.data_args.template": "chatml", **SMALL}
    run_agentic(small_config(tmp_path / "out", **{**changes, "save_steps": 1, "trajectory_dump_steps": 1}))
    assert {trajectory.status for trajectory in played(tmp_path / "out")} <= set(Status) - {Status.ERROR_ENV}
    saved = load_tokenizer(str(next((tmp_path / "out").glob("checkpoints/*/hf"))))
    assert "<|im_start|>" in saved.chat_template


@pytest.mark.exhaustive
@pytest.mark.parametrize("template", exhaustive_but(["user_assistant", "plain"], "user_assistant"))
def test_a_base_model_answers_problems_in_a_template_for_base_models(template: str, tmp_path: Path) -> None:
    base = base_model(tmp_path / "base", weights=MATH_WEIGHTS_DIRECTORY)
    changes = {"pretrain": str(base), "actor_train.data_args.template": template, "trajectory_dump_steps": 1, **SMALL}
    # A policy that answers in a template that it never saw is hardly ever right: no group is as different as is asked.
    changes |= {"dynamic_sampling.enable": False}
    run_rlvr(rlvr_support.small_config(tmp_path / "out", **changes))
    first = played(tmp_path / "out")[0].turns[0]
    prompt = load_tokenizer(str(base)).decode(first.prompt_ids)
    assert "<|im_start|>" not in prompt and prompt.endswith("Assistant:") == (template == "user_assistant")


def test_a_template_without_system_messages_plays_games_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"pretrain": base_model(tmp_path / "base", NO_SYSTEM), "trajectory_dump_steps": 1, **SMALL}
    run_agentic(small_config(tmp_path / "out", **{**changes, "progress": "lines"}))
    trajectories = played(tmp_path / "out")
    assert not any(turn.starts_sample for trajectory in trajectories for turn in trajectory.turns)
    assert any(len(trajectory.turns) > 1 for trajectory in trajectories)
    assert "takes no system message" in capsys.readouterr().out
    prompt = load_tokenizer("toy").decode(trajectories[0].turns[0].prompt_ids)
    assert prompt.startswith("<|im_start|>user\nSolve the Sokoban puzzle.\n\n###")


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("template", "key", "expected"),
    [
        (None, "pretrain", "has no chat template"),
        (ONE_TURN, "pretrain", "no second turn can be played"),
        (PARTS, "pretrain", "never shows what the user says"),
    ],
)
def test_a_model_that_cannot_play_is_refused_before_it_is_loaded(
    template: str | None, key: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=expected) as raised:
        run_agentic(small_config(tmp_path / "out", pretrain=base_model(tmp_path / "base", template), **SMALL))
    assert raised.value.problems[0].path == key
    assert "actor_train.data_args.template" in raised.value.problems[0].fix
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("template", ["qwen25", "{% for", "./no_such_file.jinja", "llama3"])
def test_a_template_that_is_none_is_refused_before_a_model_is_loaded(template: str, tmp_path: Path) -> None:
    config = rlvr_support.small_config(tmp_path / "out", **{"actor_train.data_args.template": template})
    with pytest.raises(ConfigError) as raised:
        run_rlvr(config)
    assert raised.value.problems[0].path == "actor_train.data_args.template"
    assert not (tmp_path / "out").exists()


def test_validation_in_another_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="validation.data_args.template"):
        rlvr_support.small_config(tmp_path / "out", **{"validation.data_args.template": "plain"})
