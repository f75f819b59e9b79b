"""Whether a run shows its policy pictures, and by which key."""

from __future__ import annotations

from roll.config.trainer_keys import TrainerKeys
from roll.envs import get_tag
from roll.envs.errors import UnknownTagError


def pictures_shown_by(config: TrainerKeys) -> str | None:
    """Return the key that shows pictures; ``None`` where the policy reads text alone."""
    played = (_key(config, name) for name in sorted(config.played_tags) if _shows(config, name))
    return next(played, config.image_key_of_rows)


def _shows(config: TrainerKeys, name: str) -> bool:
    described = config.tags().get(name)
    try:
        return (get_tag(name) if described is None else described).show != "text"
    except UnknownTagError:  # said elsewhere
        return False


def _key(config: TrainerKeys, name: str) -> str:
    section = config.section_of(name)
    return f"show of tag {name}" if section is None else f"{section}.{name}.show"
