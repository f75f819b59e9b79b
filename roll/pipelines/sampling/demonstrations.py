"""The demonstrations of a run: encoded, and put together to batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import torch
from tensordict import TensorDict

from roll.config import SFTConfig
from roll.config.worker import DataArgs
from roll.data.supervised import DemonstrationTable, load_demonstrations
from roll.data.supervised_rows import Conversation, Demonstration, PlainText
from roll.data.supervised_rows import Tokens as Tokenized
from roll.rendering import ChatRenderer, ConversationError
from roll.rendering.encoding import require_known
from roll.rendering.supervised import TokenSequence, encode_conversation, encode_text
from roll.workers.loading import Text

Tokens = tuple[np.ndarray, np.ndarray]
"""Token ids and which of them are imitated, each ``[tokens]``."""


def read_demonstrations(config: SFTConfig, text: Text, data: DataArgs) -> DemonstrationTable:
    """Read the files of a section.

    Raises:
        DataError: If they cannot be used.
    """
    return load_demonstrations(data, config, config.sequence_length, partial(encode, text))


def encode(text: Text, row: Demonstration) -> list[TokenSequence]:
    """Return the tokens of a row.

    Raises:
        ConversationError: If the chat template refuses it, or a token is none of the model's.
    """
    if isinstance(row, Conversation):
        assert isinstance(text.renderer, ChatRenderer)  # a policy that is trained has tokens
        return encode_conversation(text.renderer, row.messages, row.trained, row.tools)
    if isinstance(row, PlainText):
        return [encode_text(text.tokenizer, row.text)]
    require_known(text.tokenizer, row.token_ids)
    if row.says is not None:
        _require_own_tokens(text, row, row.says)
    return [TokenSequence(row.token_ids, row.trained)]


def _require_own_tokens(text: Text, row: Tokenized, says: str) -> None:
    """Check that tokens mean to this model what they meant to the one that sampled them.

    Raises:
        ConversationError: They do not.
    """
    start = row.trained.index(True) if True in row.trained else 0
    answer = list(
        itertools.takewhile(lambda pair: pair[1], zip(row.token_ids[start:], row.trained[start:], strict=True))
    )
    decoded = text.renderer.decode([token for token, _ in answer])
    # A text that ends answers is cut off their texts, and not off their tokens.
    if "".join(says.split()) not in "".join(decoded.split()):
        message = f"its tokens say {decoded[:40]!r} to this model, and its messages {says[:40]!r}."
        raise ConversationError(message, "use the model whose tokens they are, or set `messages_key: messages`.")


def to_batch(sequences: Sequence[Tokens], pad_token_id: int) -> TensorDict:
    """Pad sequences on the right.

    Args:
        sequences: At least one.
        pad_token_id: Fills ``input_ids`` behind a sequence.

    Returns:
        ``input_ids`` int64 and ``response_mask`` bool ``[batch, sequence]``, ``lengths`` int64 ``[batch]``.
    """
    lengths = torch.tensor([len(ids) for ids, _ in sequences])
    shape = (len(sequences), int(lengths.max()))
    batch = {
        "input_ids": torch.full(shape, pad_token_id, dtype=torch.int64),
        "response_mask": torch.zeros(shape, dtype=torch.bool),
        "lengths": lengths,
    }
    for row, (ids, trained) in enumerate(sequences):
        batch["input_ids"][row, : len(ids)] = torch.from_numpy(ids)
        batch["response_mask"][row, : len(ids)] = torch.from_numpy(trained)
    return TensorDict(batch, batch_size=[len(sequences)])


def rows_batch(table: DemonstrationTable, rows: Sequence[int], pad_token_id: int) -> TensorDict:
    """Return all sequences of rows of a table, by their numbers, as :func:`to_batch` does."""
    return to_batch([one for row in rows for one in table.sequences(row)], pad_token_id)


def in_batches(rows: int, at_once: int) -> Iterable[range]:
    """Yield the numbers of all rows in order, so many at a time."""
    for start in range(0, rows, at_once):
        yield range(start, min(start + at_once, rows))


def describe(name: str, table: DemonstrationTable, done: str = "imitated") -> list[str]:
    """Return what was read and what is ``done`` with it, as lines for people."""
    counts = next(iter(table.report.domains.values()))
    files = [f"{file.name}: {file.read} rows" for file in table.report.files]
    left_out = [
        f"{number} {why}"
        for number, why in (
            (table.report.skipped, "skipped"),
            (counts.filtered, "too long and left out"),
            (counts.truncated, "too long and cut"),
        )
        if number
    ]
    share = f"{table.trained_tokens:,} of {table.tokens:,} tokens are {done}"
    return [f"{name:9} {', '.join([*files, *left_out])}; {share}", *(f"  {one}" for one in table.report.examples)]
