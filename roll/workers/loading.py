"""Models and tokenizer of a role, and errors that name the key to correct."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roll.config import ConfigError, Problem, RLConfig
from roll.models.critic import load_critic
from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.rendering import ChatRenderer, ChatTemplateError, with_template
from roll.strategies.base import Prediction

ATTENTION = {"auto": None, "eager": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2"}


@dataclass(kw_only=True)
class Text:
    """Text to tokens and back; there before any model is loaded, so that data can be checked first.

    Attributes:
        tokenizer: Of the policy.
        renderer: Messages to tokens and back.
    """

    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer

    def token_text(self, token: int) -> str:
        """Return the text of one token, for people."""
        return str(self.tokenizer.decode([token]))

    def plain_tokens(self) -> list[int]:
        """Return the tokens that stand for text: no special ones, and none that were added to the vocabulary."""
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.get_added_vocab().values())
        return sorted(set(self.tokenizer.get_vocab().values()) - special)


def load_text(config: RLConfig) -> Text:
    """Load the policy's tokenizer, with the chat template that the configuration names.

    Raises:
        ConfigError: If it cannot be loaded, or no conversation can be held with its template.
    """
    with readable(config, "actor_train"):
        tokenizer = load_tokenizer(config.model_path("actor_train"))
    chosen, written = config.chat_template, config.conversation_args
    try:
        tokenizer = with_template(tokenizer, chosen)
        renderer = ChatRenderer(tokenizer, enable_thinking=written.enable_thinking, history=written.history)
    except ChatTemplateError as error:
        key, value = ("pretrain", config.pretrain) if chosen is None else (config.chat_template_key, chosen)
        raise ConfigError([Problem(key, error.message, error.fix, value)]) from error
    return Text(tokenizer=tokenizer, renderer=renderer)


def model_folder(config: RLConfig, role: str) -> str:
    """Return the folder, or hub name, of the model of a role.

    Raises:
        ConfigError: If there is none.
    """
    with readable(config, role):
        return resolve_pretrain(config.model_path(role))


def load_role_model(config: RLConfig, role: str, predicts: Prediction = "log_probs") -> PreTrainedModel:
    """Load the model of a role: a language model, or a critic, which predicts values.

    Raises:
        ConfigError: If it cannot be loaded.
    """
    arguments = (getattr(config, role) or config.actor_train).model_args
    load = load_critic if predicts == "values" else load_model
    with readable(config, role):
        return load(
            config.model_path(role),
            # bf16 is mixed precision: fp32 weights and optimiser states, bf16 arithmetic.
            dtype="fp32" if arguments.dtype == "bf16" else arguments.dtype,
            device=str(device()),
            attn_implementation=ATTENTION[arguments.attn_implementation],
        )


def device() -> torch.device:
    """Return the first accelerator that this process sees, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def readable(config: RLConfig, role: str) -> Iterator[None]:
    """Make a model that is not there a problem of the key that names it.

    Raises:
        ConfigError: What is loaded inside is not there.
    """
    try:
        yield
    except ModelNotFoundError as error:
        worker = getattr(config, role)
        named = worker is not None and worker.model_args.model_name_or_path is not None
        shared = "reward_pretrain" if role == "critic" and config.reward_pretrain is not None else "pretrain"
        key = f"{role}.model_args.model_name_or_path" if named else shared
        raise ConfigError([Problem(key, error.message, error.fix, config.model_path(role))]) from error
