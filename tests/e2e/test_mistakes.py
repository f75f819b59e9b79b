"""What a person can get wrong is told in one message, before a model loads and before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError, launch
from roll.pipelines import playing
from roll.pipelines.agentic import run_agentic
from tests.e2e.support import ROOT, small_config

PICKY = {"env_modules": "[tests.e2e.broken_envs]", "train_env_manager.tags": "[picky]"}


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a run gets as far as building its parts."""

    def assemble(*_: Any) -> None:
        raise AssertionError("the model was about to be loaded")

    monkeypatch.setattr(playing, "build_core", assemble)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train_env_manager.tags": "[SimpleSokobn]"}, ["train_env_manager.tags", "Did you mean 'SimpleSokoban'"]),
        ({"val_env_manager.tags": "[Nonsense]"}, ["val_env_manager.tags = 'Nonsense'", "env_modules"]),
        (
            {"custom_env.SimpleSokoban.env_config.num_boxs": 2},
            ["custom_env.SimpleSokoban.env_config", "num_boxs", "num_boxes"],
        ),
        (
            {**PICKY, "custom_envs.picky": "{env_type: picky, env_config: {colour: blue}}"},
            ["custom_envs.picky.env_config", "no blue paint"],
        ),
        (
            {"agent_template": "'{observation} {turn}'"},
            ["custom_env.SimpleSokoban.agent_template", "{turn_idx}"],
        ),
        ({"env_modules": "[no_such_package.envs]"}, ["env_modules", "No module named 'no_such_package'", "install"]),
        ({"adv_estimator": "remax", "reward_norm": "batch"}, ["adv_estimator", "normalised scores no longer compare"]),
        ({"algorithm_type": "sft"}, ["algorithm_type", "demonstrations"]),
        ({"policy_loss": "mix"}, ["policy_loss = 'mix'", "learns from what experts wrote"]),
        ({"resume_from_checkpoint": "/nowhere"}, ["resume_from_checkpoint", "no checkpoint there"]),
    ],
)
def test_a_mistake_names_its_key_and_the_fix(changes: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        run_agentic(small_config(tmp_path / "out", **changes))
    for text in [*expected, "Fix: "]:
        assert text in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_model")
def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    changes = {"train_env_manager.tags": "[One]", "val_env_manager.tags": "[Two]", "policy_loss": "mix"}
    with pytest.raises(ConfigError, match="3 problems"):
        run_agentic(small_config(tmp_path, **changes))


def test_a_model_that_is_not_there_is_a_problem_of_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)pretrain = '\./no_model'.*Fix: use pretrain=toy"):
        run_agentic(small_config(tmp_path / "out", pretrain="./no_model"))
    assert not (tmp_path / "out").exists()


def test_a_mistake_on_the_command_line_ends_with_code_2_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        launch(
            run_agentic,
            config_dir=ROOT / "examples" / "config",
            argv=["--config-name", "sokoban", "train_env_manager.tags=[SimpleSokobn]"],
        )
    assert left.value.code == 2
    assert "SimpleSokobn" in (message := capsys.readouterr().err) and "Traceback" not in message


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gamma": 0.9}, ["gamma=0.9 has no effect: adv_estimator=step_reinforce does not read it"]),
        ({"step_reward_gamma": 0.9}, []),
        ({"lambd": 0.95}, []),
        (
            {"adv_estimator": "grpo", "step_reward_gamma": 0.9, "policy_loss": "vanilla", "pg_clip": 0.3},
            [
                "step_reward_gamma=0.9 has no effect: adv_estimator=grpo does not read it",
                "pg_clip=0.3 has no effect: policy_loss=vanilla does not read it",
            ],
        ),
    ],
)
def test_an_option_that_nothing_reads_is_named_once(
    changes: dict[str, Any], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match="about to be loaded"):
        run_agentic(small_config(tmp_path, **changes, progress="lines"))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert shown == [f"warning: {text}" for text in expected]
