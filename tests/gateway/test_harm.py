"""What clients do to the gateway that they should not: nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from recorded_calls import trained, trajectory_of
from serving import Served, serving

from roll.gateway import GatewayLimits
from roll.generation import Completion, GenerationRequest

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
LIMITS = GatewayLimits(body_bytes=100_000, body_seconds=0.5, calls_at_once=4)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving("Hello to you.", limits=LIMITS) as served:
        yield served


def post(served: Served, key: str, body: Any = HELLO, path: str = "/v1/chat/completions") -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(served.url + path, content=content, headers={"authorization": f"Bearer {key}"}, timeout=20)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


class Slow:
    """An engine that answers when it is told to."""

    def __init__(self, served: Served) -> None:
        self.waiting: set[str] = set()
        self.given_up: set[str] = set()
        self.released = asyncio.Event()
        answer = served.engine.generate

        async def generate(request: GenerationRequest) -> Completion:
            self.waiting.add(request.request_id)
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.given_up.add(request.request_id)
                raise
            return await answer(request)

        served.engine.generate = generate  # type: ignore[method-assign]
        self._loop = served.loop

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self.released.set)


def test_a_key_opens_its_own_episode_as_long_as_it_runs(served: Served) -> None:
    first, second = served.episode(), served.episode()
    assert post(served, first).status_code == post(served, second).status_code == 200
    assert [len(episode.tree.calls) for episode in served.recorders.values()] == [1, 1]
    served.gateway.close(first)
    for key in (first, "", "sk-roll-", second[:-1], "\x00"):
        refused = httpx.post(served.url + "/v1/messages", headers={"x-api-key": key.replace("\x00", "%00")}, json=HELLO)
        assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"
    assert post(served, second).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_what_is_too_large_is_refused_before_it_is_read(served: Served, declared: bool) -> None:
    key = served.episode()
    sent = 0

    def flood() -> Iterator[bytes]:
        nonlocal sent
        while sent < 50 << 20:
            yield b"x" * (1 << 16)
            sent += 1 << 16

    headers = {"authorization": f"Bearer {key}"} | ({"content-length": str(50 << 20)} if declared else {})
    try:
        answer = httpx.post(served.url + "/v1/chat/completions", content=flood(), headers=headers, timeout=20)
        assert answer.status_code == 413
    except httpx.TransportError:  # it was still writing when the connection was closed
        assert sent < 50 << 20
    assert sent < 50 << 20
    assert post(served, key).status_code == 200


def test_a_request_that_never_ends_is_given_up(served: Served) -> None:
    key = served.episode()
    host, port = served.url.removeprefix("http://").split(":")
    stalled = [socket.create_connection((host, int(port))) for _ in range(LIMITS.calls_at_once)]
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 99\r\n\r\n{{"
    )
    for each in stalled:
        each.sendall(head.encode())
    answers = [each.recv(4096).decode() for each in stalled]
    assert all(answer.startswith("HTTP/1.1 408") for answer in answers)
    assert post(served, key).status_code == 200
    for each in stalled:
        each.close()


NO_REQUESTS = (
    *(b"", b"{", b"[]", b"\xff\xfe", b'{"model": "m"}', b'{"messages": "Hello"}'),
    *(b"[" * 90_000, b'{"a": ' * 15_000),
)


def test_what_is_no_request_is_refused_in_words(served: Served) -> None:
    for body in NO_REQUESTS:
        key = served.episode()
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            answer = post(served, key, body, path)
            assert answer.status_code == 400 and len(answer.json()["error"]["message"]) > 10, (path, body[:20])
        assert post(served, key).status_code == 200, body[:20]


def test_halves_of_characters_reach_the_policy_as_an_error_or_not_at_all(served: Served) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a\ud83d"}]})
    answer = post(served, served.episode(), body.encode())
    assert answer.status_code == 400 and "error" in answer.json()


def test_a_client_that_leaves_takes_its_call_along(served: Served) -> None:
    engine, key = Slow(served), served.episode()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{served.url}/v1/chat/completions", headers={"authorization": f"Bearer {key}"}, json=HELLO, timeout=1
        )
    until(lambda: bool(engine.given_up))
    engine.release()
    assert post(served, key).status_code == 200
    (episode,) = served.recorders.values()
    assert len(episode.tree.calls) == 1 and trained(trajectory_of(episode)) == served.engine.book


def test_a_flood_of_one_episode_waits_and_another_is_answered(served: Served) -> None:
    engine, flooding, other = Slow(served), served.episode(), served.episode()
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(post(served, flooding).status_code), daemon=True)
        for _ in range(3 * LIMITS.calls_at_once)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) == 2 * LIMITS.calls_at_once)
    assert set(answers) == {429} and len(engine.waiting) == LIMITS.calls_at_once
    beside = threading.Thread(target=lambda: answers.append(post(served, other).status_code), daemon=True)
    beside.start()
    engine.release()
    for thread in (*threads, beside):
        thread.join(20)
    assert answers.count(200) == LIMITS.calls_at_once + 1
    flooded, alone = served.recorders.values()
    assert (len(flooded.tree.calls), len(alone.tree.calls)) == (LIMITS.calls_at_once, 1)


def test_calls_that_run_when_the_episode_ends_are_told_so(served: Served) -> None:
    engine, key = Slow(served), served.episode()
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(post(served, key)), daemon=True)
    asking.start()
    until(lambda: bool(engine.waiting))
    asyncio.run_coroutine_threadsafe(served.recorders[key].close(), served.loop).result(10)
    asking.join(10)
    assert answers[0].status_code == 410 and answers[0].json()["error"]["code"] == "episode_over"


def test_an_engine_that_fails_is_an_error_of_the_server(served: Served) -> None:
    async def broken(request: GenerationRequest) -> Completion:
        raise RuntimeError("secret of the engine")

    served.engine.generate = broken  # type: ignore[method-assign]
    key = served.episode()
    answer = post(served, key)
    assert answer.status_code == 500 and "secret" not in answer.text
    assert str(served.recorders[key].error) == "secret of the engine"
