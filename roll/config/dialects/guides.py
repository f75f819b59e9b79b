"""The guides whose spelling is understood."""

from __future__ import annotations

from typing import Final

from roll.config.dialects.chatlearn import CHATLEARN
from roll.config.dialects.mindspeed import MINDSPEED
from roll.config.dialects.rows import Guide
from roll.config.dialects.trinity import TRINITY
from roll.config.dialects.upstream_roll import ROLL
from roll.config.dialects.verl import VERL

GUIDES: Final[tuple[Guide, ...]] = (VERL, CHATLEARN, MINDSPEED, TRINITY)
"""In the order in which they are asked where a section could be of several."""

BESIDE: Final[tuple[Guide, ...]] = (ROLL,)
"""Those whose keys stand beside native ones, and below names of the user's own."""


def other_names(native: str) -> set[str]:
    """Return the keys of every guide that may set the native key ``native``, in all their spellings."""
    found = set()
    for guide in (*GUIDES, *BESIDE):
        for row in guide.rows:
            if native in row.targets:
                found.add(row.key)
                for spelled, path in guide.short.items():
                    if row.key.startswith(f"{path}."):
                        found.add(spelled + row.key.removeprefix(path))
    return found
