"""How weights travel: the settings, and which method fits where sender and receivers are."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

Method = Literal["in_process", "broadcast", "cuda_ipc", "checkpoint"]
Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class WeightSyncSettings:
    """How one sender and its receivers are connected.

    Attributes:
        method: How tensors travel; ``"auto"`` lets :func:`choose_method` decide.
        timeout: Seconds that any single wait may last: for a process to join, for a bucket, for an engine to load.
        host: Address under which the engines reach the trainer. ``None``: the loopback if all are on its machine, else
            the address that the machine uses towards others.
        directory: Folder for ``method="checkpoint"``, seen by trainer and engines under the same path.
        backend: Of a broadcast; ``None`` lets :func:`choose_backend` decide.

    Raises:
        ValueError: If a value is out of range or ``checkpoint`` has no directory.
    """

    method: Method | Literal["auto"] = "auto"
    timeout: float = 600.0
    host: str | None = None
    directory: Path | None = None
    backend: Backend | None = None

    def __post_init__(self) -> None:
        known = ("auto", *get_args(Method))
        if self.method not in known:
            raise ValueError(f"weight sync: method is {self.method!r}; choose one of {', '.join(known)}")
        if self.timeout <= 0:
            raise ValueError(f"weight sync: timeout is {self.timeout} s; it must be above 0")
        if self.method == "checkpoint" and self.directory is None:
            raise ValueError("weight sync: method checkpoint needs a directory that trainer and engines both see")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a participant runs. It can be pickled.

    Attributes:
        machine: Host name.
        pid: Process id on that machine.
        gpu: UUID of the GPU that holds its weights; ``None`` for the CPU.
    """

    machine: str
    pid: int
    gpu: str | None = None

    @classmethod
    def here(cls, device: torch.device | str = "cpu") -> Place:
        """Return the place of this process, whose weights are on ``device``."""
        device = torch.device(device)
        gpu = None if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)
        return cls(socket.gethostname(), os.getpid(), gpu)

    @property
    def process(self) -> tuple[str, int]:
        """What names the process."""
        return self.machine, self.pid


def choose_method(sender: Place, receivers: Sequence[Place], wanted: Method | Literal["auto"] = "auto") -> Method:
    """Return the method to use.

    ``auto`` hands over in process where all are one process, shares GPU memory where every receiver is on the sender's
    GPU, and broadcasts otherwise. ``checkpoint`` is used only if asked for.

    Raises:
        ValueError: If ``wanted`` cannot work with these places.
    """
    one_process = all(receiver.process == sender.process for receiver in receivers)
    one_gpu = sender.gpu is not None and all(
        (receiver.machine, receiver.gpu) == (sender.machine, sender.gpu) for receiver in receivers
    )
    if wanted == "auto":
        return "in_process" if one_process else "cuda_ipc" if one_gpu else "broadcast"
    if wanted == "in_process" and not one_process:
        raise ValueError("weight sync: in_process needs trainer and engines in one process; use broadcast")
    if wanted == "cuda_ipc" and not one_gpu:
        where = (
            "the trainer's weights are on the CPU" if sender.gpu is None else "an engine is not on the trainer's GPU"
        )
        raise ValueError(f"weight sync: cuda_ipc shares the memory of one GPU, but {where}; use broadcast")
    return wanted


def choose_backend(sender: Place, receivers: Sequence[Place], wanted: Backend | None = None) -> Backend:
    """Return ``nccl`` if each participant has a GPU of its own (NCCL allows one rank per GPU), else ``gloo``.

    Raises:
        ValueError: If ``wanted`` cannot work with these places.
    """
    gpus = [(place.machine, place.gpu) for place in (sender, *receivers)]
    has_own = all(gpu is not None for _, gpu in gpus) and len(set(gpus)) == len(gpus)
    if wanted == "nccl" and not has_own:
        raise ValueError(
            "weight sync: nccl sends between GPUs of which each process has its own, and here "
            f"{sum(gpu is not None for _, gpu in gpus)} of {len(gpus)} processes have one, "
            f"{len({gpu for gpu in gpus if gpu[1] is not None})} in all; use gloo"
        )
    return wanted or ("nccl" if has_own else "gloo")


def choose_host(sender: Place, receivers: Sequence[Place]) -> str:
    """Return an address of this machine that all receivers can reach."""
    if all(receiver.machine == sender.machine for receiver in receivers):
        return "127.0.0.1"
    return local_address("192.0.2.1", 9)


def local_address(host: str, port: int) -> str:
    """Return the address of this machine that packets to ``host`` leave from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return socket.gethostbyname(socket.gethostname())
        return str(probe.getsockname()[0])
