from __future__ import annotations

import asyncio
import copy
import threading
from pathlib import Path

import pytest
import torch
from reward_support import asked, grades, verdict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from roll.rewards import Rubric, VerifierOptionError, make_verifier
from roll.strategies.training.pytorch.sequence_classifier import SequenceClassifier

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
TEMPLATE = "{% for m in messages %}{{ m['role'][0] }} {{ m['content'] }} <eos>{% endfor %}"
TEXTS = ["a", "b c d e f g h <eos>", "a b <eos> <eos>", "z y", "c " * 30, "<eos>", "q <pad> r", "b"]


def tokenizer(pad: str | None) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": "<eos>", "unk_token": "<unk>"} | ({"pad_token": pad} if pad else {})
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def saved_model(directory: Path, **options) -> Path:
    tiny_model(**options).save_pretrained(directory)
    tokenizer("<pad>").save_pretrained(directory)
    return directory


def tiny_model(*, pad_id: int | None = 0, labels: int = 1, kind: str = "qwen") -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_labels": labels,
        "pad_token_id": pad_id,
    }
    if kind == "bert":
        model = BertForSequenceClassification(BertConfig(**sizes))
    else:
        model = Qwen2ForSequenceClassification(Qwen2Config(**sizes, num_key_value_heads=2))
    # Random scores are all near 0; a larger head tells rows apart.
    head = model.classifier if kind == "bert" else model.score
    torch.nn.init.normal_(head.weight, std=1.0)
    return model


@pytest.mark.parametrize(
    ("kind", "pad", "pad_id"),
    [("qwen", "<pad>", 0), ("qwen", None, None), ("qwen", "<eos>", 1), ("bert", "<pad>", 0)],
    ids=["own padding", "no padding token", "padding is the end token", "encoder"],
)
def test_a_batch_scores_each_text_as_if_it_were_alone(tmp_path: Path, kind: str, pad, pad_id) -> None:
    model = tiny_model(pad_id=pad_id, kind=kind)
    texts = [text for text in TEXTS if kind == "qwen" or "<pad>" not in text]
    reference = copy.deepcopy(model).requires_grad_(False).eval()
    batched = SequenceClassifier(model, tokenizer(pad), batch_size=3).score(texts)
    reference.config.pad_token_id = None  # one row at a time: the score is that of the last token
    alone = []
    for text in texts:
        ids = torch.tensor([tokenizer(pad)(text)["input_ids"]])
        alone.append(float(reference(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, 0]))
    assert batched == pytest.approx(alone, abs=1e-5)
    assert max(alone) - min(alone) > 0.1, "the texts must differ for this to say anything"


def test_every_token_in_use_is_scored_row_by_row() -> None:
    model = SequenceClassifier(tiny_model(pad_id=None), tokenizer(None))
    texts = [" ".join(WORDS), "a b"]
    assert len(model._encode(texts[0])) == len(WORDS)
    assert model.score(texts) == pytest.approx([model.score([text])[0] for text in texts], abs=1e-6)


def test_a_long_text_keeps_its_end(tmp_path: Path) -> None:
    saved_model(tmp_path)
    short = SequenceClassifier.load(tmp_path, max_length=3)
    assert short.score(["a b c d e"]) == pytest.approx(short.score(["c d e"]))


def test_a_model_with_several_labels_needs_a_choice(tmp_path: Path) -> None:
    saved_model(tmp_path, labels=2)
    with pytest.raises(ValueError, match="2 labels"):
        SequenceClassifier.load(tmp_path)
    with pytest.raises(ValueError, match="no label 'good'"):
        SequenceClassifier.load(tmp_path, label="good")
    by_name, by_index = (SequenceClassifier.load(tmp_path, label=label).score(["a b"]) for label in ("LABEL_1", 1))
    assert by_name == by_index != SequenceClassifier.load(tmp_path, label=0).score(["a b"])


def test_a_folder_without_a_model_is_a_readable_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no sequence classifier"):
        SequenceClassifier.load(tmp_path)


def test_the_reward_model_reads_the_conversation_in_its_own_template(tmp_path: Path) -> None:
    saved_model(tmp_path)
    model = SequenceClassifier.load(tmp_path)
    with pytest.raises(ValueError, match="chat template"):
        model.render([])
    model.tokenizer.chat_template = TEMPLATE
    made = make_verifier("reward_model", {"scale": 2.0, "offset": 1.0}, {"score": model.score, "render": model.render})
    request = asked("<think>q</think> r s", messages=[{"role": "user", "content": "a b"}])
    (whole,) = model.score(["u a b <eos>a <think>q</think> r s <eos>"])
    assert verdict(made, request).score == pytest.approx(2 * (whole + 1))
    stripped = make_verifier("reward_model", {"strip_thinking": True}, {"score": model.score, "render": model.render})
    assert verdict(stripped, request).score == pytest.approx(model.score(["u a b <eos>a r s <eos>"])[0])


class Model:
    def __init__(self, failing: str | None = None) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.failing = failing

    def score(self, texts: list[str]) -> list[float]:
        self.batches.append(list(texts))
        self.threads.add(threading.get_ident())
        if self.failing in texts:
            raise RuntimeError("out of memory")
        return [float(len(text)) for text in texts]

    def verifier(self, batch_size: int):
        resources = {
            "score": self.score,
            "render": lambda messages: messages[-1]["content"],
            "infer_batch_size": batch_size,
        }
        return make_verifier("reward_model", {}, resources)


def test_concurrent_requests_share_batches_and_keep_their_order() -> None:
    model = Model()
    rubric = Rubric([("rm", 1.0, model.verifier(4))], parallel=0)
    results = grades(rubric, *(asked("x" * length) for length in range(10)))
    assert [grade.score for grade in results] == list(range(10))
    assert [len(batch) for batch in model.batches] == [4, 4, 2]
    assert threading.get_ident() not in model.threads


def test_a_batch_that_fails_leaves_its_rows_without_score_and_the_next_batch_alone() -> None:
    model = Model(failing="xx")
    results = grades(
        Rubric([("rm", 1.0, model.verifier(4))], parallel=0), *(asked("x" * length) for length in range(8))
    )
    assert [grade.score for grade in results] == [None] * 4 + [4.0, 5.0, 6.0, 7.0]
    assert all("out of memory" in grade.error for grade in results[:4])


def test_a_model_that_forgets_a_text_is_no_score() -> None:
    made = make_verifier("reward_model", {}, {"score": lambda texts: [], "render": lambda messages: "x"})
    (grade,) = grades(Rubric([("rm", 1.0, made)]), asked("x"))
    assert grade.score is None and "0 scores for 1 texts" in grade.error


def test_a_reward_model_serves_one_event_loop_after_another() -> None:
    made = Model().verifier(2)
    assert [asyncio.run(made(asked("xyz"))).score for _ in range(2)] == [3.0, 3.0]


def test_without_a_model_it_is_refused() -> None:
    with pytest.raises(VerifierOptionError, match="no reward model"):
        make_verifier("reward_model")
