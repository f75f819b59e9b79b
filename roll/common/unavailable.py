"""What is not there for a while: a server that is gone, an answer that does not come in time."""

from __future__ import annotations

import socket


class UnavailableError(Exception):
    """Something that an environment or a tool needs is not there now, through no fault of the policy.

    Environments and tools raise it for servers, connections and queues that may be back a moment later. The episode is
    then played again from its beginning (`max_retries`).
    """


def is_unavailable(error: BaseException | None) -> bool:
    """Whether an error, or one that it comes from, says that something is not there for a while.

    That is :class:`UnavailableError`, and what Python itself raises for connections, names of machines and time-outs.
    HTTP libraries raise theirs from these.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, UnavailableError | ConnectionError | TimeoutError | socket.gaierror):
            return True
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
