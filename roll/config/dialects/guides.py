"""The guides whose spelling is understood."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.chatlearn import CHATLEARN
from roll.config.dialects.mindspeed import MINDSPEED
from roll.config.dialects.rows import Guide
from roll.config.dialects.trinity import TRINITY
from roll.config.dialects.verl import VERL

GUIDES: Final[tuple[Guide, ...]] = (VERL, CHATLEARN, MINDSPEED, TRINITY)
"""In the order in which they are asked where a section could be of several."""
