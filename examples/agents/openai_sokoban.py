"""A loop over OpenAI's own client that plays Sokoban: it knows an address, a key, and nothing of training."""

from __future__ import annotations

from openai import AsyncOpenAI

from roll.envs import make
from roll.envs.agent import AgentTask
from roll.gateway import AgentClient


async def play(task: AgentTask, client: AgentClient) -> dict[str, float]:
    """Play one level, and return what it earned."""
    env = make("SimpleSokoban")
    observation, _ = env.reset(seed=task.seed)
    said, earned, over = [{"role": "system", "content": "Solve the Sokoban puzzle."}], 0.0, False
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        while not over:
            said.append({"role": "user", "content": observation})
            answer = await policy.chat.completions.create(model=client.model, messages=said)
            text = answer.choices[0].message.content or ""
            said.append({"role": "assistant", "content": text})
            observation, reward, terminated, truncated, info = env.step(text)
            earned, over = earned + reward, terminated or truncated
    return {"reward": earned, "success": info["metrics"]["success"]}
