"""What can go wrong with tools: with how they are set up, and with how they are called."""

from __future__ import annotations

from roll.common import registry
from roll.common.unavailable import UnavailableError


class ToolConfigError(ValueError):
    """A tool cannot be made: it is no typed function with a docstring, or an option or a wall is missing."""


class ToolUnavailableError(ToolConfigError, UnavailableError):
    """A server that a tool needs is not there: a mistake of the configuration before a run, bad luck in it."""


class UnknownToolError(ToolConfigError, registry.UnknownNameError):
    """No tool of that name is registered."""


class WrongCallError(Exception):
    """A call that cannot be answered as it was written; the message tells the policy what to change.

    Tools raise it for what the policy did wrong. Whatever else they raise is their own failure, and costs it nothing.
    """
