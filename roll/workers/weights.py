"""A train rank's end of the links over which engines get their weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import torch

from roll.distributed.weight_sync import Manifest, Place, WeightOffer, WeightSender, WeightSyncSettings, describe
from roll.strategies.fingerprints import Fingerprints, fingerprint

NamedTensors = Callable[[], Iterable[tuple[str, torch.Tensor]]]


class WeightLinks:
    """Links by name: one to all engines, and one to an engine that was just restarted.

    Every rank takes part, because a sharded model is gathered while it is read; rank 0 alone sends.

    Args:
        named_parameters: Streams full tensors under Hugging Face names.
        sends: Whether this is the rank that sends.
        device: Where the tensors are.
    """

    def __init__(self, named_parameters: NamedTensors, sends: bool, device: torch.device) -> None:
        self._named_parameters = named_parameters
        self._sends = sends
        self._device = device
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
            manifest = describe(self._named_parameters(), bucket_bytes=bucket_bytes, wire_dtype=wire_dtype)
            self._manifests[wire_dtype] = manifest
        if not self._sends:
            return None
        sender = WeightSender(self._manifests[wire_dtype], receivers, settings, device=self._device)
        self._senders[link] = sender
        return sender.offer

    def send(self, link: str, version: int) -> dict[str, float]:
        """Send the weights of now as ``version``; returns metrics from the rank that sends."""
        if not self._sends:
            deque(self._named_parameters(), maxlen=0)
            return {}
        tensors = iter(self._named_parameters())
        try:
            return self._senders[link].send(version, tensors)
        except BaseException:
            # The other ranks gather all of them: left alone they would wait, or meet this rank's next collective.
            deque(tensors, maxlen=0)
            raise

    def fingerprints(self, dtype: torch.dtype | None) -> Fingerprints:
        """Return fingerprints of the weights of now, rounded to ``dtype``, from the rank that sends."""
        found: Fingerprints = {}
        for name, tensor in self._named_parameters():
            # Every rank reads all of them: a sharded model is gathered meanwhile.
            if self._sends:
                found[name] = fingerprint(tensor, dtype)
        return found

    def close(self, link: str) -> None:
        """Close a link; one that is not there is ignored."""
        sender = self._senders.pop(link, None)
        if sender is not None:
            sender.close()

    def close_all(self) -> None:
        """Close every link."""
        for link in list(self._senders):
            self.close(link)
