"""The prompts of a run: read from its files, with every fault a problem of the key that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from roll.config import ConfigError, GeneratingArgs, Problem
from roll.config.errors import FixableError
from roll.config.prompt_keys import PromptKeys
from roll.config.worker import DataArgs
from roll.data.dataset import PromptDataset
from roll.data.lengths import LengthLimit
from roll.data.loading import load_prompts, load_table
from roll.data.prompts import Prompt
from roll.data.table import PromptTable
from roll.pipelines.sampling.data_sections import data_faults_at
from roll.pipelines.sampling.operators import operators_on
from roll.rendering import PictureRenderer
from roll.rendering.encoding import require_known
from roll.trajectories.store import Phase
from roll.workers.loading import Text


@dataclass(frozen=True, slots=True)
class PromptData:
    """The prompts of a run.

    Attributes:
        train: Training prompts, in an endless order.
        val: Validation prompts, each once, where there are some.
    """

    train: PromptDataset
    val: PromptTable | None

    def resume_position(self, state: Mapping[str, Any]) -> int:
        """Return the position that a checkpoint holds.

        Raises:
            ConfigError: If its data were others.
        """
        with data_faults_at("actor_train.data_args"):
            return self.train.check_state(state)


def load_data(config: PromptKeys, text: Text) -> PromptData:
    """Read the training and validation files.

    Raises:
        ConfigError: If they cannot be used.
    """
    train = _training_data(config, text)
    return PromptData(train, eval_prompts(config, config.val_data_args, text) if config.validation else None)


def prompts_elsewhere(
    config: PromptKeys, table: PromptTable, phase: Phase = "train"
) -> Callable[[Text], Sequence[Prompt]]:
    """Return what makes the same prompts in another process, given tokenizer and renderer there.

    Rows are sent there. Those of a class of one's own, which may not be fit for that, are read there again.

    Args:
        config: The run.
        table: The prompts.
        phase: What they are for.
    """
    data = config.actor_train.data_args if phase == "train" else config.val_data_args
    if data.custom_cls is not None:
        return partial(_read_again, config, phase, table.digests)
    return partial(_with_tokens, config, phase, table.read_with(None))


def _with_tokens(config: PromptKeys, phase: Phase, table: PromptTable, text: Text) -> PromptTable:
    data, generating = config.actor_train.data_args, config.actor_infer.generating_args
    if phase == "val":
        data, generating = config.val_data_args, config.validation_generating
    return table.read_with(length_limit(config, data, text, generating))


def _read_again(config: PromptKeys, phase: Phase, digests: Mapping[str, str], text: Text) -> PromptTable:
    """Read the files again.

    Raises:
        ConfigError: They cannot be read here, or have other rows.
    """
    training = phase == "train"
    table = _training_data(config, text).table if training else eval_prompts(config, config.val_data_args, text)
    if table.digests != digests:
        message = "its rows are others in the worker that keeps prompts (data_plane) than in the program."
        fix = "return the same rows in every process, or set data_plane: driver."
        section = "actor_train" if training else "validation"
        raise ConfigError([Problem(f"{section}.data_args.custom_cls", message, fix)])
    return table


def _training_data(config: PromptKeys, text: Text) -> PromptDataset:
    data = config.actor_train.data_args
    limit = length_limit(config, data, text, config.actor_infer.generating_args)
    with data_faults_at("actor_train.data_args"):
        operators = operators_on(config, "tasks")
        return load_prompts(data, config.prompt_tags, limit, seed=config.seed, operators=operators)


def eval_prompts(config: PromptKeys, data: DataArgs, text: Text) -> PromptTable:
    """Read validation files.

    Raises:
        ConfigError: If they cannot be used.
    """
    limit = length_limit(config, data, text, config.validation_generating)
    with data_faults_at("validation.data_args"):
        return load_table(data, config.prompt_tags, limit)


def length_limit(config: PromptKeys, data: DataArgs, text: Text, generating: GeneratingArgs) -> LengthLimit:
    """Return how a data set turns text into tokens and back, and how long a prompt may be."""
    room = config.sequence_length - generating.max_new_tokens
    return LengthLimit(
        config.prompt_length or room,
        data.truncation,
        encode=text.renderer.initial_ids,
        encode_text=lambda content: text.tokenizer.encode(content, add_special_tokens=False),
        decode=lambda ids: str(text.tokenizer.decode(list(ids))),
        prompt_text=partial(_prompt_text, config, text),
        pictures=text.renderer if isinstance(text.renderer, PictureRenderer) else None,
    )


def _prompt_text(config: PromptKeys, text: Text, ids: Sequence[int]) -> str:
    """Return the text of a prompt that a row holds as token ids.

    Raises:
        FixableError: If they are not the policy's tokens, or it is asked for messages.
    """
    if text.renderer.text_only or config.tools:
        asked = "tools are described in messages" if config.tools else "an endpoint is asked with messages"
        raise FixableError(f"the prompt is token ids, and {asked}.", "use rows with text.")
    require_known(text.tokenizer, ids)
    return str(text.tokenizer.decode(list(ids)))
