"""A tool-calling agent of smolagents that does a sum; where it calls nothing, it is asked for its final answer.

It runs in a process and an environment of its own. Its prompts are short, for a policy that reads bytes.
"""

from __future__ import annotations

import json
import os
import re

from smolagents import EMPTY_PROMPT_TEMPLATES, OpenAIServerModel, ToolCallingAgent, tool

task = json.loads(os.environ["ROLL_TASK"])


@tool
def add(first: int, second: int) -> int:
    """Add two numbers.

    Args:
        first: A number.
        second: Another one.
    """
    return first + second


model = OpenAIServerModel(
    os.environ["OPENAI_MODEL"], os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
prompts = {
    **EMPTY_PROMPT_TEMPLATES,
    "system_prompt": "Answer with final_answer.",
    "final_answer": {"pre_messages": "You did not call final_answer.", "post_messages": "Answer: {{task}}"},
}
agent = ToolCallingAgent([add], model, prompt_templates=prompts, max_steps=2, verbosity_level=0)
answer = str(agent.run(task["prompt"]))
numbers = re.findall(r"-?\d+", answer)
with open(os.environ["ROLL_REWARD"], "w", encoding="utf-8") as file:
    json.dump({"reward": float(numbers[-1:] == [task["ground_truth"]]), "answer": answer}, file)
