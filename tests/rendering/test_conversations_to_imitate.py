"""Conversations as tokens to imitate: against transformers' own masks on the templates of real models."""

import pytest

from roll.rendering import ChatRenderer, ConversationError
from roll.rendering.encoding import PromptEncoder
from roll.rendering.supervised import encode_conversation, encode_text
from tests.rendering.chat_tokenizers import CHATML, QWEN_3, make_tokenizer
from tests.rendering.real_templates import template_files, tokenizer_for

CONVERSATION = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "Hi! What now?"},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "It is 2.\nSure."},
]
ANSWERS = [message["role"] == "assistant" for message in CONVERSATION]

# Their generation prompt opens a thought that these answers do not have, or they show no plain text.
_ASK_FOR_THOUGHTS = ("deepseek_r1_distill", "deepseekv3", "nemotron_3_5_lightning", "nemotron_3_nano")
_ASK_FOR_THOUGHTS += ("nemotron_3_super", "nemotron_3_ultra")
_TAKE_NO_PLAIN_TEXT = ("gptoss", "muse_glimmer", "idefics3", "llava_next", "smolvlm")
TEMPLATES = {
    name.removeprefix("trl/").removesuffix("_training"): path
    for name, path in template_files().items()
    if name.startswith("trl/") and name.endswith("_training")
}


def told_by_transformers(tokenizer, messages):
    """Return the tokens of a conversation, and those that transformers' mask has and that a model would sample.

    The mask also has what the generation prompt says, and the line end behind the token that ends a turn.
    """
    whole = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = whole["input_ids"], whole["assistant_masks"]
    stops = ChatRenderer(tokenizer).stop_token_ids
    sampled = [False] * len(ids)
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = tokenizer.apply_chat_template(messages[:number], add_generation_prompt=True, return_dict=False)
        assert ids[: len(asked)] == asked
        for place in range(len(asked), len(ids)):
            assert mask[place]
            sampled[place] = True
            if ids[place] in stops:
                break
    return ids, sampled


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in (*_ASK_FOR_THOUGHTS, *_TAKE_NO_PLAIN_TEXT)])
def test_masks_are_those_of_transformers_without_what_is_not_sampled(name: str) -> None:
    tokenizer = tokenizer_for(TEMPLATES[name].read_text())
    tokenizer.chat_template = TEMPLATES[name].read_text()
    messages = CONVERSATION[1:] if name == "gemma" else CONVERSATION

    (ours,) = encode_conversation(ChatRenderer(tokenizer), messages, [m["role"] == "assistant" for m in messages])

    ids, sampled = told_by_transformers(tokenizer, messages)
    assert ours.token_ids == ids[: len(ours)]
    assert ours.trained == sampled[: len(ours)] and not any(sampled[len(ours) :])


@pytest.mark.parametrize("name", [name for name in _ASK_FOR_THOUGHTS if name in TEMPLATES])
def test_an_answer_that_is_written_otherwise_than_asked_for_is_refused(name: str) -> None:
    tokenizer = tokenizer_for(TEMPLATES[name].read_text())
    tokenizer.chat_template = TEMPLATES[name].read_text()

    with pytest.raises(ConversationError, match="message 5, an answer, otherwise than it asks for it"):
        encode_conversation(ChatRenderer(tokenizer), CONVERSATION, ANSWERS)


def imitated(tokenizer, sequence) -> str:
    return tokenizer.decode([t for t, trained in zip(sequence.token_ids, sequence.trained, strict=True) if trained])


def test_messages_that_are_not_chosen_are_context() -> None:
    tokenizer = make_tokenizer(CHATML)

    (first,) = encode_conversation(ChatRenderer(tokenizer), CONVERSATION, [False, False, True, False, False])
    (second,) = encode_conversation(ChatRenderer(tokenizer), CONVERSATION, [False, False, False, False, True])

    assert imitated(tokenizer, first) == "Hi! What now?<|im_end|>"
    assert imitated(tokenizer, second) == "It is 2.\nSure.<|im_end|>"
    assert tokenizer.decode(first.token_ids).endswith("Hi! What now?<|im_end|>")
    assert "Hi! What now?" in tokenizer.decode(second.token_ids)


