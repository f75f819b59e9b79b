"""Calls whose answers get lost: none is lost to training, and none is recorded twice."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time

import httpx
import openai
import pytest
from recorded_calls import trained, trajectory_of
from serving import serving

from roll.gateway import GatewayServer
from roll.generation import Completion, GenerationRequest

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()


def test_a_call_that_is_asked_again_gets_the_answer_that_was_recorded() -> None:
    with serving("Hello to you.", "Something else.") as served:
        key = served.episode()

        def ask(retries: str | None) -> str:
            headers = {"authorization": f"Bearer {key}"} | ({"x-stainless-retry-count": retries} if retries else {})
            answer = httpx.post(f"{served.url}/v1/chat/completions", content=BODY, headers=headers, timeout=20)
            said: str = answer.json()["choices"][0]["message"]["content"]
            return said

        first, again = ask("0"), ask("1")
        assert first == again and len(served.recorders[key].tree.calls) == 1
        # Without the word of its client it is a second sample.
        assert ask(None) != first and len(served.recorders[key].tree.calls) == 2
        assert trained(trajectory_of(served.recorders[key])) == served.engine.book


def test_whoever_waits_for_an_answer_hears_that_the_server_is_closed() -> None:
    with serving("fine") as served:
        asked = threading.Event()

        async def never(request: GenerationRequest) -> Completion:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        served.engine.generate = never  # type: ignore[method-assign]
        server, key, heard = GatewayServer(served.gateway), served.episode(), []

        def ask() -> None:
            try:
                httpx.post(
                    f"{server.url}/v1/chat/completions",
                    content=BODY,
                    headers={"authorization": f"Bearer {key}"},
                    timeout=60,
                )
            except httpx.HTTPError as error:
                heard.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        assert asked.wait(20)
        gc.disable()  # which would end the connection some day
        try:
            server.close()
            thread.join(20)
        finally:
            gc.enable()
        assert len(heard) == 1 and isinstance(heard[0], httpx.RemoteProtocolError | httpx.ReadError)


@pytest.mark.long
def test_agents_outlive_the_server_and_every_call_is_recorded_once() -> None:
    with serving("fine") as served:
        answer = served.engine.generate
        agents, calls = 8, 4

        async def slowly(request: GenerationRequest) -> Completion:
            await asyncio.sleep(0.05)
            return await answer(request)

        served.engine.generate = slowly  # type: ignore[method-assign]
        server = GatewayServer(served.gateway)
        keys, failures = [served.episode() for _ in range(agents)], []

        def agent(key: str) -> None:
            said: list[dict[str, str]] = [{"role": "user", "content": "Hello"}]
            try:
                with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=8) as client:
                    for _ in range(calls):
                        heard = client.chat.completions.create(model="m", messages=said)  # type: ignore[arg-type]
                        text = heard.choices[0].message.content or ""
                        said += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on"}]
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=agent, args=(key,), daemon=True) for key in keys]
        for thread in threads:
            thread.start()
        for _ in range(3):
            time.sleep(0.4)
            port = server.port
            server.close()
            server = GatewayServer(served.gateway, port=port)
        for thread in threads:
            thread.join(60)
        server.close()
        assert not failures
        for key in keys:
            episode = served.recorders[key]
            assert [len(branch) for branch in episode.tree.branches()] == [calls]
