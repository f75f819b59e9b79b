"""An agent of Pydantic AI that does a sum: it asks again where an answer has no number.

It runs in a process and an environment of its own, and finds policy, task and place for the reward in its environment.
"""

from __future__ import annotations

import json
import os
import re

from pydantic_ai import Agent, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

task = json.loads(os.environ["ROLL_TASK"])
# The provider finds OPENAI_BASE_URL and OPENAI_API_KEY by itself.
agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"], provider=OpenAIProvider()), retries=1)


@agent.output_validator
def number_of(answer: str) -> str:
    """Return the last number of an answer."""
    numbers = re.findall(r"-?\d+", answer)
    if not numbers:
        raise ModelRetry("Answer with a number.")
    return numbers[-1]


try:
    answer = agent.run_sync(task["prompt"]).output
except UnexpectedModelBehavior:  # no number, and none when it was asked again
    answer = ""
with open(os.environ["ROLL_REWARD"], "w", encoding="utf-8") as file:
    json.dump({"reward": float(answer == task["ground_truth"]), "answer": answer}, file)
