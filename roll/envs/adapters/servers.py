"""What a server of environments says of itself, before the first episode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from roll.common.unavailable import UnavailableError
from roll.envs.errors import EnvConfigError


@contextmanager
def asking(url: str, of: str) -> Iterator[None]:
    """Ask a server what it is, in a ``with`` block that reads what it answers.

    Args:
        url: Its address.
        of: The name of the library whose server it should be.

    Raises:
        EnvConfigError: It is no address, nobody answers there (its cause is an :class:`UnavailableError`, for it may
            only have to be started), or what came is not what such a server says.
    """
    if not url.startswith(("http://", "https://")):
        raise EnvConfigError(f"url={url!r}: write the address of your {of} server, such as http://127.0.0.1:8000")
    try:
        yield
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        gone = UnavailableError(f"{type(error).__name__}: {error}")
        raise EnvConfigError(f"url={url!r}: no {of} server answers there ({gone})") from (
            gone if isinstance(error, httpx.TransportError) else error
        )
