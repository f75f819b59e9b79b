"""Batches in parts: balanced, complete, in order, and put together again."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from roll.distributed.sharding import balanced_rows, shard, unshard

LENGTHS = st.lists(st.integers(0, 500), max_size=60)
RANKS = st.integers(1, 9)


def batch_of(lengths: list[int]) -> TensorDict:
    rows = len(lengths)
    return TensorDict({"row": torch.arange(rows), "ids": torch.arange(rows * 3).view(rows, 3)}, batch_size=[rows])


@given(LENGTHS, RANKS)
def test_every_row_goes_to_one_rank_and_keeps_its_place_in_the_order(lengths: list[int], ranks: int) -> None:
    parts = balanced_rows(lengths, ranks)
    assert len(parts) == ranks
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in parts)


@given(LENGTHS, RANKS)
def test_no_rank_is_busier_than_the_others_by_more_than_its_shortest_row(lengths: list[int], ranks: int) -> None:
    parts = balanced_rows(lengths, ranks)
    loads = [sum(lengths[row] for row in part) for part in parts]
    for part, load in zip(parts, loads, strict=True):
        if part:
            assert load - min(lengths[row] for row in part) <= min(loads)


@given(st.integers(0, 50), RANKS)
def test_rows_of_equal_length_are_shared_equally(rows: int, ranks: int) -> None:
    counts = [len(part) for part in balanced_rows([7] * rows, ranks)]
    assert max(counts) - min(counts) <= 1


@given(st.integers(0, 50), RANKS)
def test_rows_without_tokens_are_shared_equally(rows: int, ranks: int) -> None:
    counts = [len(part) for part in balanced_rows([0] * rows, ranks)]
    assert max(counts) - min(counts) <= 1


@settings(deadline=None)
@given(LENGTHS.filter(len), RANKS)
def test_unshard_undoes_shard(lengths: list[int], ranks: int) -> None:
    batch = batch_of(lengths)
    shards = shard(batch, lengths, ranks)
    for key in ("row", "ids"):
        together = unshard(shards, [part.batch[key] for part in shards])
        assert (together == batch[key]).all() and together.dtype == batch[key].dtype


def test_results_of_different_widths_are_padded() -> None:
    shards = shard(batch_of([5, 1, 4, 2]), [5, 1, 4, 2], 2)
    assert [part.rows.tolist() for part in shards] == [[0, 1], [2, 3]]
    outputs = [torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([[7.0], [8.0]])]
    whole = unshard(shards, outputs, fill=-1)
    assert whole.tolist() == [[1, 2, 3], [4, 5, 6], [7, -1, -1], [8, -1, -1]]


def test_a_rank_without_rows_does_not_decide_width_or_type() -> None:
    shards = shard(batch_of([3]), [3], 3)
    outputs = [torch.zeros(0, 9) if len(part.rows) == 0 else torch.tensor([[1, 2]]) for part in shards]
    assert unshard(shards, outputs).tolist() == [[1, 2]]
    assert unshard(shards, outputs).dtype == torch.int64


def test_further_dimensions_are_padded_each() -> None:
    shards = shard(batch_of([1, 1]), [1, 1], 2)
    whole = unshard(shards, [torch.ones(1, 2, 1), torch.ones(1, 1, 3)])
    assert whole.shape == (2, 2, 3)
    assert whole.sum() == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda shards: [torch.zeros(1)], "1 outputs for 2 shards"),
        (lambda shards: [torch.zeros(5), torch.zeros(2)], "Rank 0 returned 5 rows for 2"),
    ],
)
def test_results_that_do_not_match_are_refused(change: object, message: str) -> None:
    shards = shard(batch_of([1, 1, 1, 1]), [1, 1, 1, 1], 2)
    with pytest.raises(ValueError, match=message):
        unshard(shards, change(shards))  # type: ignore[operator]


def test_lengths_must_be_one_per_row() -> None:
    with pytest.raises(ValueError, match="2 lengths for 3 rows"):
        shard(batch_of([1, 1, 1]), [1, 1], 2)
    with pytest.raises(ValueError, match="negative"):
        balanced_rows([1, -1], 2)
    with pytest.raises(ValueError, match="ranks=0"):
        balanced_rows([1], 0)


@pytest.mark.parametrize("width", [3, 700])
def test_rows_arrive_as_they_were_and_wide_ones_are_not_copied_to_be_sent(width: int) -> None:
    batch = batch_of([4, 1, 1, 2, 3])
    batch["wide"] = torch.randn(5, width).double()
    batch["mask"] = batch["wide"] > 0
    batch["narrow"] = torch.randn(width, 5).bfloat16().T  # not contiguous
    batch["deep"] = torch.randn(5, 2, width)
    for part in shard(batch, [4, 1, 1, 2, 3], 3) + shard(batch, [4, 1, 1, 2, 3], 7):
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(part.sent, protocol=5, buffer_callback=buffers.append)
        arrived = pickle.loads(pickled, buffers=[bytes(buffer) for buffer in buffers])
        assert arrived.batch_size == part.batch.batch_size and set(arrived.keys()) == set(batch.keys())
        for name, column in part.batch.items():
            assert arrived[name].dtype == column.dtype and torch.equal(arrived[name], column)
        memory, own = batch["wide"].numpy(), [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        shared = [np.shares_memory(memory, each) for each in own]
        assert any(shared) == (width > 3 and len(part.rows) > 0)


@pytest.mark.parametrize(
    ("order", "gap", "shares"), [(1, 64, True), (1, 1024, True), (1, 12, False), (-1, 64, False), (0, 64, False)]
)
def test_rows_that_lie_at_even_distances_are_the_column_that_arrives(order: int, gap: int, shares: bool) -> None:
    batch = batch_of([1] * 6)
    batch["wide"] = torch.randn(6, 301).double()
    part = shard(batch, [1] * 6, 2)[1]
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(part.sent, protocol=5, buffer_callback=buffers.append)
    rows = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    assert [row.nbytes for row in rows] == [301 * 8] * 3
    # Each from the next multiple of `gap` on, as Ray's object store has them (64), backwards, or out of order.
    size = -(-301 * 8 // gap) * gap
    places = {1: [0, 1, 2], -1: [2, 1, 0], 0: [0, 2, 1]}[order]
    memory = np.zeros(3 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    lying = [memory[start + place * size :][: 301 * 8] for place in places]
    for place, row in zip(lying, rows, strict=True):
        place[:] = row
    memory.flags.writeable = False
    column = pickle.loads(pickled, buffers=lying)["wide"]
    assert torch.equal(column, part.batch["wide"])
    assert np.shares_memory(memory, column.numpy()) == shares


def test_the_only_rank_is_given_the_batch_itself() -> None:
    batch = batch_of([4, 1, 2])
    (part,) = shard(batch, [4, 1, 2], 1)
    assert part.sent is batch
