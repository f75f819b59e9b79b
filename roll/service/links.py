"""Addresses that whoever has them may read for some time, without a key: what clients hand to a downloader."""

from __future__ import annotations

import hashlib
import hmac
import time
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import URL

_SECONDS: Final = 900
"""How long an address is good."""


class SignedLinks:
    """Makes such addresses, and knows them again.

    Args:
        key: The server's; addresses are good for servers with the same one.
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def to(self, url: URL) -> tuple[str, datetime]:
        """Return an address of ``url``, and until when it is good."""
        until = int(time.time()) + _SECONDS
        query = urlencode({"until": until, "signature": self._signature(url.path, str(until))})
        return str(url.replace(query=query)), datetime.fromtimestamp(until, UTC)

    def allow(self, url: URL, until: str, signature: str) -> bool:
        """Return whether ``url`` is an address from here that is good yet."""
        known = hmac.compare_digest(signature.encode(), self._signature(url.path, until).encode())
        return known and time.time() <= int(until)

    def _signature(self, path: str, until: str) -> str:
        return hmac.new(self._key, f"{path}?{until}".encode(), hashlib.sha256).hexdigest()
