from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_support import TOKENS, load, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.config.errors import FixableError
from roll.config.worker import DataArgs
from roll.data import DataError, LengthLimit, load_table
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer, with_template

TEXT = "Natalia sold clips to 48 of her friends — and then half as many <|im_end|> in May; 你好, how many 🎈 in all? "


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("toy")


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer)


def limit_of(tokenizer: Any, renderer: ChatRenderer, limit: int | None, truncation: Any = "right") -> LengthLimit:
    return LengthLimit(
        limit,
        truncation,
        encode=renderer.initial_ids,
        encode_text=lambda text: tokenizer.encode(text, add_special_tokens=False),
        decode=tokenizer.decode,
    )


@pytest.mark.parametrize("truncation", ["left", "right"])
@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.integers(0, 10**6))
def test_a_cut_prompt_fits_keeps_the_template_and_has_no_room_for_more(
    tokenizer: Any, renderer: ChatRenderer, truncation: str, tail: str, where: int
) -> None:
    content = (TEXT * 2 + tail).strip()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    whole = renderer.initial_ids(messages)
    frame = renderer.initial_ids([messages[0], {"role": "user", "content": ""}])
    limit = len(frame) + 1 + where % (len(whole) - len(frame) - 1)
    cut, ids = limit_of(tokenizer, renderer, limit, truncation).fit(messages)
    text = cut[1]["content"]
    assert cut[0] == messages[0]
    assert content.startswith(text) if truncation == "right" else content.endswith(text)
    assert ids == renderer.initial_ids(cut)
    assert len(ids) <= limit
    control = [number for number in frame if number in tokenizer.all_special_ids]
    assert [number for number in ids if number in tokenizer.all_special_ids] == control
    # No token of this text is longer than 12 characters, so that many more are at least a token more.
    more = content[: len(text) + 12] if truncation == "right" else content[max(0, len(content) - len(text) - 12) :]
    assert len(renderer.initial_ids([messages[0], {"role": "user", "content": more}])) > limit


@pytest.mark.parametrize("truncation", ["left", "right"])
def test_plain_text_is_cut_to_exactly_the_limit(tokenizer: Any, renderer: ChatRenderer, truncation: str) -> None:
    messages = [{"role": "user", "content": " ".join(str(number) for number in range(200))}]
    length = len(renderer.initial_ids(messages))
    for limit in range(length - 60, length + 2):
        cut, ids = limit_of(tokenizer, renderer, limit, truncation).fit(messages)
        assert len(ids) == min(limit, length)
        assert (cut == messages) == (limit >= length)


def test_only_the_last_user_message_is_cut(tokenizer: Any, renderer: ChatRenderer) -> None:
    messages = [
        {"role": "user", "content": "first question"},
        {"role": "assistant", "content": "first answer"},
        {"role": "user", "content": "one two three four five six seven eight nine ten eleven twelve"},
    ]
    limit = len(renderer.initial_ids(messages)) - 5
    cut, ids = limit_of(tokenizer, renderer, limit).fit(messages)
    assert cut[:2] == messages[:2]
    assert messages[2]["content"].startswith(cut[2]["content"]) and len(ids) == limit


def test_what_may_not_be_cut_must_fit(tokenizer: Any, renderer: ChatRenderer) -> None:
    messages = [{"role": "system", "content": TEXT}, {"role": "user", "content": "short"}]
    limit = limit_of(tokenizer, renderer, 20)
    with pytest.raises(FixableError, match="may not be cut"):
        limit.check_cut(messages)
    with pytest.raises(FixableError, match="may not be cut"):
        limit.fit(messages)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80) | st.text("#@~Q", min_size=20, max_size=60), st.integers(1, 120))
def test_the_excess_is_that_of_the_whole_prompt_though_short_ones_are_not_tokenised(
    tokenizer: Any, renderer: ChatRenderer, content: str, size: int
) -> None:
    messages = [{"role": "user", "content": content}]
    length = len(renderer.initial_ids(messages))
    for limit in (size, length - 1, length):
        excess = limit_of(tokenizer, renderer, limit).excess(messages)
        assert max(excess, 0) == max(length - limit, 0)


