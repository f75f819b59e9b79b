"""The spelling of other projects' guides: verl, ChatLearn, MindSpeed-RL and Trinity-RFT, translated to native keys."""

from roll.config.dialects.guides import GUIDES, other_names
from roll.config.dialects.page import insert_dialects, render_dialects
from roll.config.dialects.rows import Guide, Row
from roll.config.dialects.translation import ForeignKey, Translation, translate

__all__ = [
    "GUIDES",
    "ForeignKey",
    "Guide",
    "Row",
    "Translation",
    "insert_dialects",
    "other_names",
    "render_dialects",
    "translate",
]
