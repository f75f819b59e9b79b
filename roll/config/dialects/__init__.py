"""The spelling of other projects' guides: verl, ChatLearn, MindSpeed-RL and Trinity-RFT, translated to native keys."""

from roll.config.dialects.foreign_keys import ForeignKey, State, is_typing_mistake
from roll.config.dialects.guides import GUIDES, other_names
from roll.config.dialects.page import insert_dialects, render_dialects
from roll.config.dialects.rows import Guide, Row
from roll.config.dialects.translation import Translation, translate
from roll.config.dialects.upstream_roll import ROLL_FILE

__all__ = [
    "GUIDES",
    "ROLL_FILE",
    "ForeignKey",
    "Guide",
    "Row",
    "State",
    "Translation",
    "insert_dialects",
    "is_typing_mistake",
    "other_names",
    "render_dialects",
    "translate",
]
