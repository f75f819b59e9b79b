"""A run whose engine does not sample with its weights stops, keeps what was trained, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roll.config import RunError
from roll.pipelines.agentic import run_agentic
from tests.e2e.lying_engines import MISSING
from tests.e2e.support import rows, same, small_config, train_state

QUICK = {"eval_steps": 0, "save_steps": 10, "deterministic": "true"}


@pytest.mark.parametrize(
    ("worker", "changes", "words"),
    [
        ("KeepsItsCache", {}, "it kept its prefix cache"),
        # Behind the trainer, an engine has weights of its own.
        pytest.param(
            *("MissesOneTensor", {"async_generation_ratio": 1.0}, f"layer by layer: {MISSING}"),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_run_stops_at_the_first_engine_that_lies(
    worker: str, changes: dict[str, float], words: str, tmp_path: Path
) -> None:
    config = small_config(
        tmp_path / "out", **QUICK, **changes, actor_infer__worker_cls=f"tests.e2e.lying_engines.{worker}"
    )
    with pytest.raises(RunError) as stopped:
        run_agentic(config)
    message = str(stopped.value)
    assert "After the weights of step 2, engine 0 does not answer as the trainer does" in message
    assert words in message
    # The step itself is sound: it is reported and saved, and the run can go on from it.
    assert "step=000002" in message and "resume_from_checkpoint" in message
    lines = [json.loads(line) for line in (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["weight_sync/probe_difference"] < 1e-5
    assert (tmp_path / "out" / "checkpoints" / "step=000002" / "train_state.pt").exists()


@pytest.mark.exhaustive
def test_checking_weights_changes_nothing_else(tmp_path: Path) -> None:
    for verify in ("true", "false"):
        run_agentic(small_config(tmp_path / verify, **QUICK, max_steps=3, weight_sync__verify=verify))
    assert rows(tmp_path / "true") == rows(tmp_path / "false")
    # The checkpoint at the end.
    assert same(train_state(tmp_path / "true", 3), train_state(tmp_path / "false", 3))


@pytest.mark.exhaustive
def test_a_run_that_goes_on_checks_the_weights_that_it_begins_with(tmp_path: Path) -> None:
    ahead = {**QUICK, "async_generation_ratio": 1.0}
    run_agentic(small_config(tmp_path / "out", **{**ahead, "save_steps": 1}, max_steps=1))
    lying = small_config(
        tmp_path / "out",
        **ahead,
        resume_from_checkpoint="true",
        actor_infer__worker_cls="tests.e2e.lying_engines.KeepsThePretrained",
    )
    with pytest.raises(RunError, match="After the weights of step 1, engine 0 does not answer as the trainer does"):
        run_agentic(lying)


@pytest.mark.exhaustive
def test_a_trainer_in_bf16_gives_its_weights_to_an_engine_in_fp32(tmp_path: Path) -> None:
    half = {"actor_train__model_args__dtype": "bf16", "old_log_probs": "recompute", "max_steps": 2}
    run_agentic(small_config(tmp_path / "out", **{**QUICK, **half}))
    lines = [json.loads(line) for line in (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().splitlines()]
    differences = [line["sampler/log_prob_difference_max"] for line in lines]
    assert len(differences) == 2 and all(0 < each < 0.5 for each in differences), differences
