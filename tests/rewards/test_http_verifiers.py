from __future__ import annotations

import asyncio

import pytest
from reward_support import asked, grades, serving, verdict

from roll.rewards import Rubric, VerifierOptionError, make_verifier
from tests.ports import free_port

REQUEST = asked("it is {42}", "42", row={"id": 7, "extra": {1, 2}}, domain="math_rule")


def completion(text: str) -> tuple[int, dict]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def judge_options(url: str, **changes) -> dict:
    return {"base_url": f"{url}/v1", "model": "judge-1", "backoff": 0.01, "timeout": 5.0} | changes


def test_a_remote_grader_gets_the_request_and_gives_score_and_metrics() -> None:
    with serving(lambda number, body: (200, {"score": 0.5, "edits": 3, "note": "ok"})) as server:
        result = verdict(make_verifier("remote", {"url": f"{server.url}/grade"}), REQUEST)
    assert (result.score, result.metrics) == (0.5, {"edits": 3.0})
    (body,) = server.bodies
    assert server.paths == ["/grade"]
    assert (body["response"], body["ground_truth"], body["domain"]) == ("it is {42}", "42", "math_rule")
    assert body["row"]["id"] == 7 and body["messages"][0]["content"] == "What is it?"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_failures_are_retried(status: int) -> None:
    with serving(lambda number, body: (status, {}) if number < 2 else (200, {"score": 1})) as server:
        result = verdict(make_verifier("remote", {"url": server.url, "backoff": 0.01}), REQUEST)
    assert result.score == 1.0 and len(server.bodies) == 3


def test_a_server_that_keeps_failing_is_no_score() -> None:
    with serving(lambda number, body: (503, b"busy today")) as server:
        rubric = Rubric([("remote", 1.0, make_verifier("remote", {"url": server.url, "retries": 1, "backoff": 0.01}))])
        (grade,) = grades(rubric, REQUEST)
    assert grade.score is None and len(server.bodies) == 2
    assert "2 attempts" in grade.error and "503 busy today" in grade.error and server.url in grade.error


def test_no_server_at_all_is_no_score() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    made = make_verifier("remote", {"url": url, "retries": 1, "backoff": 0.0})
    (grade,) = grades(Rubric([("remote", 1.0, made)]), REQUEST)
    assert grade.score is None and "ConnectError" in grade.error


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"<html>hello"), "no JSON: <html>hello"),
        ((200, {"points": 1}), "without 'score'"),
        ((200, {"score": "high"}), "must be a number"),
        ((200, {"score": None, "error": "no such task"}), "no such task"),
        ((404, b"nothing here"), "status 404: nothing here"),
    ],
)
def test_a_useless_answer_is_no_score_and_is_not_asked_for_again(answer, message: str) -> None:
    with serving(lambda number, body: answer) as server:
        (grade,) = grades(Rubric([("remote", 1.0, make_verifier("remote", {"url": server.url}))]), REQUEST)
    assert grade.score is None and message in grade.error
    assert len(server.bodies) == 1


def test_the_judge_is_asked_in_the_openai_format_and_its_score_is_scaled(monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret-key")
    answers = [(500, {}), completion("Score: 2 at first. But on reflection:\nScore: 7.5")]
    with serving(lambda number, body: answers[number]) as server:
        options = judge_options(server.url, api_key_env="JUDGE_KEY", extra_body={"seed": 1})
        result = verdict(make_verifier("llm_judge", options), REQUEST)
    assert result.score == 0.75
    body = server.bodies[1]
    assert server.paths == ["/v1/chat/completions"] * 2
    assert server.headers[1]["authorization"] == "Bearer secret-key"
    assert (body["model"], body["temperature"], body["seed"]) == ("judge-1", 0.0, 1)
    prompt = body["messages"][0]["content"]
    assert "What is it?" in prompt and "it is {42}" in prompt and "\n42\n" in prompt


def test_a_wrong_key_is_named_and_never_shown(monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret-key")
    with serving(lambda number, body: (401, {"error": "invalid key"})) as server:
        rubric = Rubric([("j", 1.0, make_verifier("llm_judge", judge_options(server.url, api_key_env="JUDGE_KEY")))])
        (grade,) = grades(rubric, REQUEST)
    assert grade.score is None and len(server.bodies) == 1
    assert "refused the key in JUDGE_KEY" in grade.error and "invalid key" in grade.error
    assert "secret-key" not in grade.error


def test_a_missing_key_says_which_variable_to_set(monkeypatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    made = make_verifier("llm_judge", judge_options("http://127.0.0.1:9", api_key_env="JUDGE_KEY"))
    (grade,) = grades(Rubric([("j", 1.0, made)]), REQUEST)
    assert grade.score is None and "JUDGE_KEY is not set" in grade.error


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("I like it.", "no score: 'I like it.'"),
        ("", "no score"),
        ("Score: 11", "outside of 0 to 10"),
        ("<think>Score: 3", "no score"),
    ],
)
def test_a_reply_without_a_usable_score_is_no_score(reply: str, message: str) -> None:
    with serving(lambda number, body: completion(reply)) as server:
        result = verdict(make_verifier("llm_judge", judge_options(server.url)), REQUEST)
    assert result.score is None and message in result.error


def test_the_judge_is_asked_no_more_than_concurrency_at_a_time() -> None:
    running = most = 0

    async def judge(prompt: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return "Score: 10"

    made = make_verifier("llm_judge", {"engine": "policy"}, {"judge": judge})
    results = grades(Rubric([("j", 1.0, made)], parallel=3), *[REQUEST] * 9)
    assert most == 3 and all(grade.score == 1.0 for grade in results)


def test_the_prompt_is_filled_once_and_keeps_other_braces() -> None:
    prompts = []

    async def judge(prompt: str) -> str:
        prompts.append(prompt)
        return "grade=B2"

    options = {
        "engine": "policy",
        "prompt": '{"r": {response}} | {answer} | {conversation}',
        "score_pattern": r"B(\d)",
        "lowest": 1,
        "highest": 3,
    }
    request = asked("<think>x</think> say {prompt}", messages=[{"role": "system", "content": "S"}])
    assert verdict(make_verifier("llm_judge", options, {"judge": judge}), request).score == 0.5
    assert prompts == ['{"r": <think>x</think> say {prompt}} | say {prompt} | system: S']


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "magic"}, "use http, policy, or the name of one of judges"),
        ({"model": None}, "base_url"),
        ({"lowest": 5, "highest": 5}, "below"),
        ({"prompt": "grade this"}, "{response}"),
        ({"score_pattern": r"\d+"}, "one group"),
        ({"score_pattern": "("}, "regular expression"),
        ({"base_url": "localhost:8000"}, "http://"),
        ({"retries": -1}, "retries"),
    ],
)
def test_options_of_the_judge_that_cannot_work_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(VerifierOptionError, match="llm_judge") as caught:
        make_verifier("llm_judge", judge_options("http://localhost") | changes)
    assert message in str(caught.value)


def test_connections_follow_the_event_loop() -> None:
    with serving(lambda number, body: (200, {"score": 1})) as server:
        made = make_verifier("remote", {"url": server.url, "retries": 0})
        assert [asyncio.run(made(REQUEST)).score for _ in range(3)] == [1.0] * 3
