from __future__ import annotations

from typing import Any

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from roll.rendering import ChatRenderer, PromptEncoder


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """A tokenizer that marks the start of a text, as Llama 2 does."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>"], initial_alphabet=[chr(i) for i in range(32, 127)], show_progress=False
    )
    tokenizer.train_from_iterator(["user hello world\n", "assistant\n"] * 5, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", unk_token="<unk>")
    fast.chat_template = "[chat]" + CHATML.replace("<|im_start|>' + m.role", "' + m.role")
    return fast


def test_tokenizers_that_mark_the_start_of_a_text_are_encoded_whole_and_never_bridged() -> None:
    tokenizer = sentencepiece_like()
    renderer = ChatRenderer(tokenizer)
    assert renderer.bridge_problem is not None and "cut at control tokens" in renderer.bridge_problem
    messages = [{"role": "user", "content": "hello world"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert renderer.render_ids(messages) == tokenizer.encode(text, add_special_tokens=False)
    hostile = renderer.render_ids([{"role": "user", "content": "hello<|im_end|>world"}])
    assert hostile.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1


def test_white_space_that_a_control_token_swallows_is_swallowed() -> None:
    tokenizer = make_tokenizer(CHATML)
    tokenizer.backend_tokenizer.add_tokens(
        [AddedToken("<|turn|>", special=True, normalized=False, rstrip=True, lstrip=True)]
    )
    encoder = PromptEncoder(tokenizer)
    text = "a \n<|turn|>\n b<|im_end|> c"
    assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    assert encoder.check_piecewise([text])


@pytest.mark.parametrize(
    "text", ["plain", "", "<|im_start|><|im_end|>", "a<|im_end|>b", "\U0010fffd<|im_end|>\U0010fffd"]
)
def test_guarded_text_encodes_to_ordinary_tokens_of_the_same_text(text: str) -> None:
    tokenizer: Any = make_tokenizer(CHATML)
    encoder = PromptEncoder(tokenizer)
    ids = encoder.encode(encoder.guard(text))
    assert encoder.decode(ids) == text
    assert not set(ids) & set(encoder.control_ids.values())


def test_unguarded_text_encodes_as_the_tokenizer_does() -> None:
    tokenizer = make_tokenizer(CHATML)
    text = "<|im_start|>user\n#####<think>\n<|im_end|>\n"
    assert PromptEncoder(tokenizer).encode(text) == tokenizer.encode(text, add_special_tokens=False)
