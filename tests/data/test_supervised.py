"""Demonstrations from files: what a row may look like, and what is said of one that cannot be used."""

import json

import pytest

from roll.config.sft_keys import SFTKeys
from roll.config.worker import DataArgs
from roll.data.errors import DataError
from roll.data.supervised import DemonstrationSet, load_demonstrations
from roll.data.supervised_rows import Columns, Conversation, DemonstrationReader, PlainText, Tokens
from roll.rendering.supervised import TokenSequence

SUM = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]


def read(row: dict, **keys):
    columns = Columns.of(SFTKeys(**keys), row, "rows.jsonl")
    return DemonstrationReader(columns, None).read(row)


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"messages": SUM}, {}),
        ({"messages": json.dumps(SUM)}, {}),
        ({"conversations": [{"from": "human", "value": "1+1"}, {"from": "gpt", "value": "2"}]}, {}),
        ({"prompt": "1+1", "completion": "2"}, {}),
        ({"prompt": SUM[:1], "completion": SUM[1:]}, {}),
        ({"prompt": "1+1", "response": "2"}, {}),
        ({"instruction": "1+1", "input": "", "output": "2"}, {}),
        ({"talk": SUM, "prompt": "no", "completion": "no"}, {"messages_key": "talk"}),
        ({"q": "1+1", "a": "2"}, {"prompt_key": "q", "response_key": "a"}),
    ],
)
def test_rows_of_every_kind_say_the_same(row: dict, keys: dict) -> None:
    assert read(row, **keys) == Conversation(SUM, [False, True])


def test_a_query_goes_below_the_question_and_a_system_message_before_it() -> None:
    row = {"instruction": "Add.", "input": "1+1", "output": "2", "who": "A sage."}

    found = read(row, system_key="who")

    assert [message["content"] for message in found.messages] == ["A sage.", "Add.\n1+1", "2"]


def test_only_answers_are_imitated_and_not_those_that_say_so() -> None:
    talk = [*SUM, *SUM, *SUM]
    talk = [{**message, "train": None} for message in talk]  # as tables give it to every message
    talk[1] = {**talk[1], "train": False}
    talk[3] = {**SUM[1], "weight": 0}

    found = read({"messages": talk})

    assert found.trained == [False, False, False, False, False, True]
    assert all(message.keys() == {"role", "content"} for message in found.messages)


def test_answers_in_a_prompt_are_context() -> None:
    found = read({"prompt": [*SUM, SUM[0]], "completion": [SUM[1]]})

    assert found.trained == [False, False, False, True]


def test_arguments_of_calls_become_mappings() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    talk = [SUM[0], {"role": "assistant", "content": None, "tool_calls": [call]}]

    found = read({"messages": talk, "tools": '[{"name": "f"}]'})

    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert found.messages[1]["content"] == "" and found.tools == [{"name": "f"}]


def test_texts_and_tokens_are_taken_as_they_are() -> None:
    assert read({"text": "once"}) == PlainText("once")
    assert read({"input_ids": [4, 5, 6], "assistant_masks": [1, 0, 1]}) == Tokens([4, 5, 6], [False, False, True])


def by_characters(row) -> list[TokenSequence]:
    text = row.text if isinstance(row, PlainText) else "".join(message["content"] for message in row.messages)
    return [TokenSequence([ord(letter) for letter in text], [False] + [True] * (len(text) - 1))]


def load(tmp_path, *rows, args=None, **keys):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return load_demonstrations(
        DataArgs(file_name=[str(path)], **(args or {})), SFTKeys(**keys), SFTKeys(**keys).sequence_length, by_characters
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": []}, "line 2: 'messages' has no messages"),
        ({"messages": SUM[:1]}, "line 2: no message of the assistant is to be imitated"),
        ({"messages": [{"role": "user"}]}, "line 2: message 1 of 'messages' has no text as `content`"),
        ({"messages": [*SUM[:1], {**SUM[1], "train": "no"}]}, "line 2: message 2 of 'messages' has train: 'no'"),
        ({"messages": [{"from": "wizard", "value": "x"}]}, "line 2: message 1 of 'messages' is from 'wizard'"),
        ({"messages": [{**SUM[0], "content": "x" * 20}, SUM[1]]}, "line 2: the row has 21 tokens, 11 more than"),
        ("{", "line 2: "),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_line(tmp_path, row, said: str) -> None:
    with pytest.raises(DataError, match="rows.jsonl, ") as error:
        load(tmp_path, {"messages": SUM}, row, sequence_length=10)

    assert said in str(error.value) and "on_bad_row: skip" in str(error.value)
    assert len(load(tmp_path, {"messages": SUM}, row, sequence_length=10, args={"on_bad_row": "skip"})) == 1


def test_columns_that_are_not_there_are_named(tmp_path) -> None:
    with pytest.raises(DataError, match="no columns with demonstrations among answer, question"):
        load(tmp_path, {"question": "1+1", "answer": "2"})
    with pytest.raises(DataError, match="no column 'txt', which `text_key` names"):
        load(tmp_path, {"text": "one"}, text_key="txt")


@pytest.mark.parametrize(
    ("args", "kept"),
    [({"truncation": "right"}, "abcd"), ({"truncation": "left"}, "cdef"), ({"filter_overlong_prompts": True}, "xyz")],
)
def test_long_rows_are_cut_or_left_out(tmp_path, args: dict, kept: str) -> None:
    table = load(tmp_path, {"text": "abcdef"}, {"text": "xyz"}, args=args, sequence_length=4)

    ids, trained = table.sequences(0)[0]
    assert "".join(map(chr, ids)) == kept
    assert trained.tolist() == [False] + [True] * (len(kept) - 1)


def test_every_epoch_has_every_row_in_an_order_of_its_own(tmp_path) -> None:
    table = load(tmp_path, *({"text": f"row {number:02}"} for number in range(12)))
    rows = DemonstrationSet(table, seed=3, shuffle=True)

    epochs = [
        [bytes(rows.table.sequences(rows.row_at(12 * epoch + place))[0][0].astype("u1")) for place in range(12)]
        for epoch in range(2)
    ]

    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1] and len(set(epochs[0])) == 12


def test_a_position_belongs_to_its_rows(tmp_path) -> None:
    before = DemonstrationSet(load(tmp_path, {"text": "one"}, {"text": "two"}), seed=3, shuffle=True)
    state = json.loads(json.dumps(before.state_dict(5)))
    after = DemonstrationSet(load(tmp_path, {"text": "one"}, {"text": "six"}), seed=3, shuffle=True)

    assert before.check_state(state) == 5
    with pytest.raises(DataError, match="with other contents"):
        after.check_state(state)
