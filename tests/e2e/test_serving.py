"""A run of ``mode: serve`` answers OpenAI's client with the weights of the run that it follows."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

import roll
from roll.api.policy import Policy
from roll.config import ConfigError
from roll.generation import SamplingParams
from roll.pipelines.agentic import run_agentic
from tests.e2e import support
from tests.ports import free_port

ASKED = [{"role": "user", "content": "Which way?"}]
TOKENS = 6


def expected(policy: Policy) -> list[float]:
    """Log-probs of the likeliest answer, but for the token that ends it: clients are not shown that one."""
    renderer = policy.text.renderer
    [answer] = policy.complete([renderer.render_ids(ASKED)], SamplingParams(TOKENS, temperature=0.0))
    shown = zip(answer.token_ids, answer.logprobs, strict=True)
    return [logprob for token, logprob in shown if token not in renderer.stop_token_ids]


def answered(client: openai.OpenAI) -> list[float]:
    """What the endpoint says of its likeliest answer."""
    done = client.chat.completions.create(
        model="mine",
        messages=ASKED,
        temperature=0,
        max_tokens=TOKENS,
        logprobs=True,  # type: ignore[arg-type]
    )
    assert done.choices[0].logprobs is not None and done.choices[0].logprobs.content is not None
    return [token.logprob for token in done.choices[0].logprobs.content]


def until(value: Callable[[], list[float]], wanted: list[float], seconds: float = 120) -> list[float]:
    """Ask until the answer is the wanted one, or too late; returns the last answer."""
    end, found = time.monotonic() + seconds, list[float]()
    while time.monotonic() < end and found != pytest.approx(wanted, abs=1e-4):
        try:
            found = value()
        except openai.APIConnectionError:
            time.sleep(0.2)
    return found


def test_it_answers_as_the_policy_and_takes_the_weights_of_the_run_it_follows(tmp_path: Path) -> None:
    first = {"max_steps": 1, "eval_steps": 0}
    run_agentic(support.small_config(tmp_path / "learned", **first))
    before, after = expected(roll.load_policy("toy")), expected(roll.load_policy(tmp_path / "learned"))
    assert before != pytest.approx(after, abs=1e-3)
    port, found = free_port(), dict[str, list[float]]()

    def ask() -> None:
        try:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-own", max_retries=0)
            found["before"] = until(lambda: answered(client), before)
            (tmp_path / "learned").rename(tmp_path / "followed")
            found["after"] = until(lambda: answered(client), after)
            with pytest.raises(openai.AuthenticationError):
                answered(openai.OpenAI(base_url=client.base_url, api_key="another", max_retries=0))
            found["refused"] = []
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=ask)
    serve = {"mode": "serve", "serve__port": port, "serve__key": "sk-own", "serve__name": "mine"}
    config = support.small_config(tmp_path / "served", **first, **serve, experience__follow=tmp_path / "followed")
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_agentic(config)
    thread.join()
    assert found["before"] == pytest.approx(before, abs=1e-4) and found["after"] == pytest.approx(after, abs=1e-4)
    assert "refused" in found and not list((tmp_path / "served").glob("checkpoints/*"))


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"):
            run_agentic(support.small_config(tmp_path, mode="serve", serve__port=port))
