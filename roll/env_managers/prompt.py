"""The prompt of an episode's next turn."""

from __future__ import annotations

from collections.abc import Sequence

from roll.generation import Picture


class Prompt:
    """All tokens that the policy is given, and those of them that no turn before has.

    Attributes:
        ids: The whole prompt.
        pictures: What its placeholders stand for, in order.
        added: What was added since the end of the previous turn.
        added_pictures: Those among ``added``, by their places there.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.pictures: list[Picture] = []
        self.added: list[int] = []
        self.added_pictures: list[Picture] = []

    def begin(self, ids: list[int], pictures: Sequence[Picture] = ()) -> None:
        """Take tokens for the whole prompt, whatever was before."""
        self.added, self.added_pictures = ids, list(pictures)
        self.ids, self.pictures = list(ids), list(pictures)

    def extend(self, completion_ids: Sequence[int], ids: list[int], pictures: Sequence[Picture] = ()) -> None:
        """Go on behind the prompt and what was sampled; ``pictures`` lie where they do among ``ids``."""
        start = len(self.ids) + len(completion_ids)
        self.added, self.added_pictures = ids, list(pictures)
        # New lists: an engine may still hold those that it was given.
        self.ids = [*self.ids, *completion_ids, *ids]
        self.pictures = [*self.pictures, *(picture.moved(start) for picture in pictures)]
