"""Engine workers (``actor_infer.worker_cls``) whose policy calls a tool and answers with what it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from roll.generation import Completion, GenerationRequest
from roll.models.loading import load_tokenizer
from roll.workers.engine import EngineWorker


class CallsACalculator(EngineWorker):
    """Speaks the form of Hermes; every second member of a group answers 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        engine: Any = self._engine
        honest, tokenizer = engine.generate, load_tokenizer("toy_math")

        async def generate(request: GenerationRequest) -> Completion:
            turn = re.search(r"/(\d+)/\d+$", request.request_id)
            if turn is None or request.request_id.startswith("weight-check"):
                return await honest(request)
            said = await honest(replace(request, sampling=replace(request.sampling, max_new_tokens=1)))
            prompt = tokenizer.decode(request.prompt_ids)
            results = re.findall(r"<\|im_start\|>tool\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
            if results:
                text = f"<answer>{'0' if int(turn[1]) % 2 else results[-1]}</answer>"
            else:
                call = self.call(re.findall(r"\d+(?: ?[-+*] ?\d+)+", prompt)[-1])
                text = f"<tool_call>{json.dumps(call)}</tool_call>"
            ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            return replace(said, token_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="stop")

        engine.generate = generate

    def call(self, expression: str) -> dict[str, Any]:
        """Return the call that finds what an expression is."""
        return {"name": "calculator", "arguments": {"expression": expression}}


class CallsPython(CallsACalculator):
    """Writes a program instead, which fails where it sees the files of this process."""

    def call(self, expression: str) -> dict[str, Any]:
        program = f"import os\nassert not os.path.exists({__file__!r})\n{expression}"
        return {"name": "python", "arguments": {"code": program}}
