"""Whether a run shows its policy pictures, and by which key."""

from __future__ import annotations

from roll.config import PlayingConfig
from roll.config.prompt_keys import PromptKeys
from roll.config.trainer_keys import TrainerKeys
from roll.envs import get_tag
from roll.envs.errors import UnknownTagError


def pictures_shown_by(config: TrainerKeys) -> str | None:
    """Return the key that shows pictures; ``None`` where the policy reads text alone."""
    if isinstance(config, PlayingConfig):
        played = (_key(config, name) for name in sorted(config.played_tags) if _shows(config, name))
        found = next(played, None)
        if found is not None:
            return found
    return _key_of_rows(config) if isinstance(config, PromptKeys) else None


def _key_of_rows(config: PromptKeys) -> str | None:
    if isinstance(config, PlayingConfig) and not config.prompts_per_step:
        return None
    if config.actor_train.data_args.image_key is not None:
        return "actor_train.data_args.image_key"
    measured = config.validation is not None and config.val_data_args.image_key is not None
    return "validation.data_args.image_key" if measured else None


def _shows(config: PlayingConfig, name: str) -> bool:
    described = config.tags().get(name)
    try:
        return (get_tag(name) if described is None else described).show != "text"
    except UnknownTagError:  # said elsewhere
        return False


def _key(config: PlayingConfig, name: str) -> str:
    if name in config.custom_envs:
        return f"custom_envs.{name}.show"
    return f"custom_env.{name}.show" if name in config.custom_env else f"show of tag {name}"
