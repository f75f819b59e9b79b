"""A task whose responses have the lengths one wants: recite a fixed list of words from a given one to its end.

The prompt ends with a word of the list; the right response is all that follows it, then the stop token. So the prompt
decides how long the response is, the policy stops by itself, and the reward can be checked: no sampler has to be forced
to a length. A policy learns the list within a minute on a laptop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roll.models.loading import load_model, load_tokenizer
from roll.rewards.base import RewardRequest

LONGEST = 256
"""Tokens of the longest response, stop token included."""

_FROM_THE_START = "Start"
TEACHING_STEPS = 200


class Recitation:
    """The list of words, as tokens of ``tokenizer``.

    Args:
        tokenizer: Of the policy.
        seed: Decides the order of the words.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> None:
        self.tokenizer = tokenizer
        words = [token for token in range(len(tokenizer)) if _is_word(tokenizer, token)]
        order = np.random.default_rng(seed).permutation(len(words))
        self.words = [words[index] for index in order[: LONGEST - 1]]
        if len(self.words) < LONGEST - 1:
            raise ValueError(f"The tokenizer has {len(words)} printable tokens; the list needs {LONGEST - 1}.")

    def prompt(self, length: int) -> str:
        """Return the prompt whose right response has ``length`` tokens."""
        before = len(self.words) - length
        word = self.tokenizer.decode([self.words[before]]) if before >= 0 else _FROM_THE_START
        return f"Say what comes after this:{word}"

    def answer(self, length: int) -> list[int]:
        """Return the right response, stop token included, ``length`` tokens."""
        return [*self.words[len(self.words) - length + 1 :], int(self.tokenizer.eos_token_id)]

    def write(self, path: Path, lengths: Sequence[int], cap: int) -> None:
        """Write a JSONL file of prompts; ``ground_truth`` is the right response as far as ``cap`` tokens reach."""
        with path.open("w", encoding="utf-8") as file:
            for length in lengths:
                right = self.tokenizer.decode(self.answer(length)[:cap], skip_special_tokens=True)
                file.write(json.dumps({"prompt": self.prompt(length), "ground_truth": right}) + "\n")


def uniform_lengths(count: int, cap: int, seed: int) -> list[int]:
    """Return lengths well beyond ``cap``, so that the cap ends every response."""
    return np.random.default_rng(seed).integers(cap + 28, LONGEST + 1, count).tolist()


def mixed_lengths(count: int, seed: int) -> list[int]:
    """Return log-normal lengths (median 45, sigma 0.8), cut to 8 .. 256."""
    return np.clip(np.exp(np.random.default_rng(seed).normal(np.log(45), 0.8, count)), 8, LONGEST).astype(int).tolist()


def correct_share(response: str, right: str) -> float:
    """Return the share of the response that is right: its longest right beginning over the longer of the two."""
    same = next((i for i, (a, b) in enumerate(zip(response, right, strict=False)) if a != b), None)
    return (min(len(response), len(right)) if same is None else same) / max(len(response), len(right), 1)


async def grade(request: RewardRequest) -> float:
    """The same as a reward function of the RLVR pipeline."""
    return correct_share(request.response, request.ground_truth or "")


def teach(folder: Path, steps: int = TEACHING_STEPS) -> Recitation:
    """Teach the toy model the list, not quite to perfection, and save it to ``folder`` with its tokenizer.

    The chat template of the saved tokenizer is the content alone, so that the word to go on from is the last token of
    the prompt and one table (word -> next word) is all there is to learn.
    """
    tokenizer, model = load_tokenizer("toy"), load_model("toy").train()
    tokenizer.chat_template = "{{ messages[0].content }}"
    task = Recitation(tokenizer)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(steps):
        # Mostly short windows, which hold as many lessons per token; now and then whole recitations, for the positions.
        whole = step % 6 == 5
        lengths = rng.integers(LONGEST // 2, LONGEST + 1, 8) if whole else rng.integers(8, LONGEST + 1, 48)
        rate = 1e-2 * min(1.0, (step + 1) / 10, 2 * (1 - step / steps) + 0.01)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = _loss(model, task, lengths.tolist(), LONGEST if whole else 12)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return task


def _loss(model: PreTrainedModel, task: Recitation, lengths: Sequence[int], window: int) -> torch.Tensor:
    """Return the mean cross-entropy of the first ``window`` tokens of right responses."""
    prompts = [task.tokenizer.encode(task.prompt(length), add_special_tokens=False) for length in lengths]
    answers = [task.answer(length)[:window] for length in lengths]
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids = torch.zeros(len(lengths), width, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    logits = model(input_ids=ids, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def _is_word(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    """Whether the token is printable text that is tokenised back to itself."""
    text = tokenizer.decode([token])
    if token in tokenizer.all_special_ids or not text.isprintable() or "<" in text:
        return False
    return bool(tokenizer.encode(text, add_special_tokens=False) == [token])
