"""A run leaves traces of all its episodes and profiles of the steps that were asked for, and goes on with them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from roll.config import ConfigError
from roll.pipelines.agentic import run_agentic
from tests.e2e.support import small_config

SEEN = {
    "max_steps": 2,
    "save_steps": 1,
    "eval_steps": 0,
    "tracing": "file",
    "profile": "{steps: [2], roles: [actor_train, actor_infer]}",
}


def test_a_run_is_traced_and_profiled(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_agentic(small_config(out, **SEEN))
    (path,) = (out / "profile").rglob("*.json")
    assert path == out / "profile" / "step=000002" / "actor_train-0.json"
    computed = Counter(event.get("name") for event in json.loads(path.read_text())["traceEvents"])
    assert computed["aten::mm"] + computed["aten::addmm"] > 10 and any("Backward" in str(name) for name in computed)
    before = json.loads((out / "logs" / "trace.json").read_text())
    begun = Counter(event["name"] for event in before if event["ph"] == "b")
    assert begun["trajectory"] == begun["reset"] == begun["train"] == begun["store"] == begun["turn 1"] == 2 * 16
    assert begun["generate"] == begun["environment"] >= begun["turn 1"] and begun["rollout"] == begun["update"] == 2
    run_agentic(small_config(out, **{**SEEN, "max_steps": 3, "resume_from_checkpoint": "true"}))
    after = json.loads((out / "logs" / "trace.json").read_text())
    assert after[: len(before)] == before
    assert Counter(event["name"] for event in after if event["ph"] == "b")["trajectory"] == 3 * 16


@pytest.mark.exhaustive
def test_a_role_that_the_run_does_not_have_is_an_error_that_names_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)profile.roles.0.*did you mean 'actor_train'"):
        small_config(tmp_path / "out", profile="{steps: [1], roles: [actor_trian]}")
