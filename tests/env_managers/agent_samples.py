"""Agent programs, good and bad; tags name them as ``agent_samples:…``."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from roll.envs.agent import AgentTask
from roll.gateway import AgentClient


async def good(task: AgentTask, client: AgentClient) -> dict[str, Any]:
    said: list[Any] = [{"role": "user", "content": f"What of {task.row.get('question', task.seed)}?"}]
    for _ in range(3):
        answer = (await client.chat(said))["choices"][0]["message"]
        said += [answer, {"role": "user", "content": "And then?"}]
    return {"reward": 0.5, "success": 1.0, "words": 3, "answer": answer["content"]}


def plain(task: AgentTask, client: AgentClient) -> float:
    """Knows nothing but an address and a key, and blocks."""
    import openai

    asked = openai.OpenAI(base_url=client.base_url, api_key=client.api_key)
    answer = asked.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    return float(answer.choices[0].message.content == "fine")


async def several(task: AgentTask, client: AgentClient) -> float:
    answers = await asyncio.gather(*(client.chat(f"Part {part}") for part in range(3)))
    await client.chat("Together: " + " ".join(answer["choices"][0]["message"]["content"] for answer in answers))
    return 1.0


async def crashes(task: AgentTask, client: AgentClient) -> float:
    await client.chat("Hello")
    raise KeyError("no such tool")


async def exits(task: AgentTask, client: AgentClient) -> float:
    await client.chat("Hello")
    raise SystemExit(3)


async def waits(task: AgentTask, client: AgentClient) -> float:
    await client.chat("Hello")
    await asyncio.sleep(60)
    return 1.0


async def blocks(task: AgentTask, client: AgentClient) -> float:
    await client.chat("Hello")
    time.sleep(2)
    return 1.0


async def silent(task: AgentTask, client: AgentClient) -> float:
    return 1.0


async def nothing(task: AgentTask, client: AgentClient) -> None:
    await client.chat("Hello")


async def no_number(task: AgentTask, client: AgentClient) -> float:
    await client.chat("Hello")
    return float("nan")


async def greedy_for_calls(task: AgentTask, client: AgentClient) -> float:
    for number in range(9):
        try:
            await client.chat(f"Call {number}")
        except Exception as error:
            return -1.0 if "may make" in str(error) else 1.0
    return 1.0


async def talks_too_much(task: AgentTask, client: AgentClient) -> float:
    await client.chat("Hello")
    try:
        await client.chat("word " * 5000)
    except Exception:
        return 0.25
    return 1.0


async def leaves_early(task: AgentTask, client: AgentClient) -> float:
    await client.chat("Hello")
    asyncio.get_running_loop().create_task(client.chat("Nobody waits for this"))
    await asyncio.sleep(0.05)
    return 1.0


number = 5
