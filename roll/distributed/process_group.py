"""The ranks of a role as one ``torch.distributed`` group."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed

from roll.distributed.context import worker_context

Backend = Literal["gloo", "nccl"]


def init_process_group(backend: Backend | None = None, *, timeout: float = 1800.0) -> None:
    """Join the ranks of this worker's role; call it in the constructor of every rank.

    Args:
        backend: ``None``: NCCL for a worker with devices, gloo on the CPU.
        timeout: Seconds that a collective, and the meeting itself, may take before every waiting rank raises.

    Raises:
        RuntimeError: Outside a worker, or in one that shares its process with others (``cluster: local``).
        torch.distributed.DistStoreError: If not every rank came within ``timeout``.
    """
    context = worker_context()
    if not context.own_process:
        raise RuntimeError(
            f"{context.role} rank {context.rank} has no process of its own, which torch.distributed needs: "
            "use cluster=ray, or one worker without it."
        )
    chosen = backend or ("nccl" if context.devices else "gloo")
    if chosen == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group(
        chosen, rank=context.rank, world_size=context.size, timeout=timedelta(seconds=timeout)
    )
