"""Chat templates by name: what they write is what the templates of the models write that they are named after."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from real_templates import template_files, tokenizer_for

from roll.rendering import ChatRenderer, ChatTemplateError, with_template
from roll.rendering.templates import NAMED, template_text

FILES = template_files()
THOUGHT = "<think>\nup is free\n</think>\n\n<answer>Up</answer>"
NAMESAKES = {
    "chatml": "axolotl/chatml",
    "qwen2_5": "trl/qwen2_5",
    "qwen2-vl": "axolotl/qwen2_vl",
    "qwen3": "trl/qwen3",
    "llama3": "trl/llama3",
}


def conversations() -> list[list[dict[str, str]]]:
    """Return conversations with and without system message, of turns by user and tools, thinking and not."""
    found = []
    turns = [("user",), ("tool", "tool"), ("tool", "user")]
    contents = itertools.cycle(["####\n#@.#\n", "  padded \n", "", "<tool_response>\n4\n</tool_response>"])
    for system, first, second, reply in itertools.product(
        (True, False), turns, turns, (THOUGHT, "<answer>Up</answer>")
    ):
        messages = [{"role": "system", "content": "rules"}] if system else []
        messages.append({"role": "user", "content": "begin"})
        for roles in (first, second):
            messages.append({"role": "assistant", "content": reply})
            messages += [{"role": role, "content": next(contents)} for role in roles]
        found.append(messages)
        found.append([*messages, {"role": "assistant", "content": THOUGHT}])
    return found


@pytest.mark.parametrize("name", NAMESAKES)
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
def test_a_named_template_writes_what_that_of_the_model_writes(name: str, options: dict[str, Any]) -> None:
    if NAMESAKES[name] not in FILES:
        pytest.skip(f"{NAMESAKES[name]} is not installed")
    theirs = tokenizer_for(FILES[NAMESAKES[name]].read_text(encoding="utf-8"))
    ours = with_template(theirs, name)
    for messages in conversations():
        if name == "llama3" and messages[0]["role"] == "tool":
            continue
        for generate in (True, False):
            asked = {"tokenize": False, "add_generation_prompt": generate, **options}
            assert ours.apply_chat_template(messages, **asked) == theirs.apply_chat_template(messages, **asked)


SCHEMAS = [
    {"type": "function", "function": {"name": name, "description": "Adds <numbers> & é.", "parameters": parameters}}
    for name, parameters in (("add", {"type": "object", "properties": {"a": {"type": "number"}}}), ("now", {}))
]


def with_calls() -> list[list[dict[str, Any]]]:
    """Return the conversations with calls in the assistant's turns that tools answer: beside words, and alone."""
    found = []
    arguments = itertools.cycle([{"a": 1}, {"a": "é <b>", "c": [1, None]}, {}])
    for number, conversation in enumerate(conversations()):
        messages: list[dict[str, Any]] = [dict(message) for message in conversation]
        for message, following in itertools.pairwise(messages):
            if message["role"] == "assistant" and following["role"] == "tool":
                function = {"name": "add", "arguments": next(arguments)}
                message["tool_calls"] = [{"type": "function", "function": function}]
                message["content"] = "" if number % 3 == 0 else message["content"]
        found.append(messages)
    return found


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3"])
def test_a_named_template_tells_of_tools_and_calls_as_that_of_the_model(name: str) -> None:
    """Llama 3 was told of no tools: there it is 3.1, less what that says of the date before the first question."""
    namesake = {"llama3": "trl/llama3_1"}.get(name, NAMESAKES[name])
    if namesake not in FILES:
        pytest.skip(f"{namesake} is not installed")
    theirs = tokenizer_for(FILES[namesake].read_text(encoding="utf-8"))
    ours = with_template(theirs, name)
    for messages in with_calls():
        for tools in (SCHEMAS, None) if name != "llama3" else (SCHEMAS,):
            for generate in (True, False):
                asked = {"tokenize": False, "add_generation_prompt": generate, "tools": tools}
                mine, peer = (each.apply_chat_template(messages, **asked) for each in (ours, theirs))
                if name == "llama3":
                    mine, peer = (each[each.index("<|start_header_id|>user") :] for each in (mine, peer))
                assert mine == peer


@pytest.mark.parametrize("name", NAMED)
def test_every_named_template_holds_games_in_place(name: str) -> None:
    tokenizer = tokenizer_for(template_text(name))
    renderer = ChatRenderer(with_template(tokenizer, name))
    assert renderer.bridge_problem is None and renderer.turn_problem is None and not renderer.folds_system


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "rules\n\nbegin<answer>Up</answer></s>go on"),
        ("user_assistant", "rules\n\nUser: begin\n\nAssistant:<answer>Up</answer></s>\n\nUser: go on\n\nAssistant:"),
    ],
)
def test_templates_for_base_models_are_text_and_the_end_of_the_sequence(name: str, expected: str) -> None:
    tokenizer = with_template(tokenizer_for(""), name)
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "begin"},
        {"role": "assistant", "content": "<answer>Up</answer>"},
        {"role": "user", "content": "go on"},
    ]
    assert tokenizer.decode(ChatRenderer(tokenizer).render_ids(messages)) == expected


def test_a_template_is_native_a_name_a_text_or_a_file_and_leaves_the_tokenizer_alone(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(CHATML)
    assert with_template(tokenizer, None) is tokenizer and with_template(tokenizer, "native") is tokenizer
    text = "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}!"
    path = tmp_path / "mine.jinja"
    path.write_text(text)
    for template in (text, str(path)):
        changed = with_template(tokenizer, template)
        assert changed.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"
    assert tokenizer.chat_template == CHATML


@pytest.mark.parametrize(
    ("template", "message", "fix"),
    [
        ("qwen25", "is no known chat template and no file", "did you mean qwen2_5?"),
        ("no/such.jinja", "is no known chat template and no file", "plain, user_assistant"),
        ("{% for m in messages %}{{ m.content }}", "is no valid Jinja template", "correct it"),
        ("llama3", "the tokenizer has no token <|start_header_id|>", "plain or user_assistant"),
    ],
)
def test_what_cannot_be_a_template_says_what_to_write(template: str, message: str, fix: str) -> None:
    with pytest.raises(ChatTemplateError) as raised:
        with_template(make_tokenizer(CHATML), template)
    assert message in raised.value.message and fix in raised.value.fix
