"""Two steps of training on a taskset of the real package verifiers, and what of its episodes is trained."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from roll.config import load
from roll.pipelines.agentic import run_agentic
from roll.trajectories.samples import samples_from
from roll.trajectories.store import read_trajectories
from tests.e2e.support import ROOT
from tests.warm_others import environment_of, python_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not environment_of("verifiers").exists(), reason="verifiers is not installed: tests/envs/verifiers.txt"
    ),
]


def test_two_steps_on_a_taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load(
        str(ROOT / "examples" / "agents" / "verifiers_echo.yaml"),
        max_steps=2,
        save_steps=0,
        eval_steps=0,
        rollout_batch_size=32,
        output_dir=str(tmp_path),
        overrides={
            "train_env_manager.env_groups": 4,
            "custom_envs.Echo.env_config.python": str(python_of("verifiers")),
        },
    )
    run_agentic(config)
    episodes = [each for path in sorted((tmp_path / "trajectories").glob("step=*")) for each in read_trajectories(path)]
    assert len(episodes) == 64 and {each.status.value for each in episodes} == {"completed"}
    groups: dict[str, set[str]] = {}
    for episode in episodes:
        word, said = episode.messages[-1]["content"], episode.turns[0].response
        groups.setdefault(episode.group_id, set()).add(word)
        earned = SequenceMatcher(None, word, said.strip(), autojunk=False).ratio()
        assert episode.score == pytest.approx(earned) and episode.metrics["echoed"] == episode.score
        (sample,) = samples_from(episode)
        trained = [token for token, mask in zip(sample.token_ids, sample.response_mask, strict=True) if mask]
        assert trained == episode.turns[0].completion_ids
    assert len(groups) == 8 and all(len(words) == 1 for words in groups.values())
    assert len({episode.score for episode in episodes}) > 1
    lines = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert max(line.get("train/grad_norm", 0.0) for line in lines) > 0
