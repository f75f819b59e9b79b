"""Weights in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from roll.strategies.generation.vllm.buckets import buckets_of, open_bucket

TENSORS = {
    "matrix": torch.randn(7, 9),
    "transposed": torch.randn(4, 6).t(),
    "half": torch.randn(13).to(torch.bfloat16),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "flag": torch.tensor([True, False, True]),
    "count": torch.arange(5),
    "double": torch.randn(3, dtype=torch.float64),
}


def open_memory() -> int:
    """Return how many buckets this process has open."""
    links = (
        os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{fd}").exists()
    )
    return sum("roll-weights" in link for link in links)


@pytest.mark.parametrize("bucket_bytes", [1, 200, 10_000])
def test_tensors_arrive_bit_for_bit_whatever_the_bucket(bucket_bytes: int) -> None:
    arrived: dict[str, torch.Tensor] = {}
    sizes = []
    for bucket in buckets_of(TENSORS.items(), bucket_bytes):
        # Copies, for a reader keeps the bucket's memory open.
        arrived |= {name: tensor.clone() for name, tensor in open_bucket(bucket.path, bucket.rows)}
        sizes.append(bucket.nbytes)
        # One bucket at a time; Python keeps a second descriptor for its mapping.
        assert open_memory() == 2
    assert open_memory() == 0
    assert list(arrived) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert arrived[name].dtype == tensor.dtype
        assert torch.equal(arrived[name], tensor), name
    assert max(sizes) <= max(bucket_bytes, 7 * 9 * 4 + 64)
    assert (len(sizes) == 1) == (bucket_bytes == 10_000)


def test_a_tensor_is_copied_before_the_next_one_is_asked_for() -> None:
    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        memory = torch.empty(16)
        for number in range(5):
            yield f"layer.{number}", memory.fill_(number)
        memory.fill_(-1)

    arrived = {name: t for bucket in buckets_of(gathered()) for name, t in open_bucket(bucket.path, bucket.rows)}
    assert [tensor[0].item() for tensor in arrived.values()] == [0, 1, 2, 3, 4]


def test_a_source_that_fails_leaves_nothing_open() -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "first", torch.ones(3)
        raise KeyError("second")

    with pytest.raises(KeyError):
        list(buckets_of(broken()))
    assert open_memory() == 0


def test_nothing_a_reader_writes_reaches_the_sender() -> None:
    for bucket in buckets_of({"w": torch.ones(4)}.items()):
        dict(open_bucket(bucket.path, bucket.rows))["w"].fill_(7)
        assert torch.equal(dict(open_bucket(bucket.path, bucket.rows))["w"], torch.ones(4))


@pytest.mark.processes
def test_another_process_can_open_a_bucket() -> None:
    # Without torch, which takes seconds to load.
    program = "import struct, sys; print(struct.unpack('3f', open(sys.argv[1], 'rb').read(12)))"
    for bucket in buckets_of({"w": torch.tensor([1.5, -2.0, 4.0])}.items()):
        done = subprocess.run([sys.executable, "-c", program, bucket.path], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == "(1.5, -2.0, 4.0)", done.stderr
