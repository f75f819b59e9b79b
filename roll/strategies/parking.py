"""Handing a device over: tensors leave their memory empty, and come back into it exactly as they were."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Parking:
    """Keeps the contents of tensors in CPU memory while their own memory is given back.

    The tensors themselves stay: whoever holds them, or a view of them, has them again after :meth:`restore`. In
    between nothing may read them. Tensors that share memory are moved once.
    """

    def __init__(self) -> None:
        self._parked: list[tuple[torch.UntypedStorage, Tensor]] = []

    def __len__(self) -> int:
        """Return how many blocks of memory are parked."""
        return len(self._parked)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept in CPU memory."""
        return sum(copy.nbytes for _, copy in self._parked)

    @torch.no_grad()
    def park(self, tensors: Iterable[Tensor]) -> None:
        """Copy what ``tensors`` hold to CPU memory (pinned, if they are on a CUDA device) and free theirs.

        They may have any shape, and share memory.
        """
        seen: set[int] = set()
        added: list[tuple[torch.UntypedStorage, Tensor]] = []
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            storage = local.untyped_storage()
            if storage.nbytes() == 0 or storage.data_ptr() in seen:
                continue
            seen.add(storage.data_ptr())
            cuda = storage.device.type == "cuda"
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=cuda)
            copy.copy_(_bytes(storage), non_blocking=cuda)
            added.append((storage, copy))
        # Copies of a device run behind; memory must not be freed under them.
        _wait(added)
        for storage, _ in added:
            storage.resize_(0)
        self._parked += added

    @torch.no_grad()
    def restore(self) -> None:
        """Give every tensor its memory and its contents back."""
        for storage, copy in self._parked:
            storage.resize_(copy.nbytes)
            _bytes(storage).copy_(copy, non_blocking=storage.device.type == "cuda")
        _wait(self._parked)
        self._parked = []


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _wait(blocks: list[tuple[torch.UntypedStorage, Tensor]]) -> None:
    for device in {storage.device for storage, _ in blocks if storage.device.type == "cuda"}:
        torch.cuda.synchronize(device)
