"""Rows of preferences in every shape that data sets have, as pairs and as judged answers."""

import json
from functools import partial
from pathlib import Path

import pytest

from roll.config import ConfigError, DPOConfig, load
from roll.pipelines.sampling.data_sections import training_rows
from roll.pipelines.sampling.preferences import read_preferences
from roll.workers.loading import Text, load_text

ASKED = {"role": "user", "content": "1 + 1 = ?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("2", "3"))
MORE = [{"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"}]
SYSTEM = {"role": "system", "content": "Add."}
PAIR = ["2", "3"]


@pytest.fixture(scope="module")
def text() -> Text:
    return load_text(load({"pipeline": "dpo", "pretrain": "toy_math"}, overrides=_file("none.jsonl")))


def _file(name: str) -> dict[str, str]:
    return {"actor_train.data_args.file_name": name}


def compared(text: Text, folder: Path, *rows: dict, **keys) -> list[list[tuple[str, str]]]:
    """Return of each row what was asked and what is compared, decoded, of each sequence."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load({"pipeline": "dpo", "pretrain": "toy_math", **keys}, overrides=_file(str(path)))
    assert isinstance(config, DPOConfig)
    table = training_rows(config, partial(read_preferences, config, text)).table
    decode = text.tokenizer.decode
    return [
        [(decode(ids[: flags.argmax()]), decode(ids[flags])) for ids, flags in table.sequences(row)]
        for row in range(len(table))
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1 + 1 = ?", "chosen": "2", "rejected": "3"},
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "1 + 1 = ?", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"question": "1 + 1 = ?", "chosen": "2", "rejected": "3"},
    ],
    ids=["text", "messages", "whole conversations", "implicit prompt", "another name"],
)
def test_every_shape_of_a_pair_is_the_same_pair(text: Text, tmp_path: Path, row: dict) -> None:
    ((better, worse),) = compared(text, tmp_path, row)

    assert better[0] == worse[0] and better[0].count("1 + 1 = ?") == 1
    assert better[1].startswith("2") and worse[1].startswith("3") and better[1][1:] == worse[1][1:]


def test_texts_without_a_prompt_are_compared_where_they_part(text: Text, tmp_path: Path) -> None:
    ((better, worse),) = compared(text, tmp_path, {"chosen": "1 + 1 = 2", "rejected": "1 + 1 = 3"})

    assert better[0] == worse[0] and better[0].endswith("= ") and better[1].startswith("2") and worse[1].startswith("3")


def test_answers_of_several_messages_are_compared_without_what_the_user_says(text: Text, tmp_path: Path) -> None:
    row = {"prompt": [SYSTEM, ASKED], "chosen": [GOOD, *MORE], "rejected": [{**BAD, "train": False}, *MORE]}

    ((better, worse),) = compared(text, tmp_path, row)

    assert "sure?" not in better[1] and "2" in better[1] and "yes" in better[1]
    assert "3" in worse[0] and worse[1].startswith("yes")


def test_kto_takes_judged_answers_and_pairs(text: Text, tmp_path: Path) -> None:
    judged = [{"prompt": "1 + 1 = ?", "completion": said, "label": said == "2"} for said in PAIR]
    pair = {"prompt": "1 + 1 = ?", "chosen": "2", "rejected": "3"}

    assert compared(text, tmp_path, *judged, loss_type="kto", actor_train=_rows()) == compared(
        text, tmp_path, pair, loss_type="kto", actor_train=_rows()
    )


def _rows() -> dict:
    return {"training_args": {"per_device_train_batch_size": 2}}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a", "chosen": "2", "rejected": "2"}, "are the same"),
        ({"prompt": "a", "answer": "2"}, "no columns with pairs"),
        ({"prompt": "a", "chosen": "", "rejected": "2"}, "'chosen' is empty"),
        ({"prompt": [ASKED], "chosen": [MORE[0]], "rejected": [ASKED, BAD]}, "nothing in common"),
        ({"prompt": [ASKED], "chosen": [GOOD], "rejected": [{**BAD, "train": False}]}, "no message of the assistant"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "nothing says what was asked"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_its_line(text: Text, tmp_path: Path, row: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compared(text, tmp_path, row)


def test_a_pair_may_be_tokens_with_labels(text: Text, tmp_path: Path) -> None:
    def labelled(which: str, answer: str) -> dict[str, list[int]]:
        asked, answered = ([*text.tokenizer.encode(one, add_special_tokens=False)] for one in ("1 + 1 = ?", answer))
        return {f"{which}_input_ids": asked + answered, f"{which}_labels": [-100] * len(asked) + answered}

    ((better, worse),) = compared(text, tmp_path, {**labelled("chosen", "2"), **labelled("rejected", "3")})
    assert (better, worse) == (("1 + 1 = ?", "2"), ("1 + 1 = ?", "3"))


def test_a_judged_answer_may_be_tokens_with_labels(text: Text, tmp_path: Path) -> None:
    asked, right, wrong = ([*text.tokenizer.encode(one, add_special_tokens=False)] for one in ("1 + 1 = ?", "2", "3"))
    rows = [
        {"input_ids": asked + said, "labels": [-100] * len(asked) + said, "label": said == right}
        for said in (right, wrong)
    ]

    assert compared(text, tmp_path, *rows, loss_type="kto", actor_train=_rows()) == [
        [("1 + 1 = ?", "2")],
        [("1 + 1 = ?", "3")],
    ]
    rows[1]["labels"] = rows[1]["labels"][:-1]
    with pytest.raises(ConfigError, match="as long as each other"):
        compared(text, tmp_path, *rows, loss_type="kto", actor_train=_rows())
