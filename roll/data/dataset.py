"""The prompts of a training run: an endless order that only the seed decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.data.order import RowOrder
from roll.data.prompts import Prompt, PromptPlace
from roll.data.report import LoadReport
from roll.data.table import PromptTable


class PromptDataset:
    """Prompts of several domains, each with its exact share, each shuffled anew in every epoch.

    ``at(position)`` depends on the data, the seed and the position alone. How far a run got is therefore one number:
    nothing is lost or repeated when it goes on from there, also at the end of an epoch.

    Attributes:
        table: The prompts in file order.
        order: Which of them stands at which position.
    """

    def __init__(
        self,
        table: PromptTable,
        *,
        seed: int,
        probabilities: Mapping[str, float] | None = None,
        shuffle: bool = True,
    ) -> None:
        """Fix the order; for the arguments and errors see :class:`roll.data.order.RowOrder`."""
        self.table = table
        self.order = RowOrder(table.domains, table.digests, seed=seed, probabilities=probabilities, shuffle=shuffle)

    def __len__(self) -> int:
        """Return the number of different prompts."""
        return len(self.table)

    @property
    def report(self) -> LoadReport:
        """What became of the rows of the files."""
        return self.table.report

    def at(self, position: int) -> Prompt:
        """Return the prompt at ``position`` (0, 1, 2, …), epochs included.

        Raises:
            IndexError: If ``position`` is negative.
        """
        return self.table[self.order.at(position)]

    def place(self, position: int) -> PromptPlace:
        """Return which prompt stands at ``position``, without its text.

        Raises:
            IndexError: If ``position`` is negative.
        """
        return self.table.place(self.order.at(position))

    def state_dict(self, position: int) -> dict[str, Any]:
        """Return a JSON-able record of a run that consumed the prompts before ``position``."""
        return self.order.state_dict(position)

    def check_state(self, state: Mapping[str, Any]) -> int:
        """Return the position of a record made by :meth:`state_dict`.

        Raises:
            DataError: If it was made with data in another order; the message names what differs.
        """
        return self.order.check_state(state)
