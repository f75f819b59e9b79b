"""The engine behind an OpenAI-compatible endpoint: what it asks, what it makes of faults, and whom it blames."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Fault, serving

from roll.config import ConfigError, RunError
from roll.generation import Completion, GenerationRequest, SamplingParams
from roll.strategies import EngineJob
from roll.strategies.building import build_engine
from tests.ports import free_port

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
REFUSED = Fault(400, b'{"error": {"message": "This model\'s maximum context length is 8 tokens."}}')


def options(server: FakeEndpoint, **changes: Any) -> dict[str, Any]:
    return {"base_url": server.url, "model": "policy-1", "backoff": 0.01, "timeout": 5.0} | changes


def ask(given: dict[str, Any], *requests: GenerationRequest) -> list[Completion]:
    """Ask one request after the other."""

    async def run() -> list[Completion]:
        job = EngineJob(folder=str, load=lambda: None, strategy_config=given)  # type: ignore[arg-type,return-value]
        engine = build_engine("openai_endpoint", job)
        try:
            return [await engine.generate(each) for each in requests]
        finally:
            await engine.close()

    return asyncio.run(run())


def request(messages: Sequence[dict[str, str]] = ASKED, seed: int = 7, **sampling: Any) -> GenerationRequest:
    return GenerationRequest("a", [], SamplingParams(**sampling), seed=seed, messages=messages)


def test_messages_go_out_and_text_comes_back_without_tokens() -> None:
    with serving(FakeEndpoint(lambda number, body: "Four ✓")) as server:
        [done] = ask(options(server), request(seed=2**40 + 5, max_new_tokens=9, temperature=0.0, top_k=3))
    assert done == Completion([], [], "stop", text="Four ✓")
    assert server.bodies == [
        {
            "model": "policy-1",
            "messages": ASKED,
            "max_tokens": 9,
            "temperature": 0.0,
            "top_p": 1.0,
            "seed": 5,
            "top_k": 3,
        }
    ]


def test_fields_are_added_and_left_out_as_a_server_wants_them() -> None:
    extra = {"max_tokens": None, "max_completion_tokens": 20, "chat_template_kwargs": {"enable_thinking": False}}
    with serving(FakeEndpoint()) as server:
        ask(options(server, extra_body=extra), request())
    [body] = server.bodies
    assert "max_tokens" not in body and body["max_completion_tokens"] == 20
    assert body["chat_template_kwargs"] == {"enable_thinking": False} and "repetition_penalty" not in body


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
    with serving(FakeEndpoint(key="sk-usual")) as server:
        assert ask(options(server), request())[0].text == "hello"
    monkeypatch.setenv("MINE", "sk-mine")
    with serving(FakeEndpoint(key="sk-mine")) as server:
        assert ask(options(server, api_key_env="MINE"), request())[0].text == "hello"
        with pytest.raises(ConfigError, match=r"refuses the key in OPENAI_API_KEY"):
            ask(options(server), request())


@pytest.mark.parametrize("fault", [Fault(429, headers={"retry-after": "0"}), Fault(500), Fault(503, b"busy")])
def test_what_passes_is_tried_again(fault: Fault) -> None:
    with serving(FakeEndpoint(lambda number, body: fault if number < 2 else "at last")) as server:
        assert ask(options(server), request())[0].text == "at last"
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(content=b"<html>"), "no JSON: <html>"),
        (Fault(content=b'{"choices": []}'), "no chat completion"),
        (REFUSED, "maximum context length"),
        (Fault(seconds=1.5), "ReadTimeout"),
        (Fault(502, b"bad gateway"), "502 bad gateway"),
    ],
    ids=["no JSON", "no choices", "too long", "stalls", "keeps failing"],
)
def test_a_request_without_an_answer_is_aborted_with_the_reason_and_the_next_is_answered(
    fault: Fault, said: str
) -> None:
    with serving(FakeEndpoint(lambda number, body: fault if number < 2 else "fine")) as server:
        patient = options(server, retries=0, timeout=1.0 if fault.seconds else 30.0)
        lost, _, done = ask(patient, *[request()] * 3)
    assert lost.finish_reason == "abort" and said in lost.problem and lost.text == ""
    assert done.text == "fine"


@pytest.mark.parametrize("status", [401, 402, 404])
def test_what_every_request_would_be_refused_for_ends_the_evaluation(status: int) -> None:
    with serving(FakeEndpoint(lambda number, body: Fault(status, b"no more"))) as server, pytest.raises(RunError):
        ask(options(server), request())
    assert len(server.bodies) == 1


def test_a_server_that_has_gone_away_is_not_asked_for_ever() -> None:
    with (
        serving(FakeEndpoint(lambda number, body: Fault(503, b"gone"))) as server,
        pytest.raises(RunError, match=r"8 requests in a row(.|\n)*503 gone"),
    ):
        ask(options(server, retries=0), *[request()] * 100)
    assert len(server.bodies) == 8


def problem(given: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        ask(given)
    assert "sk-1" not in str(caught.value)
    [found] = caught.value.problems
    return f"{found.path}: {found.message} {found.fix}"


def test_whose_fault_it_is_when_nobody_answers_is_said_before_anything_is_played() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    found = problem({"base_url": url, "model": "m"})
    assert "base_url" in found and "nothing answers there (ConnectError" in found and "ends with /v1" in found
    with serving(FakeEndpoint(models=("policy-1", "policy-2"))) as server:
        assert "did you mean 'policy-1'" in problem(options(server, model="polcy-1"))
        beside = options(server, base_url=server.url.removesuffix("/v1"))
        assert "no OpenAI-compatible endpoint" in problem(beside)
    with serving(FakeEndpoint(key="secret")) as server:
        assert "refuses a request without a key" in problem(options(server))


def test_a_server_without_a_list_of_models_is_asked_for_a_token() -> None:
    with serving(FakeEndpoint(models=None)) as server:
        assert ask(options(server), request())[0].text == "hello"
    assert server.bodies[0]["max_tokens"] == 1 and len(server.bodies) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_url": "localhost:8000/v1"}, "begins with http://"),
        ({"base_url": "http://me:sk-1@host/v1"}, "api_key_env"),
        ({"api_key_env": "NO_SUCH_KEY"}, "export NO_SUCH_KEY"),
        ({"timout": 3}, "did you mean 'timeout'"),
        ({"concurrency": 0}, "concurrency: "),
        ({"model": ""}, "model: "),
    ],
)
def test_options_that_cannot_be_used_say_what_to_do(changes: dict[str, Any], said: str) -> None:
    found = problem({"base_url": "http://localhost:1/v1", "model": "m"} | changes)
    assert said in found


def test_requests_without_messages_are_refused() -> None:
    with serving(FakeEndpoint()) as server, pytest.raises(ValueError, match="takes messages"):
        ask(options(server), GenerationRequest("a", [1, 2], SamplingParams()))
