"""Minesweeper, written with the public API alone: ``roll envs play examples.minesweeper:Minesweeper``."""

from __future__ import annotations

from collections.abc import Iterator

from roll.envs import Outcome, TextEnv, register_env


@register_env("minesweeper", max_steps=16)
class Minesweeper(TextEnv):
    """Open every cell without a mine. A number says how many of the cells around it have one; . is a closed cell.

    A cell is named by its row and its column, counted from 1. No mine is next to the first cell that is opened.
    """

    def __init__(self, size: int = 5, mines: int = 3, max_steps: int = 16) -> None:
        names = [f"{row} {column}" for row in range(1, size + 1) for column in range(1, size + 1)]
        super().__init__(actions=names, max_steps=max_steps, worst_reward=-1.0)
        self.size, self.count = size, mines

    def start(self) -> str:
        """Close every cell. Where the mines are is drawn here, and fixed by the seed; they lie once a cell is open."""
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        self.order = [cells[int(number)] for number in self.np_random.permutation(len(cells))]
        self.mines: set[tuple[int, int]] = set()
        self.open: set[tuple[int, int]] = set()
        return self.board()

    def act(self, action: str) -> Outcome:
        """Open a cell, and what is around a cell with no mine near it."""
        row, column = (int(number) - 1 for number in action.split())
        if not self.mines:
            safe = {(row, column), *self.around(row, column)}
            self.mines = set([cell for cell in self.order if cell not in safe][: self.count])
        if (row, column) in self.open:
            return Outcome(self.board(), {"again": -0.1}, effective=False)
        if (row, column) in self.mines:
            return Outcome("That was a mine.", {"mine": -1.0}, terminated=True)
        before, waiting = len(self.open), [(row, column)]
        while waiting:
            cell = waiting.pop()
            self.open.add(cell)
            if not self.near(*cell):
                waiting += [each for each in self.around(*cell) if each not in self.open]
        share = (len(self.open) - before) / (self.size**2 - self.count)
        won = len(self.open) == self.size**2 - self.count
        return Outcome(self.board(), {"opened": share}, terminated=won, success=won)

    def solution(self) -> list[str] | None:
        """Open what has no mine; not known before the first cell is open, since mines keep away from it."""
        if not self.mines:
            return None
        return [f"{row + 1} {column + 1}" for row, column in self.order if (row, column) not in self.mines | self.open]

    def around(self, row: int, column: int) -> Iterator[tuple[int, int]]:
        """Yield the neighbours of a cell."""
        for down in range(max(row - 1, 0), min(row + 2, self.size)):
            for right in range(max(column - 1, 0), min(column + 2, self.size)):
                if (down, right) != (row, column):
                    yield down, right

    def near(self, row: int, column: int) -> int:
        """Count the mines around a cell."""
        return sum(cell in self.mines for cell in self.around(row, column))

    def board(self) -> str:
        """Draw the cells."""
        rows = range(self.size)
        return "\n".join(
            " ".join(str(self.near(row, column)) if (row, column) in self.open else "." for column in rows)
            for row in rows
        )
