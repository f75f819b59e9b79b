"""A train rank's end of the links over which engines get their weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from roll.distributed.weight_sync import Manifest, Place, WeightOffer, WeightSender, WeightSyncSettings, describe
from roll.strategies.fingerprints import Fingerprints, fingerprint


@dataclass(frozen=True, slots=True)
class WholeWeights:
    """The weights of now, of which every rank reads all: a sharded model is gathered meanwhile.

    Attributes:
        stream: Yields full tensors under Hugging Face names.
        speaks: Whether this is the rank that does something with them, rank 0.
        device: Where the tensors are.
    """

    stream: Callable[[], Iterable[tuple[str, torch.Tensor]]]
    speaks: bool
    device: torch.device

    @contextmanager
    def read(self) -> Iterator[Iterator[tuple[str, torch.Tensor]]]:
        """Lend full tensors of any shape to the rank that speaks, who may read them later too; others read all here.

        If what is done with them fails, the rest is read all the same: left alone, the other ranks would wait, or meet
        this rank's next collective.
        """
        tensors = iter(self.stream())
        try:
            yield tensors
        except BaseException:
            deque(tensors, maxlen=0)
            raise
        if not self.speaks:
            deque(tensors, maxlen=0)


class WeightLinks:
    """Links by name: one to all engines, and one to an engine that was just restarted.

    Args:
        weights: What is sent.
    """

    def __init__(self, weights: WholeWeights) -> None:
        self._weights = weights
        self._senders: dict[str, WeightSender] = {}
        self._manifests: dict[torch.dtype | None, Manifest] = {}

    def open(
        self,
        link: str,
        receivers: Mapping[str, Place],
        settings: WeightSyncSettings,
        wire_dtype: torch.dtype | None,
        bucket_bytes: int,
    ) -> WeightOffer | None:
        """Make a link; an older one of that name is closed.

        Returns:
            What the receivers need, from the rank that sends.
        """
        self.close(link)
        if wire_dtype not in self._manifests:
            manifest = describe(self._weights.stream(), bucket_bytes=bucket_bytes, wire_dtype=wire_dtype)
            self._manifests[wire_dtype] = manifest
        if not self._weights.speaks:
            return None
        sender = WeightSender(self._manifests[wire_dtype], receivers, settings, device=self._weights.device)
        self._senders[link] = sender
        return sender.offer

    def send(self, link: str, version: int) -> dict[str, float]:
        """Send the weights of now as ``version``; returns metrics from the rank that sends."""
        with self._weights.read() as tensors:
            return self._senders[link].send(version, tensors) if self._weights.speaks else {}

    def fingerprints(self, dtype: torch.dtype | None) -> Fingerprints:
        """Return fingerprints of the weights of now, rounded to ``dtype``, from the rank that sends."""
        with self._weights.read() as tensors:
            return {name: fingerprint(tensor, dtype) for name, tensor in tensors} if self._weights.speaks else {}

    def close(self, link: str) -> None:
        """Close a link; one that is not there is ignored."""
        sender = self._senders.pop(link, None)
        if sender is not None:
            sender.close()

    def close_all(self) -> None:
        """Close every link."""
        for link in list(self._senders):
            self.close(link)
