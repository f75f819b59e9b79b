"""How much the gateway adds: agents that call it over HTTP, beside the same agents without it.

python benchmarks/gateway_load.py                      # 512 agents, 10 calls each, 2 s for an answer
python benchmarks/gateway_load.py --spread 0           # all calls at the same moments, which no engine makes
python benchmarks/gateway_load.py --agents 64 --calls 4 --seconds 0.5

The engine is a stand-in of known speed, so that what is measured is the gateway alone: it answers after ``--seconds``,
by ``--spread`` of them sooner or later, as answers are shorter and longer; each call takes as long in both ways. The
agents of the second way are plain loops over HTTP in processes of their own, with a client that needs little by itself;
those of the first ask the recorder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import aiohttp

from roll.gateway import AgentEndpoint, Name, Recorder, ServedPolicy
from roll.gateway.openai_chat import ChatBody
from roll.generation import Completion, GenerationRequest, SamplingParams

_PROCESSES = 4
"""Programs that the agents are in: one alone would be busier than the gateway."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked.

    Attributes:
        agents: At the same time.
        calls: Of each, one after the other.
        seconds: Until the engine answers, in the mean.
        spread: By which share of them an answer comes sooner or later at most.
    """

    agents: int
    calls: int
    seconds: float
    spread: float = 0.5

    def until_answered(self, request_id: str) -> float:
        """Return the seconds that a call waits for the engine, equal whenever it is made."""
        return self.seconds * (1 + self.spread * random.Random(request_id).uniform(-1, 1))


def recorders(load: Load) -> list[Recorder]:
    """Return an episode for each agent, around an engine that does nothing but wait."""
    # Here, and not above: the programs of the agents need none of it, and would take seconds to import it.
    from roll.models.loading import load_tokenizer
    from roll.rendering import ChatRenderer

    renderer = ChatRenderer(load_tokenizer("toy"))
    ids = [*renderer.encoder.encode("fine"), renderer.stop_token_ids[0]]

    async def generate(request: GenerationRequest) -> Completion:
        await asyncio.sleep(load.until_answered(request.request_id))
        return Completion(ids, [-0.5] * len(ids), "stop", (0, 0))

    policy = ServedPolicy(renderer=renderer, generate=generate, sampling=SamplingParams(64), sequence_length=1 << 16)
    return [Recorder(policy, Name(0, f"agent-{number}")) for number in range(load.agents)]


def said(answers: Sequence[str]) -> list[dict[str, str]]:
    """Return the conversation after so many answers."""
    messages = [{"role": "user", "content": "What of the weather?"}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    return messages


async def in_process(load: Load) -> list[float]:
    """Return the seconds that each agent takes which asks a recorder."""
    episodes = recorders(load)

    async def agent(recorder: Recorder) -> float:
        began = time.perf_counter()
        answers: list[str] = []
        for _ in range(load.calls):
            body = ChatBody.read({"model": "m", "messages": said(answers)})
            answers.append(body.response(await recorder.ask(body.asked()))["choices"][0]["message"]["content"])
        return time.perf_counter() - began

    taken = await asyncio.gather(*map(agent, episodes))
    check(load, episodes)
    return taken


async def over_http(load: Load) -> list[float]:
    """Return the seconds that each agent takes which asks over HTTP, with a key of its own."""
    episodes, endpoint = recorders(load), AgentEndpoint("toy")
    context = multiprocessing.get_context("spawn")
    ready, begin, ended = context.Semaphore(0), context.Event(), context.SimpleQueue()
    admitted = [endpoint.admit(episode) for episode in episodes]
    try:
        clients = [each.__enter__() for each in admitted]
        shares = [[client.api_key for client in clients[first::_PROCESSES]] for first in range(_PROCESSES)]
        programs = [
            context.Process(target=_program, args=(clients[0].base_url, keys, load.calls, ready, begin, ended))
            for keys in shares
        ]
        for program in programs:
            program.start()
        for _ in programs:
            await asyncio.to_thread(ready.acquire)
        begin.set()
        for program in programs:
            await asyncio.to_thread(program.join)
        if any(program.exitcode for program in programs):
            raise SystemExit("an agent failed; what it said stands above")
    finally:
        for each in admitted:
            each.__exit__(None, None, None)
        endpoint.close()
    check(load, episodes)
    return [seconds for _ in programs for seconds in ended.get()]


def check(load: Load, episodes: Sequence[Recorder]) -> None:
    """Fail where a call is lost, recorded twice, or not continued."""
    for episode in episodes:
        branches = list(episode.tree.branches())
        if len(episode.tree.calls) != load.calls or len(branches) != 1:
            raise SystemExit(f"{len(episode.tree.calls)} calls in {len(branches)} branches of {load.calls} in one")


def _program(url: str, keys: Sequence[str], calls: int, ready: Any, begin: Any, ended: Any) -> None:
    """Be a process with agents in it."""

    async def agent(client: aiohttp.ClientSession) -> float:
        began = time.perf_counter()
        answers: list[str] = []
        for _ in range(calls):
            async with client.post("chat/completions", json={"model": "m", "messages": said(answers)}) as answer:
                answers.append((await answer.json())["choices"][0]["message"]["content"])
        return time.perf_counter() - began

    async def agents() -> None:
        # Each has a client of its own, as agents do: a pool of connections looks at all of them for each call.
        async with AsyncExitStack() as clients:
            each = [
                await clients.enter_async_context(
                    aiohttp.ClientSession(
                        f"{url.rstrip('/')}/",
                        headers={"authorization": f"Bearer {key}"},
                        timeout=aiohttp.ClientTimeout(total=600),
                        raise_for_status=True,
                    )
                )
                for key in keys
            ]
            ready.release()
            await asyncio.to_thread(begin.wait)
            ended.put(await asyncio.gather(*map(agent, each)))

    asyncio.run(agents())


def measure(load: Load) -> dict[str, float]:
    """Return the seconds of an agent in both ways, and by how much the second is longer: mean and of the last."""
    without, with_it = asyncio.run(in_process(load)), asyncio.run(over_http(load))
    return {
        "agents": load.agents,
        "calls": load.calls,
        "seconds of an answer": load.seconds,
        "spread": load.spread,
        "in process": fmean(without),
        "over HTTP": fmean(with_it),
        "overhead": fmean(with_it) / fmean(without) - 1,
        "last agent in process": max(without),
        "last agent over HTTP": max(with_it),
        "overhead of the last": max(with_it) / max(without) - 1,
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=512)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="until the engine answers")
    parser.add_argument("--spread", type=float, default=0.5, help="by which share of them sooner or later")
    given = parser.parse_args()
    print(json.dumps(measure(Load(given.agents, given.calls, given.seconds, given.spread)), indent=2))


if __name__ == "__main__":
    main()
