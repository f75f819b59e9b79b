"""A reward model: a sequence classifier that scores texts in padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


class SequenceClassifier:
    """Scores texts with a Hugging Face sequence classifier.

    The score of a text does not depend on what it is batched with: rows are padded at their right end with a token
    that none of them contains, since a classifier on a causal model reads its score at the last token that is not
    the padding token.

    Args:
        model: The classifier on its device.
        tokenizer: Its tokenizer; it needs no padding token.
        label: Which output is the score, by name or index; ``None`` where there is only one.
        batch_size: Most texts of one forward pass.
        max_length: Texts with more tokens lose their beginning; ``None`` for no limit.

    Raises:
        ValueError: The model has several labels and none is chosen, or ``label`` is none of them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        label: str | int | None = None,
        batch_size: int = 8,
        max_length: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.max_length = max_length
        self.device = next(model.parameters()).device
        self._label = _label_index(model, label)
        self._own_pad = model.config.get_text_config().pad_token_id
        self._vocabulary = int(model.config.get_text_config().vocab_size)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        label: str | int | None = None,
        batch_size: int = 8,
        max_length: int | None = None,
    ) -> SequenceClassifier:
        """Load model and tokenizer from a folder or the hub.

        Raises:
            ValueError: Nothing loadable is there, or the label is wrong.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
            model = AutoModelForSequenceClassification.from_pretrained(path, dtype=dtype)
        except (OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"no sequence classifier can be loaded from {str(path)!r} ({reason}). Give a folder with the model and "
                "its tokenizer, or a Hugging Face name on a machine that can reach the hub."
            ) from error
        return cls(model.to(device), tokenizer, label=label, batch_size=batch_size, max_length=max_length)

    def render(self, messages: list[dict[str, str]]) -> str:
        """Return a conversation in the model's own chat template.

        Raises:
            ValueError: The tokenizer has no chat template.
        """
        if not self.tokenizer.chat_template:
            raise ValueError(
                f"the tokenizer of the reward model {self.tokenizer.name_or_path!r} has no chat template: add one to it"
            )
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        assert isinstance(text, str)
        return text

    @torch.no_grad()
    def score(self, texts: Sequence[str]) -> list[float]:
        """Return the score of each text, in order; texts of similar length share a forward pass."""
        rows = [self._encode(text) for text in texts]
        scores = [0.0] * len(rows)
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for start in range(0, len(rows), self.batch_size):
            indices = by_length[start : start + self.batch_size]
            for index, score in zip(indices, self._forward([rows[index] for index in indices]), strict=True):
                scores[index] = score
        return scores

    def _encode(self, text: str) -> list[int]:
        # A chat template writes the special tokens itself; a plain text needs those of the tokenizer.
        templated = bool(self.tokenizer.chat_template)
        ids: list[int] = list(self.tokenizer(text, add_special_tokens=not templated)["input_ids"])
        if not ids:
            raise ValueError(f"the text {text!r} has no tokens: there is nothing to score")
        return ids if self.max_length is None else ids[-self.max_length :]

    def _forward(self, rows: list[list[int]]) -> list[float]:
        pad = self._padding(rows)
        if pad is None:
            return [self._forward([row])[0] for row in rows]
        width = max(map(len, rows))
        input_ids = torch.full((len(rows), width), pad)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        self.model.config.get_text_config().pad_token_id = pad
        logits = self.model(input_ids=input_ids.to(self.device), attention_mask=mask.to(self.device)).logits
        return [float(score) for score in logits[:, self._label].float().cpu()]

    def _padding(self, rows: list[list[int]]) -> int | None:
        """Return a token that is in no row: the model's own padding if it can be, ``None`` if every token is used."""
        used = set().union(*rows)
        if self._own_pad is not None and self._own_pad not in used:
            return int(self._own_pad)
        free = next((token for token in range(self._vocabulary) if token not in used), None)
        return -1 if free is None and len(rows) == 1 else free


def _label_index(model: PreTrainedModel, label: str | int | None) -> int:
    names = {int(index): str(name) for index, name in (model.config.id2label or {0: "LABEL_0"}).items()}
    if label is None:
        if len(names) == 1:
            return 0
        raise ValueError(f"the reward model has {len(names)} labels ({', '.join(names.values())}): choose one")
    for index, name in names.items():
        if label in (index, name):
            return index
    raise ValueError(f"the reward model has no label {label!r}; it has {', '.join(names.values())}")
