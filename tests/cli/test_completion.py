"""What the shell is offered, by the protocol of typer: configurations, keys, values of keys, tags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roll.cli.app import main

HEAVY = ("torch", "ray", "transformers", "pyarrow", "pandas", "hydra", "omegaconf", "numpy", "roll.config")


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """Return a function from a line, as bash divides it, to what it is offered for the last word."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_ROLL_COMPLETE", "complete_bash")

    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", "\n".join(["roll", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out.split()

    return offered


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["trai"], ["train"]),
        (["train", "frozen"], ["frozen_lake", "frozen_lake_slippery", "frozen_lake_two_stages"]),
        (["train", "mi"], ["mine", "mix_math", "mixed"]),
        (["train", "sokoban", "max_step"], ["max_steps=", "max_steps=500"]),
        (["train", "sokoban", "seed", "=", "1", "eval_ste"], ["eval_steps=", "eval_steps=10"]),
        (["train", "sokoban", "old_log_probs", "="], ["recompute", "sampler"]),
        (["train", "sokoban", "old_log_probs", "=", "sa"], ["sampler"]),
        (["train", "sokoban", "old_log_probs=sa"], ["old_log_probs=sampler"]),  # zsh and fish keep the word whole
        (["tune", "sokoban", "deterministic", "="], ["true", "false"]),
        (["config", "show", "eval_m"], ["eval_math"]),
        (["config", "explain", "eval_st"], ["eval_steps"]),
        (["envs", "show", "Larger"], ["LargerSokoban"]),
        (["envs", "certify", "Frozen"], ["FrozenLake", "FrozenLakeThink"]),
        (["eval", "toy", "--env", "Larger"], ["LargerSokoban"]),
        (["train", "sokoban", "no_such_key"], []),
    ],
)
def test_a_word_is_completed(offered: object, words: list[str], offers: list[str]) -> None:
    Path("mine.yaml").write_text("# Mine.\ndefaults: [sokoban]\n")
    assert offered(*words) == offers  # type: ignore[operator]


def test_a_key_is_found_by_its_last_part(offered: object) -> None:
    found = offered("train", "sokoban", "learning_r")  # type: ignore[operator]
    assert "actor_train.training_args.learning_rate=" in found and all("learning_rate=" in key for key in found)


@pytest.mark.processes
def test_completion_imports_nothing_heavy_and_takes_little_processor_time() -> None:
    program = f"""
import resource, sys
from roll.cli.app import main
try:
    main([])
except SystemExit:
    pass
loaded = [name for name in {list(HEAVY)!r} if name in sys.modules]
assert not loaded, loaded
used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
total = 0
for number in range(3_000_000):
    total += number * number
print(used, resource.getrusage(resource.RUSAGE_SELF).ru_utime - used, file=sys.stderr)
"""
    variables = {"_ROLL_COMPLETE": "complete_bash", "COMP_WORDS": "roll train sokoban max_st", "COMP_CWORD": "3"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split() == ["max_steps=", "max_steps=500"], done.stderr
    used, counting = map(float, done.stderr.split())
    assert used < counting, "0.3 seconds where counting to three million takes as long"
