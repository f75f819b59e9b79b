"""mini-swe-agent from PyPI, shut in, with a policy that knows the answer: tests of a repository say what it earns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent_play import answer
from test_agent_programs import play

from roll.generation import Completion, GenerationRequest
from roll.sandbox import capabilities
from roll.trajectories.model import Status

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "agents" / "bin" / "python"
EXAMPLES = ROOT / "examples" / "agents"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.exhaustive,
    pytest.mark.skipif(not PYTHON.exists() and "CI" not in os.environ, reason="make agents"),
    pytest.mark.skipif(capabilities().network != "namespace", reason="this machine allows no namespaces"),
]

MENDED = "sed -i 's/year % 4 == 0$/year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)/' calendar_rules.py"
CHEATED = "echo 'import unittest' > tests.py"
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.mark.parametrize(("command", "score"), [(MENDED, 1.0), (CHEATED, 0.0)])
def test_what_it_does_to_a_repository_is_graded_by_its_tests(command: str, score: float) -> None:
    async def knows(request: GenerationRequest) -> Completion:
        number = int(request.request_id.rsplit("/", 1)[1])
        return answer(f"```mswea_bash_command\n{(command, DONE)[min(number, 1)]}\n```")

    (played,) = play(
        command=[str(PYTHON), str(EXAMPLES / "mini_swe.py")],
        tasks=[str(EXAMPLES / "repositories.jsonl")],
        seed=leap_seed(),
        files=str(EXAMPLES / "repositories" / "{repository}"),
        check=["python", "-m", "unittest", "-q", "tests"],
        check_files=str(EXAMPLES / "repository_tests" / "{repository}"),
        sandbox={"read": str(EXAMPLES / "mini_swe.py")},
        environment={"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        generate=knows,
        limits={"sequence_length": 6000},
        timeout=200.0,
    )
    assert (played.status, played.score) == (Status.COMPLETED, score), played.error
    assert len(played.turns) == 2 and played.metrics["tokens_kept"] == 1.0
    assert "Submitted" in (played.final_observation or "")


def leap_seed() -> int:
    """Return a seed that chooses the repository of leap years."""
    from roll.envs import Tag, make

    tasks = str(EXAMPLES / "repositories.jsonl")
    env = make(Tag("Agent", "agent", {"command": ["true"], "tasks": tasks}))
    try:
        return next(seed for seed in range(100) if '"leap"' in env.reset(seed=seed)[0])
    finally:
        env.close()
