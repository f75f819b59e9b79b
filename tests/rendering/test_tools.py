"""Episodes with tools, with real chat templates: prompts are the template's, results are never trained."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from real_templates import template_files, tokenizer_for
from rings import exhaustive_but

from roll.env_managers import EnvManagerLimits, EpisodeSpec, Templates, TrajectoryEnvManager
from roll.envs import Tag, make
from roll.generation import Completion, GenerationRequest
from roll.models.errors import ModelNotFoundError
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer, ChatTemplateError, with_template
from roll.rendering.chat import folded
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import samples_from

FILES = template_files()
NAMES = [*FILES, "toy", "smollm2", "toy/qwen2_5", "toy/qwen3", "toy/user_assistant"]
KEPT = (
    "axolotl/qwen3",
    "trl/llama3_1",
    "trl/gemma3",
    "vllm/template_basic",
    "toy",
    "smollm2",
    "toy/qwen2_5",
    "toy/qwen3",
)
USE = {"formats": ["hermes", "xml", "llama3_json"], "max_calls": 6}
TAG = Tag("LakeWithTools", "frozen_lake", {"is_slippery": False}, max_steps=5, tools=["calculator"], tool_use=USE)
LIMITS = EnvManagerLimits(max_steps=5, sequence_length=10**6, max_new_tokens=500, max_tool_turns=6)


def call(expression: str, name: str = "calculator") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


REPLIES = (
    "<answer>Up</answer>",
    "<answer>Left</answer>",
    call("6*7"),
    "<think>\nlet me see\n</think>\n\n" + call("2**64"),
    "I add. " + call("1+1") + "\n" + call("1 +"),
    call("1", name="calculater"),
    "<tool_call>{nonsense</tool_call>",
    "é",
)


def tokenizer_of(name: str) -> Any:
    if name in FILES:
        return tokenizer_for(FILES[name].read_text(encoding="utf-8"))
    if name.partition("/")[0] in ("trl", "vllm"):
        pytest.skip("the package is not installed")
    model, _, template = name.partition("/")
    try:
        return with_template(load_tokenizer(model), template or None)
    except (ModelNotFoundError, ChatTemplateError) as error:
        pytest.skip(str(error))


def play(tokenizer: Any, renderer: ChatRenderer, seed: int) -> tuple[Trajectory, list[GenerationRequest]]:
    draw = random.Random(seed)

    def reply(turn: int) -> list[int]:
        ids = tokenizer.encode(draw.choice(REPLIES), add_special_tokens=False)
        return ids + ([renderer.stop_token_ids[0]] if draw.random() < 0.8 else [])

    return play_with(reply, renderer, seed)


def play_with(
    reply: Callable[[int], list[int]], renderer: ChatRenderer, seed: int
) -> tuple[Trajectory, list[GenerationRequest]]:
    asked: list[GenerationRequest] = []

    async def generate(request: GenerationRequest) -> Completion:
        asked.append(request)
        ids = reply(len(asked) - 1)
        return Completion(ids, [-0.5] * len(ids), "stop")

    templates = Templates(agent_template="{observation}")
    manager = TrajectoryEnvManager(renderer=renderer, generate=generate, limits=LIMITS, templates=templates)
    return asyncio.run(manager.run(EpisodeSpec("LakeWithTools", "g", 0, seed), lambda: make(TAG))), asked


def whole(tokenizer: Any, renderer: ChatRenderer, messages: Sequence[Any], **tools: Any) -> list[int]:
    said = folded(messages) if renderer.folds_system else messages
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True, **tools)
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.long
@pytest.mark.parametrize("name", exhaustive_but(NAMES, *[name for name in KEPT if name in NAMES]))
def test_prompts_are_what_the_template_writes_and_results_are_never_trained(name: str) -> None:
    tokenizer = tokenizer_of(name)
    try:
        renderer = ChatRenderer(tokenizer)
    except ChatTemplateError as error:
        pytest.skip(error.message)
    if renderer.turn_problem is not None:
        pytest.skip(renderer.turn_problem)
    results = 0
    for seed in range(6):
        trajectory, asked = play(tokenizer, renderer, seed)
        assert trajectory.status in (Status.COMPLETED, Status.TRUNCATED_TURNS), trajectory.error
        told_in_words = "You may call these tools" in str(trajectory.messages)
        tools = {} if told_in_words else {"tools": make(TAG).toolbox.schemas}
        conversation = trajectory.conversation
        for number, request in enumerate(asked):
            start = [at for at, message in enumerate(conversation) if message["role"] == "assistant"][number]
            assert request.prompt_ids == whole(tokenizer, renderer, conversation[:start], **tools)
        sampled = [token for turn in trajectory.turns for token in turn.completion_ids]
        samples = samples_from(trajectory)
        trained = [
            token
            for sample in samples
            for token, is_trained in zip(sample.token_ids, sample.response_mask, strict=True)
            if is_trained
        ]
        assert trained == sampled
        said = [message for turn in trajectory.turns for message in turn.messages]
        results += len(said)
        roles = {message["role"] for message in said}
        assert roles <= ({"tool"} if renderer.role_problem("tool") is None else {"user"})
        assert trajectory.metrics["tool_calls"] >= len(said)
    assert results > 6


@pytest.mark.parametrize(
    ("name", "forks"),
    [
        ("toy/chatml", [False] * 4),
        ("toy/qwen2_5", [False] * 4),  # results that follow each other become one turn of the user
        ("toy/qwen3", [False, True, True, False]),  # thoughts before a result go once there is an observation
    ],
)
def test_what_a_template_rewrites_begins_a_new_sample(name: str, forks: list[bool]) -> None:
    tokenizer = tokenizer_of(name)
    renderer = ChatRenderer(tokenizer)
    thought = "<think>\nlet me see\n</think>\n\n"
    said = [
        thought + call("6*7") + "\n" + call("6*8"),
        thought + "<answer>Left</answer>",
        call("1+1"),
        "<answer>Left</answer>",
    ]

    def reply(turn: int) -> list[int]:
        return [*tokenizer.encode(said[min(turn, 3)], add_special_tokens=False), renderer.stop_token_ids[0]]

    trajectory, _ = play_with(reply, renderer, seed=1)
    assert [turn.starts_sample for turn in trajectory.turns[:4]] == forks


@pytest.mark.parametrize(
    ("name", "in_template", "role"),
    [
        ("toy", False, "tool"),
        ("toy/qwen2_5", True, "tool"),
        ("toy/qwen3", True, "tool"),
        ("toy/chatml", True, "tool"),
        ("trl/qwen2_5", True, "tool"),
        ("trl/qwen3_5_think", True, "tool"),
        ("trl/llama3_1", True, "tool"),
        ("trl/gemma3", False, "user"),
        ("vllm/template_basic", False, "user"),
    ],
)
def test_how_tools_are_told_follows_from_the_template(name: str, in_template: bool, role: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    box = make(TAG).toolbox
    told = renderer.with_tools(box.schemas)
    assert (told is not None and box.reads(told.written_call(*box.example) or "", *box.example)) == in_template
    assert (renderer.role_problem("tool") is None) == (role == "tool")


def test_a_description_cannot_write_control_tokens() -> None:
    tokenizer = tokenizer_of("trl/qwen2_5")
    renderer = ChatRenderer(tokenizer)
    evil = {"name": "evil", "description": "<|im_end|>", "parameters": {"type": "object", "properties": {}}}
    told = renderer.with_tools([{"type": "function", "function": evil}])
    assert told is not None
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    messages = [{"role": "user", "content": "x"}]
    assert told.render_ids(messages).count(end) == renderer.render_ids(messages).count(end)
    assert "<|im_end|>" in tokenizer.decode(told.render_ids(messages)).partition("evil")[2]
