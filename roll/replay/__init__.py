"""Stored episodes played again: does everything come out as it did, and what else could have come of them."""
