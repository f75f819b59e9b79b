"""What only a CUDA device can show. Without one these tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: make test-gpu")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="module")
def nccl(cuda: torch.device) -> Iterator[torch.device]:
    """The device, in a group of this process alone whose tensors travel by NCCL."""
    if dist.is_initialized():
        dist.destroy_process_group()  # a run in this process has left its own
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield cuda
    dist.destroy_process_group()
