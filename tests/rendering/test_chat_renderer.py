from __future__ import annotations

import re
import subprocess
import sys

import pytest
from chat_tokenizers import CHATML, COUNTER, LLAMA_3, NO_CLOSE, NO_SYSTEM, NUMBERED, PLAIN, QWEN_3, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.rendering import ChatRenderer

SYSTEM = {"role": "system", "content": "You push boxes."}
USER = {"role": "user", "content": "#####\n#@$.#\n#####\n"}
NEXT = {"role": "user", "content": "####\n#@.#\n"}
ANSWER = "<answer>Up</answer>"
THOUGHT = "<think>\nup is free\n</think>\n\n<answer>Up</answer>"

TOKENIZERS = {
    "chatml": make_tokenizer(CHATML),
    "llama": make_tokenizer(LLAMA_3, eos="<|eot|>"),
    "qwen": make_tokenizer(QWEN_3),
    "no_close": make_tokenizer(NO_CLOSE, eos="<|endoftext|>"),
}
RENDERERS = {name: ChatRenderer(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def encode(name: str, text: str) -> list[int]:
    return TOKENIZERS[name].encode(text, add_special_tokens=False)


def template_text(name: str, messages: list[dict[str, str]]) -> str:
    return TOKENIZERS[name].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_first_prompt_is_what_the_tokenizer_makes_of_the_template(name: str) -> None:
    messages = [SYSTEM, USER, {"role": "assistant", "content": ANSWER}, NEXT]
    assert RENDERERS[name].initial_ids(messages) == encode(name, template_text(name, messages))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("content", ["####\n#@.#\n", "  padded \n", "", "{x} {{ y }} [INST] <b>", "user\nassistant\n"])
def test_extended_prompt_is_the_template_rendering_of_the_whole_conversation(
    name: str, stopped: bool, content: str
) -> None:
    renderer = RENDERERS[name]
    messages = [SYSTEM, USER]
    tokens = renderer.initial_ids(messages)
    for _ in range(3):
        completion = encode(name, ANSWER) + ([renderer.stop_token_ids[0]] if stopped else [])
        new = {"role": "user", "content": content}
        bridge = renderer.next_ids(completion, [new])
        assert bridge is not None
        messages += [{"role": "assistant", "content": ANSWER}, new]
        tokens += completion + bridge
        assert tokens == encode(name, template_text(name, messages))


def test_several_new_messages_are_bridged_at_once() -> None:
    renderer = RENDERERS["chatml"]
    completion = [*encode("chatml", ANSWER), renderer.stop_token_ids[0]]
    new = [{"role": "tool", "content": "4"}, NEXT]
    whole = [USER, {"role": "assistant", "content": ANSWER}, *new]
    bridge = renderer.next_ids(completion, new)
    assert renderer.initial_ids([USER]) + completion + (bridge or []) == renderer.render_ids(whole)


def test_what_was_bridged_before_is_bridged_alike_and_belongs_to_the_caller() -> None:
    renderer = ChatRenderer(TOKENIZERS["chatml"])
    completion = [*encode("chatml", ANSWER), renderer.stop_token_ids[0]]
    first = renderer.next_ids(completion, [NEXT])
    assert first is not None
    expected = list(first)
    first.append(0)
    assert renderer.next_ids(tuple(completion), [dict(NEXT)]) == expected
    assert renderer.next_ids(completion[:-1], [NEXT]) == [renderer.stop_token_ids[0], *expected]
    tool = renderer.next_ids(completion, [{**NEXT, "role": "tool"}])
    assert tool != expected and renderer.next_ids(completion, [USER]) not in (expected, tool)
    long = {"role": "user", "content": NEXT["content"] * 1000}
    whole = renderer.render_ids([USER, {"role": "assistant", "content": ANSWER}, long])
    assert renderer.render_ids([USER]) + completion + (renderer.next_ids(completion, [long]) or []) == whole


def test_thinking_that_the_template_drops_forks_and_other_turns_do_not() -> None:
    renderer = RENDERERS["qwen"]
    stop = renderer.stop_token_ids[0]
    assert renderer.bridge_problem is None
    assert renderer.next_ids([*encode("qwen", THOUGHT), stop], [NEXT]) is None
    assert renderer.next_ids([*encode("qwen", ANSWER), stop], [NEXT]) is not None
    # Cut off inside its thought: nothing to drop yet, so the template leaves it as it is.
    assert renderer.next_ids(encode("qwen", "<think>\nup is"), [NEXT]) is not None


def test_thinking_stays_where_the_template_keeps_it() -> None:
    renderer = RENDERERS["chatml"]
    assert renderer.next_ids([*encode("chatml", THOUGHT), renderer.stop_token_ids[0]], [NEXT]) is not None


def test_text_that_the_template_trims_forks() -> None:
    renderer = RENDERERS["llama"]
    assert renderer.next_ids([*encode("llama", ANSWER + " \n"), renderer.stop_token_ids[0]], [NEXT]) is None


def test_turn_ended_by_another_stop_token_than_the_templates_forks() -> None:
    tokenizer = make_tokenizer(CHATML, eos="<|endoftext|>")
    renderer = ChatRenderer(tokenizer)
    close, eos = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>"))
    assert renderer.stop_token_ids == (close, eos)
    answer = tokenizer.encode(ANSWER, add_special_tokens=False)
    assert renderer.next_ids([*answer, eos], [NEXT]) is None
    assert renderer.next_ids([*answer, close], [NEXT]) is not None
    assert renderer.decode([*answer, eos]) == renderer.decode([*answer, close]) == renderer.decode(answer) == ANSWER


def test_keep_history_extends_where_the_template_would_rewrite() -> None:
    tokenizer = TOKENIZERS["qwen"]
    strict = ChatRenderer(tokenizer, enable_thinking=False)
    assert strict.bridge_problem is not None and "history" in strict.bridge_problem
    keep = ChatRenderer(tokenizer, enable_thinking=False, history="keep")
    completion = [*encode("qwen", THOUGHT), keep.stop_token_ids[0]]
    assert strict.next_ids(completion, [NEXT]) is None
    bridge = keep.next_ids(completion, [NEXT])
    assert bridge is not None
    expected = "\n<|im_start|>user\n" + NEXT["content"] + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert keep.decode(bridge) == expected


@pytest.mark.parametrize(
    ("template", "reason"), [(COUNTER, "unlike|depends"), (NUMBERED, "depends on more"), (PLAIN, "control token")]
)
def test_templates_that_cannot_be_extended_are_recognised(template: str, reason: str) -> None:
    tokenizer = make_tokenizer(template)
    renderer = ChatRenderer(tokenizer)
    assert renderer.bridge_problem is not None
    assert re.search(reason, renderer.bridge_problem)
    completion = tokenizer.encode(ANSWER, add_special_tokens=False)
    assert renderer.next_ids(completion, [NEXT]) is None
    text = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert renderer.render_ids([USER]) == tokenizer.encode(text, add_special_tokens=False)


def test_template_without_system_messages_still_bridges() -> None:
    assert ChatRenderer(make_tokenizer(NO_SYSTEM)).bridge_problem is None


def test_tokenizer_without_template_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="no chat template.*instruct"):
        ChatRenderer(make_tokenizer(None))


CONTROL = [
    "<|im_end|>",
    "<|im_start|>",
    "<|eot|>",
    "<|end|>",
    "\U0010fffd",
    "<|",
    "\n",
    "#",
    "é",
    "</think>",
    "assistant",
]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(CONTROL) | st.text(max_size=4), max_size=8))
def test_observation_cannot_inject_control_tokens(name: str, parts: list[str]) -> None:
    renderer, tokenizer = RENDERERS[name], TOKENIZERS[name]
    content = "".join(parts)
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    completion = [*encode(name, ANSWER), renderer.stop_token_ids[0]]

    def controls(message: str) -> list[list[int]]:
        new = {"role": "user", "content": message}
        bridge = renderer.next_ids(completion, [new])
        assert bridge is not None
        return [[i for i in ids if i in special] for ids in (renderer.render_ids([SYSTEM, new]), bridge)]

    assert controls(content) == controls("harmless")
    shown = content.strip() if name == "llama" else content
    assert tokenizer.decode(renderer.render_ids([{"role": "user", "content": content}])) == template_text(
        name, [{"role": "user", "content": shown}]
    )


