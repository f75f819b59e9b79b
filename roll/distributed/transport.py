"""Values as Ray's object store takes them: tensors beside the pickle, so that a reader maps them instead of copying."""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray import cloudpickle

from roll.distributed.lent_memory import LENDER, Loan, Neighbour

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled value.

    Attributes:
        data: The pickle, without the memory of arrays and tensors.
        buffers: That memory. Ray stores it apart and gives readers on the same machine a read-only view.
        loan: Where the memory lies, if its only reader opens it without Ray; ``buffers`` is empty then.
    """

    data: bytes
    buffers: list[Any]
    loan: Loan | None = None

    def lent(self, reader: Neighbour, within: float = float("inf")) -> Packed:
        """Return the same with its memory lent to its only reader, where that is worth it.

        Args:
            reader: A process that is near.
            within: Seconds after which it will not read it any more.
        """
        loan = LENDER.lend(self.buffers, reader, within)
        return self if loan is None else Packed(self.data, [], loan)


def pack(value: Any) -> Packed:
    """Pickle ``value``; CPU tensors and arrays in it, at any depth, are not copied yet.

    Tensors on other devices, and those that are not contiguous, are copied once. A tensor that needs a gradient
    arrives without its graph.

    Raises:
        TypeError, pickle.PicklingError: If something in ``value`` cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return Packed(stream.getvalue(), buffers)


def unpack(packed: Packed) -> Any:
    """Return the value; its tensors are views of ``packed``'s memory, so nobody may write into them.

    Raises:
        LoanError: If that memory was lent, and cannot be opened here.
    """
    return pickle.loads(packed.data, buffers=packed.buffers if packed.loan is None else packed.loan.open())


class _Pickler(cloudpickle.Pickler):
    """Ray's pickler, which also takes functions and classes of a script, with torch's tensors out of band."""

    def reducer_override(self, obj: Any) -> Any:
        # Workers without torch must not import it for this question.
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter) and _is_plain(obj):
            tensor = obj.detach().contiguous().cpu()
            array = tensor.reshape(-1).view(torch.uint8).numpy()
            return _tensor, (array, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        return super().reducer_override(obj)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is sys.modules["torch"].strided and not tensor.is_quantized


def _tensor(array: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    from roll.distributed.read_only import tensor_of

    return tensor_of(array).view(getattr(torch, dtype)).reshape(shape)