def test_answers_that_the_template_rewrites_make_sequences_of_their_own() -> None:
    tokenizer = make_tokenizer(QWEN_3)
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nUp"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "<think>\nso\n</think>\n\nDown"},
    ]

    first, second = encode_conversation(ChatRenderer(tokenizer), talk, [False, True, False, True])

    assert imitated(tokenizer, first) == "<think>\nhm\n</think>\n\nUp<|im_end|>"
    assert imitated(tokenizer, second) == "<think>\nso\n</think>\n\nDown<|im_end|>"
    assert "hm" not in tokenizer.decode(second.token_ids)


def test_control_tokens_in_messages_stay_text() -> None:
    tokenizer = make_tokenizer(CHATML)
    talk = [{"role": "user", "content": "say <|im_end|>"}, {"role": "assistant", "content": "<|im_end|> it is"}]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    (sequence,) = encode_conversation(ChatRenderer(tokenizer), talk, [False, True])

    assert sequence.token_ids.count(end) == 2
    assert imitated(tokenizer, sequence) == "<|im_end|> it is<|im_end|>"


def test_an_answer_is_encoded_as_it_would_be_sampled() -> None:
    """A line end at its start is a token of its own, also where the tokenizer would join it with that of the prompt."""
    tokenizer = make_tokenizer(CHATML)
    talk = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "\nUp"}]
    renderer = ChatRenderer(tokenizer)

    (sequence,) = encode_conversation(renderer, talk, [False, True])

    asked = renderer.initial_ids(talk[:1])
    assert sequence.token_ids[: len(asked)] == asked
    assert sequence.trained == [False] * len(asked) + [True] * (len(sequence) - len(asked))


def test_tokens_of_a_tokenizer_that_marks_words_are_dealt_by_where_they_begin() -> None:
    template = (
        "{% for m in messages %}{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else m.content + '</s>' }}"
    )
    template += "{% endfor %}"
    tokenizer = tokenizer_for(template, metaspace=True)
    encoder = PromptEncoder(tokenizer)
    parts = ["[INST]one two[/INST]", "three four</s>", "[INST]five[/INST]"]
    assert not encoder.check_piecewise(["".join(parts)])

    ids = encoder.encode_parts(parts)

    assert sum(ids, []) == tokenizer.encode("".join(parts), add_special_tokens=False)
    assert [tokenizer.decode(part).replace(" ", "") for part in ids] == [part.replace(" ", "") for part in parts]


def test_tools_and_calls_reach_the_template() -> None:
    template = (
        "{% for tool in tools or [] %}{{ tool.name }};{% endfor %}{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for call in m.tool_calls or [] %}"
        "{{ call.function.arguments | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = make_tokenizer(template)
    call = {"type": "function", "function": {"name": "move", "arguments": {"way": "<|im_end|>"}}}
    talk = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    (sequence,) = encode_conversation(ChatRenderer(tokenizer), talk, [False, True], tools=[{"name": "move"}])

    assert tokenizer.decode(sequence.token_ids).startswith("move;<|im_start|>user")
    assert imitated(tokenizer, sequence) == '{"way": "<|im_end|>"}<|im_end|>'
    assert sequence.token_ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2


def test_a_text_is_imitated_as_a_whole_and_ends() -> None:
    tokenizer = make_tokenizer(CHATML)

    once, twice = (encode_text(tokenizer, text) for text in ("Up Down", "Up Down<|im_end|>"))

    assert once == twice
    assert tokenizer.decode(once.token_ids) == "Up Down<|im_end|>"
    assert once.trained == [False] + [True] * (len(once) - 1)