def words(count: int) -> dict[str, str]:
    return {"prompt": " ".join(f"w{number}" for number in range(count))}


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Prompts of 5, 12, 7 and 22 tokens: two more than words."""
    return write_jsonl(tmp_path / "data.jsonl", [words(3), words(10), words(5), words(20)])


def test_overlong_prompts_are_refused_by_default_with_the_first_place_and_the_longest(lengths: Path) -> None:
    with pytest.raises(DataError, match="2 prompts are longer than `prompt_length`, 10 tokens") as caught:
        load({"file_name": lengths, "on_bad_row": "skip"}, prompt_length=10)
    assert "first in data.jsonl, line 2; the longest has 22" in str(caught.value)
    assert len(load({"file_name": lengths}, prompt_length=22)) == 4


def test_overlong_prompts_are_left_out_and_counted(lengths: Path) -> None:
    data = load({"file_name": lengths, "filter_overlong_prompts": True, "truncation": "left"}, prompt_length=10)
    assert [prompt.key for prompt in data.table] == ["data.jsonl:1", "data.jsonl:3"]
    assert (data.report.domains["math"].filtered, data.report.domains["math"].truncated) == (2, 0)
    assert "math: 2 prompts, 2 too long and left out" in list(data.report.lines())


@pytest.mark.parametrize(("truncation", "first", "last"), [("left", "w12", "w19"), ("right", "w0", "w7")])
def test_overlong_prompts_are_cut_and_counted(lengths: Path, truncation: str, first: str, last: str) -> None:
    data = load({"file_name": lengths, "truncation": truncation}, prompt_length=10)
    assert [len(prompt.prompt_ids) for prompt in data.table] == [5, 10, 7, 10]
    content = data.table[3].messages[0]["content"].split()
    assert (content[0], content[-1]) == (first, last)
    assert (data.report.domains["math"].kept, data.report.domains["math"].truncated) == (4, 2)


def test_prompts_that_cannot_be_cut_are_bad_rows(lengths: Path) -> None:
    args = {"file_name": lengths, "truncation": "left", "system_prompt": "one two three four"}
    with pytest.raises(DataError, match=r"data.jsonl, line 1: the prompt exceeds"):
        load(args, prompt_length=6)
    with pytest.raises(DataError, match="no prompt is left(.|\n)*4 rows, 4 skipped"):
        load({**args, "on_bad_row": "skip"}, prompt_length=6)


def test_no_limit_means_no_check_and_nothing_is_tokenised_at_the_start(lengths: Path) -> None:
    encoded: list[int] = []

    def encode(messages: list[dict[str, str]]) -> list[int]:
        encoded.append(len(messages))
        return TOKENS["encode"](messages)

    args = DataArgs(file_name=[str(lengths)])
    table = load_table(args, {"math": ["math"]}, LengthLimit(None, "error", **{**TOKENS, "encode": encode}))
    assert len(encoded) == 1  # the template, once for the only pattern of roles
    assert len(table[3].prompt_ids) == 22


def test_conversations_that_the_template_refuses_are_bad_rows(tmp_path: Path, tokenizer: Any) -> None:
    template = (
        "{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('no two in a row') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = ChatRenderer(with_template(tokenizer, template))
    twice = {"messages": [{"role": "user", "content": "s"}, {"role": "user", "content": "u"}]}
    path = write_jsonl(tmp_path / "data.jsonl", [{"messages": twice["messages"][1:]}, twice])
    args = DataArgs(file_name=[str(path)])
    tokens = {**TOKENS, "encode": renderer.initial_ids}
    with pytest.raises(DataError, match="line 2: the chat template refuses .* user, user: no two in a row"):
        load_table(args, {"math": ["math"]}, LengthLimit(None, "error", **tokens))
