"""Words of a text."""


def longest(text):
    """Return the longest word."""
    return max(text.split(), key=len)
