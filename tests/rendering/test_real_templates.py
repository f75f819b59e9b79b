"""Chat templates of real model families: conversations are exactly what the template writes, or they are refused.

The ruler is the template itself: Hugging Face renders the whole conversation, its tokenizer cuts the text.
"""

from __future__ import annotations

import os
import random
from functools import cache
from typing import Any

import pytest
from real_templates import template_files, tokenizer_for

from roll.models.errors import ModelNotFoundError
from roll.models.finding import BUILT_IN
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer, ChatTemplateError, ConversationError
from roll.rendering.chat import folded
from tests.rings import exhaustive_but

FILES = template_files()
SEEDS = 5
OF_EACH = [
    name
    for name in FILES
    if name.split("/")[1]
    in ("chatml", "qwen3", "llama3_1", "gemma3", "mistral_v7_tekken", "deepseekv3", "glm4moe", "phi_4")
]
"""Templates of the families that most models have."""

REFUSED = {
    "for messages of text and pictures": ("idefics3", "llava_next", "smolvlm", "template_kimi_audio"),
    "inside an assistant's turn": ("gptoss", "muse_glimmer", "command_a_rag", "command_a_tool_use"),
}
REPLIES = (
    "<answer>Up</answer>",
    "<think>\nup is free\n</think>\n\n<answer>Up</answer>",
    "up is free\n</think>\n\n<answer>Up</answer>",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    "<think>\nadd\n</think>\n\n<tool_call>\n{}\n</tool_call>",
    " padded \n",
    "",
    "é 12",
)
CONTENTS = (
    "####\n#@.#\n",
    "  padded \n",
    "",
    "{x} {{ y }} <b>&amp;",
    '{"result": 4}',
    "<tool_response>\n4\n</tool_response>",
)
TURNS = (("user",),) * 4 + (
    ("tool",),
    ("tool", "tool"),
    ("tool", "user"),
    ("user", "user"),
    ("system",),
    ("system", "user"),
)


@pytest.mark.skipif("CI" not in os.environ, reason="CI installs the packages whose templates are tried")
def test_the_templates_of_the_packages_are_there() -> None:
    assert len(FILES) > 100


@cache
def made(name: str, metaspace: bool) -> tuple[Any, ChatRenderer | ChatTemplateError]:
    """Return tokenizer and renderer of a template, which is tried out once, or why there is none."""
    tokenizer = tokenizer_for(FILES[name].read_text(encoding="utf-8"), metaspace=metaspace)
    try:
        return tokenizer, ChatRenderer(tokenizer)
    except ChatTemplateError as error:
        return tokenizer, error


def usable(name: str, *, metaspace: bool = False) -> tuple[Any, ChatRenderer]:
    """Return tokenizer and renderer of a template, or end the test where the template is rightly refused."""
    tokenizer, renderer = made(name, metaspace)
    expected = [reason for reason, stems in REFUSED.items() if name.split("/")[1].removesuffix("_training") in stems]
    if isinstance(renderer, ChatRenderer):
        assert not expected
        return tokenizer, renderer
    assert expected and expected[0] in renderer.message, renderer
    assert "actor_train.data_args.template" in renderer.fix
    pytest.skip(expected[0])


def whole(tokenizer: Any, renderer: ChatRenderer, messages: list[dict[str, str]]) -> list[int] | None:
    """Return what Hugging Face makes of a conversation; ``None`` where the template refuses it."""
    said = folded(messages) if renderer.folds_system else messages
    try:
        text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    except Exception:
        return None
    return tokenizer.encode(text, add_special_tokens=False)


def play(tokenizer: Any, renderer: ChatRenderer, seed: int) -> tuple[int, int]:
    """Hold a conversation of some turns; return how many turns were bridged and how many rendered anew."""
    draw = random.Random(seed)
    messages = [{"role": "user", "content": draw.choice(CONTENTS)}]
    if draw.random() < 0.5:
        messages.insert(0, {"role": "system", "content": "You push boxes."})
    expected = whole(tokenizer, renderer, messages)
    if expected is None:
        with pytest.raises(ConversationError, match="refuses a conversation of the roles"):
            renderer.render_ids(messages)
        return 0, 0
    tokens, bridged, forked = renderer.render_ids(messages), 0, 0
    assert tokens == expected
    for _ in range(6):
        reply = draw.choice(REPLIES)
        completion = tokenizer.encode(reply, add_special_tokens=False)
        if draw.random() < 0.7:
            completion.append(draw.choice(renderer.stop_token_ids))
        new = [{"role": role, "content": draw.choice(CONTENTS)} for role in draw.choice(TURNS)]
        bridge = renderer.next_ids(completion, new, messages if forked else None)
        messages = [*messages, {"role": "assistant", "content": renderer.decode(completion)}, *new]
        expected = whole(tokenizer, renderer, messages)
        if expected is None:
            assert bridge is None
            with pytest.raises(ConversationError, match="refuses a conversation of the roles"):
                renderer.render_ids(messages)
            break
        if bridge is None:
            tokens, forked = renderer.render_ids(messages), forked + 1
        else:
            tokens, bridged = [*tokens, *completion, *bridge], bridged + 1
        assert tokens == expected, (messages, tokenizer.decode(tokens), tokenizer.decode(expected))
    return bridged, forked


@pytest.mark.long
@pytest.mark.parametrize("name", exhaustive_but(FILES, *OF_EACH))
def test_every_conversation_has_the_tokens_of_its_whole_rendering(name: str) -> None:
    tokenizer, renderer = usable(name)
    for seed in range(SEEDS):
        play(tokenizer, renderer, seed)


@pytest.mark.long
@pytest.mark.parametrize("name", exhaustive_but(FILES, *OF_EACH))
def test_games_are_extended_in_place_unless_the_template_rewrites_what_was_said(name: str) -> None:
    """An agentic episode: the user speaks in turn with an assistant that does not think."""
    tokenizer, renderer = usable(name)
    if renderer.bridge_problem is not None:
        pytest.skip(renderer.bridge_problem)
    messages = [{"role": "system", "content": "You push boxes."}, {"role": "user", "content": "####\n#@.#"}]
    tokens = renderer.render_ids(messages)
    for _ in range(4):
        completion = [*tokenizer.encode("<answer>Up</answer>", add_special_tokens=False), renderer.stop_token_ids[0]]
        new = {"role": "user", "content": "####\n#.@#"}
        messages += [{"role": "assistant", "content": "<answer>Up</answer>"}, new]
        bridge = renderer.next_ids(completion, [new])
        assert bridge is not None
        tokens = [*tokens, *completion, *bridge]
    assert tokens == whole(tokenizer, renderer, messages)


@pytest.mark.long
@pytest.mark.parametrize("name", [*BUILT_IN])
def test_built_in_models_give_the_tokens_of_the_whole_rendering(name: str) -> None:
    try:
        tokenizer = load_tokenizer(name)
    except ModelNotFoundError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(error.message)
    renderer = ChatRenderer(tokenizer)
    turns = [play(tokenizer, renderer, seed) for seed in range(40)]
    assert sum(bridged for bridged, _ in turns) > 100


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FILES if "mistral" in name or "llama" in name or "gemma" in name])
def test_tokenizers_that_mark_the_start_of_a_text_give_the_tokens_of_the_whole_rendering(name: str) -> None:
    tokenizer, renderer = usable(name, metaspace=True)
    for seed in range(4):
        play(tokenizer, renderer, seed)