def test_unflagged_control_tokens_of_the_template_cannot_be_injected_either() -> None:
    tokenizer = make_tokenizer(CHATML, flagged=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    renderer = ChatRenderer(tokenizer)
    assert renderer.bridge_problem is None
    ids = renderer.render_ids([{"role": "user", "content": "a<|im_end|>b<answer>"}])
    assert ids.count(end) == 1
    assert tokenizer.convert_tokens_to_ids("<answer>") in ids


def test_a_spelled_out_control_token_in_a_reply_stays_text_when_the_history_is_rendered_anew() -> None:
    renderer = RENDERERS["qwen"]
    end = TOKENIZERS["qwen"].convert_tokens_to_ids("<|im_end|>")
    reply = {"role": "assistant", "content": "<think>x</think><|im_end|>ok"}
    ids = renderer.render_ids([USER, reply, NEXT])
    assert ids.count(end) == 3
    assert "x" not in renderer.decode(ids).split("assistant\n")[1].split("ok")[0].replace("<|im_end|>", "")


def test_the_callers_tokenizer_is_left_as_it_was() -> None:
    tokenizer = make_tokenizer(CHATML)
    ChatRenderer(tokenizer).render_ids([{"role": "user", "content": "<|im_end|>"}])
    assert tokenizer.backend_tokenizer.encode_special_tokens is False
    assert len(tokenizer.encode("<|im_end|>", add_special_tokens=False)) == 1


@pytest.mark.processes
def test_importing_the_renderer_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, roll.rendering; print(sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


class TestAgainstRenderersLibrary:
    """The hand-written Qwen3 renderer of the ``renderers`` package as an independent witness."""

    library = pytest.importorskip("renderers")
    conversations = [
        [USER],
        [SYSTEM, USER],
        [SYSTEM, USER, {"role": "assistant", "content": ANSWER}, NEXT],
        [{"role": "user", "content": "\n\nleading lines {x}\n"}],
    ]

    @pytest.mark.parametrize("messages", conversations)
    @pytest.mark.parametrize("thinking", [True, False])
    def test_first_prompts_agree(self, messages: list[dict[str, str]], thinking: bool) -> None:
        if not thinking and len(messages) > 2:
            pytest.skip("the library keeps the empty thought in the history, the template does not")
        witness = self.library.Qwen3Renderer(
            TOKENIZERS["qwen"], self.library.Qwen3RendererConfig(enable_thinking=thinking)
        )
        ours = ChatRenderer(TOKENIZERS["qwen"], enable_thinking=thinking)
        assert ours.initial_ids(messages) == witness.render_ids(messages, add_generation_prompt=True)

    @pytest.mark.parametrize("stopped", [True, False])
    @pytest.mark.parametrize("thinking", [True, False])
    @pytest.mark.parametrize("reply", [ANSWER, THOUGHT, ""])
    @pytest.mark.parametrize("content", ["####\n#@.#\n", "\n leading", "", "<answer> {x}"])
    def test_bridges_agree(self, stopped: bool, thinking: bool, reply: str, content: str) -> None:
        config = self.library.Qwen3RendererConfig(enable_thinking=thinking, thinking_retention="all")
        witness = self.library.Qwen3Renderer(TOKENIZERS["qwen"], config)
        ours = ChatRenderer(TOKENIZERS["qwen"], enable_thinking=thinking, history="keep")
        prompt = ours.initial_ids([SYSTEM, USER])
        completion = encode("qwen", reply) + ([ours.stop_token_ids[0]] if stopped else [])
        new = [{"role": "user", "content": content}]
        theirs = witness.bridge_to_next_turn(prompt, completion, new)
        assert theirs is not None
        assert prompt + completion + (ours.next_ids(completion, new) or []) == theirs.token_ids
