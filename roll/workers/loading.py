"""Models and tokenizer of a role, and errors that name the key to correct."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from roll.config import ConfigError, Problem
from roll.config.trainer_keys import Head, TrainerKeys
from roll.config.worker import ModelArgs
from roll.models.critic import load_critic
from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.number_format import own_format
from roll.models.reward_model import load_reward_model
from roll.models.rope import scaled_folder
from roll.rendering import ChatRenderer, ChatTemplateError, MessageRenderer, PictureRenderer, with_template
from roll.strategies.pictures import PictureError, PictureGrid, load_image_processor
from roll.workers.pictures import pictures_shown_by

_LOADERS: Final[Mapping[Head, Callable[..., PreTrainedModel]]] = MappingProxyType(
    {"language": load_model, "value": load_critic, "score": load_reward_model}
)

ATTENTION = {"auto": None, "eager": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2"}


@dataclass(kw_only=True)
class Text:
    """Text to tokens and back; there before any model is loaded, so that data can be checked first.

    Attributes:
        tokenizer: Of the policy; of one that takes messages, nothing that knows tokens.
        renderer: Messages to tokens and back.
    """

    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer | MessageRenderer

    def token_text(self, token: int) -> str:
        """Return the text of one token, for people."""
        return str(self.tokenizer.decode([token]))

    def written(self, tokens: list[int]) -> str:
        """Return the text of tokens, special ones written out: texts that end a response are looked for in it."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def plain_tokens(self) -> list[int]:
        """Return the tokens that stand for text: no special ones, and none that were added to the vocabulary."""
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.get_added_vocab().values())
        return sorted(set(self.tokenizer.get_vocab().values()) - special)


def load_text(config: TrainerKeys) -> Text:
    """Load the policy's tokenizer, with the chat template that the configuration names.

    Raises:
        ConfigError: If it cannot be loaded, or no conversation can be held with its template.
    """
    engine = dict(config.roles()).get("actor_infer")
    if engine is not None and engine.strategy_args.about.answers_text:
        nothing = MessageRenderer()
        return Text(tokenizer=cast(PreTrainedTokenizerBase, nothing), renderer=nothing)
    with readable(config, "actor_train"):
        tokenizer = load_tokenizer(config.model_path("actor_train"))
    chosen, written = config.chat_template, config.conversation_args
    options: dict[str, Any] = {"enable_thinking": written.enable_thinking, "history": written.history}
    shown_by = pictures_shown_by(config)
    try:
        tokenizer = with_template(tokenizer, chosen)
        if shown_by is None:
            renderer = ChatRenderer(tokenizer, **options)
        else:
            renderer = PictureRenderer(tokenizer, **_picture_options(config, shown_by), **options)
    except ChatTemplateError as error:
        key, value = ("pretrain", config.pretrain) if chosen is None else (config.chat_template_key, chosen)
        raise ConfigError([Problem(key, error.message, error.fix, value)]) from error
    return Text(tokenizer=tokenizer, renderer=renderer)


def _picture_options(config: TrainerKeys, shown_by: str) -> dict[str, Any]:
    """Return what a renderer is told of the pictures that a key of the configuration shows.

    Raises:
        ConfigError: The policy reads text alone.
    """
    with readable(config, "actor_train"):
        folder = resolve_pretrain(config.model_path("actor_train"))
    placeholder = getattr(AutoConfig.from_pretrained(folder), "image_token_id", None)
    try:
        if placeholder is None:
            raise PictureError("it reads text alone")
        grid = PictureGrid(load_image_processor(folder))
    except PictureError as error:
        message = f"{error}, and {shown_by} shows the policy pictures."
        fix = f"name a vision-language model like Qwen2-VL or Qwen2.5-VL, or leave {shown_by} out."
        problem = Problem(config.model_key("actor_train"), message, fix, config.model_path("actor_train"))
        raise ConfigError([problem]) from error
    return {"placeholder": placeholder, "grid": grid}


def model_folder(config: TrainerKeys, role: str) -> str:
    """Return the folder, or hub name, of the model of a role.

    Raises:
        ConfigError: If there is none.
    """
    with readable(config, role):
        return resolve_pretrain(_loaded_from(config, role))


def number_format(config: TrainerKeys, role: str) -> str:
    """Return the number format in which the model of a role computes: ``fp32``, ``bf16`` or ``fp16``.

    Raises:
        ConfigError: It is the model's own, and there is no model.
    """
    chosen: str = config.model_args(role).dtype
    if chosen != "auto":
        return chosen
    if config.role(role).strategy_args.about.answers_text:
        return "fp32"  # behind an endpoint the model is elsewhere, and nothing of it is loaded or sent
    source = "actor_train" if role == "actor_infer" else role
    with readable(config, source):
        return own_format(config.model_path(source))


def load_role_model(config: TrainerKeys, role: str) -> PreTrainedModel:
    """Load the model of a role: a language model, or one with a number in place of the vocabulary.

    Raises:
        ConfigError: If it cannot be loaded.
    """
    arguments, dtype = config.role(role).model_args, number_format(config, role)
    with readable(config, role):
        return _LOADERS[config.head(role)](
            _loaded_from(config, role),
            # bf16 is mixed precision: fp32 weights and optimiser states, bf16 arithmetic.
            dtype="fp32" if dtype == "bf16" else dtype,
            device=str(device()),
            attn_implementation=ATTENTION[arguments.attn_implementation],
        )


def as_scaled(path: str, arguments: ModelArgs) -> str:
    """Return what is loaded of a model: itself, or the folder in which it has the rotary waves that its role names.

    Raises:
        ModelNotFoundError: There is no such model, or its waves cannot be changed.
    """
    scaling, theta = arguments.rope_scaling, arguments.rope_theta
    if scaling is None and theta is None:
        return path
    return scaled_folder(path, None if scaling is None else scaling.parameters(), theta)


def _loaded_from(config: TrainerKeys, role: str) -> str:
    return as_scaled(config.model_path(role), config.model_args(role))


def require_same_tokens(config: TrainerKeys, text: Text, roles: Sequence[str]) -> None:
    """Raise unless the models of frozen roles give every token the number that the policy gives it.

    Raises:
        ConfigError: Their distributions are over other tokens, so nothing can be compared token by token.
    """
    own = config.model_path("actor_train")
    for role in roles:
        path = config.model_path(role)
        if path == own:
            continue
        with readable(config, role):
            theirs = load_tokenizer(path).get_vocab()
        mine = text.tokenizer.get_vocab()
        if theirs != mine:
            other = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
            message = (
                f"its tokenizer is not that of the policy ({own}): {len(other)} tokens differ, {other[0]!r} for one, "
                "so distributions cannot be compared token by token."
            )
            fix = (
                "name a model with the same tokenizer. From any other, the policy can learn on the level of text only: "
                "let it write answers, and imitate them with pipeline: sft."
            )
            raise ConfigError([Problem(config.model_key(role), message, fix, path)])


def device() -> torch.device:
    """Return the first accelerator that this process sees, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def readable(config: TrainerKeys, role: str) -> Iterator[None]:
    """Make a model that is not there a problem of the key that names it.

    Raises:
        ConfigError: What is loaded inside is not there.
    """
    try:
        yield
    except ModelNotFoundError as error:
        problem = Problem(config.model_key(role), error.message, error.fix, config.model_path(role))
        raise ConfigError([problem]) from error
