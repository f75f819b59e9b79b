"""A process reward model: a token classifier that scores the steps of answers, in padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification, AutoTokenizer, PreTrainedModel

from roll.rendering import ChatRenderer, ChatTemplateError
from roll.rendering.scored import scored_steps, split_steps
from roll.rendering.supervised import TokenSequence
from roll.strategies.training.micro_batches import split_by_tokens


class StepClassifier:
    """Says of each step of an answer how likely it is right.

    The score does not depend on what an answer is batched with: rows are padded at their right end, which no token of
    theirs sees. A model of one label has the logit of "right"; one of two has a logit for each class, "right" second.

    Args:
        model: The classifier on its device, on a causal model.
        renderer: Of its chat template.
        separator: What stands behind every step.
        batch_size: Most answers of one forward pass.

    Raises:
        ValueError: The model has more than two labels.
    """

    def __init__(self, model: PreTrainedModel, renderer: ChatRenderer, *, separator: str, batch_size: int = 8) -> None:
        labels = len(model.config.id2label or {0: ""})
        if labels > 2:
            raise ValueError(f"the process reward model has {labels} labels: one, or two (wrong, right), can be read")
        self.model = model.eval()
        self.renderer = renderer
        self.separator = separator
        self.batch_size = batch_size
        self.device = next(model.parameters()).device

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        separator: str,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        batch_size: int = 8,
    ) -> StepClassifier:
        """Load model and tokenizer from a folder or the hub.

        Raises:
            ValueError: Nothing loadable is there, its head is not there, or its tokenizer has no chat template.
        """
        try:
            renderer = ChatRenderer(AutoTokenizer.from_pretrained(path))
            model, report = AutoModelForTokenClassification.from_pretrained(path, dtype=dtype, output_loading_info=True)
        except ChatTemplateError as error:
            raise ValueError(f"the process reward model {str(path)!r}: {error.message}") from error
        except (OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise _not_loadable(path, reason) from error
        if report["missing_keys"]:
            raise _not_loadable(path, f"it lacks {', '.join(sorted(report['missing_keys'])[:2])}")
        return cls(model.to(device), renderer, separator=separator, batch_size=batch_size)

    @torch.no_grad()
    def score_steps(self, answered: Sequence[tuple[list[dict[str, Any]], str]]) -> list[list[float]]:
        """Return of each answer, with the messages it answers, the probability that a step is right, for all steps."""
        rows = [self._encode(messages, answer) for messages, answer in answered]
        scores: list[list[float]] = [[] for _ in rows]
        for group in split_by_tokens([len(row) for row in rows], None, self.batch_size):
            ids = torch.zeros(len(group), len(rows[group[0]]), dtype=torch.int64)
            for place, index in enumerate(group):
                ids[place, : len(rows[index])] = torch.tensor(rows[index].token_ids)
            shares = torch.sigmoid(self._logits(ids)).cpu()
            for place, index in enumerate(group):
                marked = [token - 1 for token, flag in enumerate(rows[index].trained) if flag]
                scores[index] = shares[place, marked].tolist()
        return scores

    def _logits(self, ids: Tensor) -> Tensor:
        """Return the logit of "right" at each token, ``[batch, sequence]``."""
        logits = self.model(input_ids=ids.to(self.device)).logits.float()
        return logits[..., 0] if logits.shape[-1] == 1 else logits[..., 1] - logits[..., 0]

    def _encode(self, messages: list[dict[str, Any]], answer: str) -> TokenSequence:
        return scored_steps(self.renderer, messages, split_steps(answer, self.separator), self.separator, 0)


def _not_loadable(path: str | Path, reason: str) -> ValueError:
    return ValueError(
        f"no token classifier can be loaded from {str(path)!r} ({reason}). Give a folder with the model, its head and "
        "its tokenizer: what pipeline: reward_model writes with supervision: process."
    )
