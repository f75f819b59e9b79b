"""What a reward model learns from: pairs of whole answers, or answers in steps; read, encoded, put together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from tensordict import TensorDict

from roll.config.reward_model import RewardModelConfig
from roll.config.worker import DataArgs
from roll.data.preference_rows import Answer, Judged, Pair, PlainAnswer
from roll.data.preferences import PreferenceTable
from roll.data.step_rows import LabelledSteps
from roll.data.steps import StepTable, load_steps
from roll.data.supervised_rows import Tokens
from roll.pipelines.sampling.demonstrations import encode as encode_demonstration
from roll.pipelines.sampling.demonstrations import rows_batch
from roll.pipelines.sampling.preferences import preference_batch
from roll.rendering import ChatRenderer
from roll.rendering.scored import scored_at_end, scored_steps, whole_conversation
from roll.rendering.supervised import TokenSequence, encode_text
from roll.strategies.training.reward import LABEL, MARGIN
from roll.workers.loading import Text


def encode_pair(text: Text, row: Pair | Judged) -> list[TokenSequence]:
    """Return the tokens of the chosen answer and of the rejected one, each scored at its end.

    They are those that the verifier ``reward_model`` makes of the same conversation: all that the template writes.

    Raises:
        ConversationError: If the chat template refuses a conversation.
    """
    assert isinstance(row, Pair)
    return [scored_at_end(_whole(text, answer), _appended(text)) for answer in (row.chosen, row.rejected)]


def _whole(text: Text, answer: Answer) -> list[int]:
    if isinstance(answer, Tokens):
        (tokens,) = encode_demonstration(text, answer)
        return tokens.token_ids
    if isinstance(answer, PlainAnswer):
        return encode_text(text.tokenizer, answer.text).token_ids
    return whole_conversation(_renderer(text), answer.messages, answer.tools)


def encode_steps(text: Text, row: LabelledSteps, separator: str) -> TokenSequence:
    """Return the tokens of an answer, each step scored behind its separator.

    Raises:
        ConversationError: If the chat template refuses the question.
    """
    return scored_steps(_renderer(text), row.messages, row.steps, separator, _appended(text))


def pair_batch(table: PreferenceTable, rows: Sequence[int], pad_token_id: int) -> TensorDict:
    """Return pairs as a batch.

    Returns:
        What :func:`roll.pipelines.sampling.preferences.preference_batch` returns, with ``margin`` ``[batch]``.
    """
    batch = preference_batch(table, rows, pad_token_id)
    batch[MARGIN] = torch.tensor([table.margin(row) for row in rows], dtype=torch.float64).repeat_interleave(2)
    return batch


def step_batch(table: StepTable, rows: Sequence[int], pad_token_id: int) -> TensorDict:
    """Return answers in steps as a batch.

    Returns:
        What :func:`roll.pipelines.sampling.demonstrations.to_batch` returns, with ``step_labels``
        ``[batch, sequence]``, 0 outside the mask.
    """
    batch = rows_batch(table, rows, pad_token_id)
    labels = torch.cat([torch.from_numpy(table.labels(row)) for row in rows])
    mask = batch["response_mask"]
    batch[LABEL] = torch.zeros(mask.shape).masked_scatter(mask, labels)
    return batch


def read_steps(config: RewardModelConfig, text: Text, data: DataArgs) -> StepTable:
    """Read the files of a section.

    Raises:
        DataError: If they cannot be used.
    """
    return load_steps(data, config, partial(encode_steps, text, separator=config.step_separator))


def _renderer(text: Text) -> ChatRenderer:
    assert isinstance(text.renderer, ChatRenderer)  # a model that is trained has tokens
    return text.renderer


def _appended(text: Text) -> int:
    return int(text.tokenizer.pad_token_id or 0)
