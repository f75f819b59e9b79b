"""A game of several turns behind an endpoint: a fake server for what it is asked, and vLLM's own for what is real."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_endpoint import Body, FakeEndpoint, serving

import roll
from roll.envs import Outcome, TextEnv, register_env
from roll.models.toy import TOYS
from tests.e2e.support import environment
from tests.ports import free_port

PATIENCE = 300.0  # seconds: a loaded machine with two cores


@pytest.fixture
def counting() -> str:
    """The tag of a game that is won by saying how often one was asked."""

    @register_env("counting", max_steps=3)
    class Counting(TextEnv):
        """Say how often you were asked."""

        def start(self) -> str:
            self.asked = 1
            return "How often did I ask? I began to."

        def act(self, action: str) -> Outcome:
            right = action == str(self.asked)
            self.asked += 1
            done = not right or self.asked > 3
            return Outcome(f"Ask {self.asked}.", {"right": float(right)}, terminated=done, success=right and done)

    return "counting"


def count(number: int, body: Body) -> str:
    """Answer with the turns that the conversation has."""
    return f"<answer>{1 + sum(message['role'] == 'assistant' for message in body['messages'])}</answer>"


@pytest.mark.processes
def test_every_turn_is_asked_with_the_whole_conversation_before_it(counting: str) -> None:
    with serving(FakeEndpoint(count)) as server:
        found = roll.evaluate(roll.endpoint(server.url, "policy-1"), env=counting, episodes=2, greedy=False)
    assert (found.sampled.success.mean, found.sampled.success.episodes) == (1.0, 2)
    by_length = sorted(server.bodies, key=lambda body: len(body["messages"]))
    assert len(by_length) == 6  # 2 episodes × 3 turns
    short, longest = by_length[0]["messages"], by_length[-1]["messages"]
    assert longest[: len(short)] == short and "I began to." in short[-1]["content"]
    said = [(message["role"], message["content"]) for message in longest[len(short) :]]
    assert [role for role, _ in said] == ["assistant", "user", "assistant", "user"]
    assert said[0][1] == "<answer>1</answer>" and "Ask 2." in said[1][1] and "Ask 3." in said[3][1]


@pytest.mark.processes
def test_a_policy_that_forgets_the_conversation_loses(counting: str) -> None:
    with serving(FakeEndpoint(lambda number, body: "<answer>1</answer>")) as server:
        found = roll.evaluate(roll.endpoint(server.url, "policy-1"), env=counting, episodes=2, greedy=False)
    assert found.sampled.success.mean == 0.0 and len(server.bodies) == 4


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of vLLM's own OpenAI server with the toy policy."""
    pytest.importorskip("vllm", reason="vLLM is not installed here: run `make vllm`")
    port = free_port()
    log = tmp_path_factory.mktemp("vllm") / "log"
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--model", str(TOYS["toy"]), "--served-model-name", "toy", "--dtype", "float32", "--enforce-eager"]
    # In parts of a prompt, requests with a seed end a server on CPUs: "CPU Generator does not use offset".
    words += ["--max-model-len", "1024", "--max-num-batched-tokens", "4096", "--no-enable-chunked-prefill"]
    variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as output:
        own = environment(**variables, TORCHDYNAMO_DISABLE="1")
        server = subprocess.Popen(words, env=own, stdout=output, stderr=output)
        try:
            _wait(f"http://127.0.0.1:{port}/health", server, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(60)


@pytest.mark.processes
@pytest.mark.exhaustive  # the server alone takes twenty seconds of a processor to start
def test_a_real_server_plays_as_well_as_the_same_policy_does_here(vllm: str) -> None:
    one, other = (
        roll.evaluate(policy, env="FrozenLake", config="frozen_lake", episodes=32, greedy=False).sampled.success
        for policy in (roll.endpoint(vllm, "toy"), "toy")
    )
    assert one.episodes == other.episodes == 32 and one.mean > 0
    # Four standard errors of the difference: it fails once in ten thousand times where they are the same.
    assert abs(one.mean - other.mean) < 4 * (one.standard_error**2 + other.standard_error**2) ** 0.5
    assert json.loads(urllib.request.urlopen(f"{vllm}/models").read())["data"][0]["id"] == "toy"


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")
