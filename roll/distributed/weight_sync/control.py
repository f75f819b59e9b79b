"""Small messages between the trainer and its engines, in a key-value store that the trainer's process hosts.

Tensors travel by other ways. What goes through here is who is there, what is sent, who has loaded it, and who failed:
so every wait ends, with a name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from roll.distributed.weight_sync.errors import WeightSyncError, WeightSyncTimeoutError

SENDER: Final = "the trainer"

_FAILURES: Final = "failures"
_CHECK_EVERY: Final = 0.2
"""Seconds between two looks at whether somebody failed."""
_GRACE: Final = 2.0
"""Seconds in which a participant that lives notices that another one failed: it looks every ``_CHECK_EVERY``."""


class PeerFailedError(WeightSyncError):
    """Another participant failed and said so."""


class Control:
    """One participant's end of the message store.

    Args:
        store: Shared by all participants.
        name: This participant, as errors call it.
        peers: The others.
        timeout: Seconds that a wait may last.
    """

    def __init__(self, store: TCPStore, name: str, peers: Sequence[str], timeout: float) -> None:
        self.store = store
        self.name = name
        self.peers = tuple(peers)
        self.timeout = timeout

    def post(self, key: str, message: Any = True) -> None:
        """Publish a message (anything JSON can hold) under ``key``."""
        with self._connection():
            self.store.set(key, json.dumps(message))

    def read(self, key: str) -> Any | None:
        """Return the message under ``key``, or ``None`` if there is none yet."""
        with self._connection():
            return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def delete(self, keys: Iterable[str]) -> None:
        """Forget messages; missing ones are no error."""
        with self._connection():
            for key in keys:
                self.store.delete_key(key)

    def wait(self, key: str, doing: str, peer: str = SENDER) -> Any:
        """Return the message that ``peer`` publishes under ``key``.

        Raises:
            WeightSyncError: If it does not come in time or a participant failed.
        """
        found: list[Any] = []

        def ready() -> bool:
            found[:] = [self.read(key)]
            return found[0] is not None

        self.poll(ready, doing, lambda: [peer])
        return found[0]

    def wait_for_all(self, prefix: str, doing: str) -> None:
        """Wait until every peer has published ``prefix/<name>``.

        Raises:
            WeightSyncError: If one does not in time, or failed.
        """
        missing = list(self.peers)

        def ready() -> bool:
            missing[:] = [peer for peer in missing if self.read(f"{prefix}/{peer}") is None]
            return not missing

        self.poll(ready, doing, lambda: missing)

    def poll(self, ready: Callable[[], bool], doing: str, waiting_for: Callable[[], Sequence[str]]) -> None:
        """Return once ``ready()``.

        Args:
            ready: Asked again and again, less often the longer it takes.
            doing: What is waited for, for the error (``"to join"``).
            waiting_for: Names of those that have not answered.

        Raises:
            PeerFailedError: If another participant reported a failure.
            WeightSyncTimeoutError: After ``timeout`` seconds.
        """
        start = time.monotonic()
        next_check = start + _CHECK_EVERY
        while not ready():
            now = time.monotonic()
            if now >= next_check:
                self.raise_failure()
                next_check = now + _CHECK_EVERY
            if now - start >= self.timeout:
                names = ", ".join(waiting_for())
                raise WeightSyncTimeoutError(
                    f"weight sync: {self.name} waited {self.timeout:g} s for {names} {doing}. Look there for the "
                    "cause, or raise the timeout"
                )
            # A bucket takes milliseconds, an update of the policy minutes.
            time.sleep(min(max((now - start) / 20, 0.0002), 0.02))

    def report(self, error: BaseException) -> None:
        """Tell the others that this participant failed. What cannot be told is left untold."""
        text = str(error) if isinstance(error, WeightSyncError) else f"{type(error).__name__}: {error}"
        failure = {"name": self.name, "text": text}
        with suppress(WeightSyncError), self._connection():
            self.store.append(_FAILURES, json.dumps(failure) + "\n")  # type: ignore[attr-defined]

    def raise_failure(self) -> None:
        """Raise what another participant reported, if one did, and confirm that it was heard.

        Raises:
            PeerFailedError: With its name and its words.
        """
        failure = next((one for one in self._failures() if one["name"] != self.name), None)
        if failure is None:
            return
        self.post(f"heard/{self.name}")
        raise PeerFailedError(f"weight sync: {failure['name']} failed: {failure['text']}")

    def silent_peers(self) -> list[str]:
        """Return the peers that do not react to a failure that was reported: dead, cut off or busy loading."""
        silent = list(self.peers)
        deadline = time.monotonic() + min(_GRACE, self.timeout)
        with suppress(WeightSyncError):
            while silent and time.monotonic() < deadline:
                time.sleep(0.01)
                failed = {failure["name"] for failure in self._failures()}
                silent = [peer for peer in silent if peer not in failed and self.read(f"heard/{peer}") is None]
        return silent

    def _failures(self) -> list[dict[str, Any]]:
        with self._connection():
            text = self.store.get(_FAILURES).decode() if self.store.check([_FAILURES]) else ""
        return [json.loads(line) for line in text.splitlines()]

    @contextmanager
    def _connection(self) -> Iterator[None]:
        """Turn the store's errors into ours."""
        try:
            yield
        except (DistNetworkError, DistStoreError) as error:
            raise WeightSyncError(
                f"weight sync: {self.name} lost {SENDER}'s message store: its process ended, closed the weight sync, "
                f"or cannot be reached ({error})"
            ) from error


def host_store(host: str, timeout: float) -> TCPStore:
    """Open a store in this process, on a free port.

    Like torch's own rendezvous it has no password: whoever reaches the port can write to it, so keep it inside the
    cluster's network.
    """
    return TCPStore(host, 0, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False)


def join_store(host: str, port: int, name: str, timeout: float) -> TCPStore:
    """Connect to the sender's store.

    Raises:
        WeightSyncError: If nobody answers there in time.
    """
    try:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False)
    except (DistNetworkError, DistStoreError) as error:
        raise WeightSyncError(
            f"weight sync: {name} could not reach {SENDER} at {host}:{port} within {timeout:g} s ({error})"
        ) from error
