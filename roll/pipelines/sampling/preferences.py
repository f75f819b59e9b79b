"""The pairs of a run, or its judged answers: read from its files, encoded, and put together to batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from tensordict import TensorDict

from roll.config import ConfigError, Problem
from roll.config.pair_keys import PairKeys
from roll.config.worker import DataArgs
from roll.data.preference_rows import Answer, Judged, Pair, PlainAnswer
from roll.data.preferences import PreferenceTable, load_preferences, mismatched
from roll.data.supervised_rows import Tokens
from roll.pipelines.sampling.demonstrations import encode as encode_demonstration
from roll.pipelines.sampling.demonstrations import rows_batch, to_batch
from roll.rendering import ChatRenderer, ConversationError
from roll.rendering.supervised import TokenSequence, encode_conversation, encode_text
from roll.strategies.training.micro_batches import PAIR
from roll.strategies.training.preference import CHOSEN
from roll.workers.loading import Text

EncodeRow = Callable[[Text, Pair | Judged], list[TokenSequence]]
"""Makes tokens of a row: of a pair the chosen answer and the rejected one, of a judged answer one."""


def encode(text: Text, row: Pair | Judged) -> list[TokenSequence]:
    """Return the tokens of a row: the chosen answer and the rejected one, or a judged one.

    Raises:
        ConversationError: If the chat template refuses it, or writes an answer in two ways.
    """
    if isinstance(row, Judged):
        return [_encode_one(text, row.answer)]
    if isinstance(row.chosen, PlainAnswer) and isinstance(row.rejected, PlainAnswer):
        return _without_beginning([encode_text(text.tokenizer, one.text) for one in (row.chosen, row.rejected)])
    return [_encode_one(text, row.chosen), _encode_one(text, row.rejected)]


def _encode_one(text: Text, answer: Answer) -> TokenSequence:
    if isinstance(answer, Tokens):
        (tokens,) = encode_demonstration(text, answer)
        return tokens
    if isinstance(answer, PlainAnswer):
        return encode_text(text.tokenizer, answer.text)
    assert isinstance(text.renderer, ChatRenderer)  # a policy that is trained has tokens
    sequences = encode_conversation(text.renderer, answer.messages, answer.trained, answer.tools)
    if len(sequences) != 1:
        message = "the chat template rewrites earlier answers of the conversation, so it is no single sequence."
        raise ConversationError(message, "set another `template`, or leave the thoughts of earlier answers out.")
    return sequences[0]


def _without_beginning(sequences: list[TokenSequence]) -> list[TokenSequence]:
    """Mark only what follows the tokens with which all of the texts begin."""
    shared = 0
    for tokens in zip(*(one.token_ids for one in sequences), strict=False):
        if len(set(tokens)) > 1:
            break
        shared += 1
    return [
        TokenSequence(one.token_ids, [flag and place >= shared for place, flag in enumerate(one.trained)])
        for one in sequences
    ]


def read_preferences(config: PairKeys, text: Text, data: DataArgs, encoded: EncodeRow = encode) -> PreferenceTable:
    """Read the files of a section; ``encoded`` makes tokens of a row.

    Raises:
        DataError: If they cannot be used.
        ConfigError: If a pair is too long for a pass.
    """
    table = load_preferences(data, config, partial(encoded, text))
    budget = config.actor_train.training_args.max_tokens_per_microbatch
    if budget is not None and table.longest > budget:
        message = f"a pair takes {table.longest} tokens, and both of its answers are computed in one pass."
        fix = f"raise it to {table.longest}, or cut or leave out long rows (sequence_length, truncation)."
        path = "actor_train.training_args.max_tokens_per_microbatch"
        raise ConfigError([Problem(path, message, fix, budget)])
    return table


def preference_batch(table: PreferenceTable, rows: Sequence[int], pad_token_id: int) -> TensorDict:
    """Return rows of a table as a batch: of each pair first the chosen answer.

    Returns:
        What :func:`roll.pipelines.sampling.demonstrations.to_batch` returns, with ``chosen`` bool ``[batch]``, and of
        pairs ``pair`` int64 ``[batch]``.
    """
    batch = rows_batch(table, rows, pad_token_id)
    chosen = [flag for row in rows for flag in table.chosen(row)]
    batch[CHOSEN] = torch.tensor(chosen)
    if not table.judged:
        batch[PAIR] = torch.arange(len(rows)).repeat_interleave(2)
    return batch


def mismatched_batch(
    table: PreferenceTable, rows: Sequence[int], pad_token_id: int, sequence_length: int
) -> TensorDict:
    """Return the same judged answers, each behind what was asked in the row after it; what is too long is cut."""
    own = [table.sequences(row)[0] for row in rows]
    made = [mismatched(own[number - len(own) + 1], one) for number, one in enumerate(own)]
    return to_batch([(ids[:sequence_length], flags[:sequence_length]) for ids, flags in made], pad_token_id)
