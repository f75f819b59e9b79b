"""How a run writes conversations with its policy."""

from __future__ import annotations

from typing import Any

import pytest

from roll.config import AgenticConfig, EvaluationConfig, RLVRConfig
from roll.workers.loading import load_text

THOUGHT = "<think>\nRight.\n</think>\n\nUp"
FIRST, NEXT = {"role": "user", "content": "Where to?"}, {"role": "user", "content": "And now?"}


def data_args(**keys: Any) -> dict[str, Any]:
    return {"data_args": {"template": "qwen3", **keys}}


@pytest.mark.parametrize(
    ("keys", "end", "forks"),
    [
        ({}, "<|im_start|>assistant\n", True),
        ({"history": "keep"}, "<|im_start|>assistant\n", False),
        ({"enable_thinking": False, "history": "keep"}, "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
    ],
)
def test_thinking_and_history_are_as_the_configuration_says(keys: dict[str, Any], end: str, forks: bool) -> None:
    text = load_text(AgenticConfig(pretrain="toy", actor_train=data_args(**keys)))
    prompt = text.renderer.render_ids([FIRST])
    assert text.tokenizer.decode(prompt).endswith(end)
    said = [*text.tokenizer.encode(THOUGHT, add_special_tokens=False), text.renderer.stop_token_ids[0]]
    assert (text.renderer.next_ids(said, [NEXT]) is None) == forks


def test_an_evaluation_thinks_as_its_validation_data_say_and_else_as_in_training() -> None:
    training = data_args(enable_thinking=False)
    assert EvaluationConfig(actor_train=training).conversation_args.enable_thinking is False
    own = EvaluationConfig(actor_train=training, validation={"data_args": {"enable_thinking": True}})
    assert own.conversation_args.enable_thinking is True and own.chat_template == "qwen3"


def test_a_run_does_not_evaluate_with_another_way_of_thinking_than_it_learns() -> None:
    config = RLVRConfig(actor_train=data_args(), validation={"data_args": {"enable_thinking": False}})
    problems = {problem.path: problem for problem in config.problems()}
    assert "enable_thinking=None" in problems["validation.data_args.enable_thinking"].message
    assert "validation.data_args.enable_thinking" not in {
        problem.path for problem in RLVRConfig(actor_train=data_args(enable_thinking=False), validation={}).problems()
    }
