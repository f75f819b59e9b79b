"""A stack."""


class Stack:
    """The newest item is on top."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Put an item on top."""
        self.items.append(item)

    def pop(self):
        """Take the item on top."""
        return self.items.pop(0)
