from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.trajectories.batch import collate
from roll.trajectories.samples import NO_TURN, Sample

PAD = 77


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    length = draw(st.integers(1, 9))

    def column(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=length, max_size=length))

    numbers = st.floats(-4, 4, width=32)
    return Sample(
        trajectory="g/0",
        tag="Tag",
        group_id="g",
        first_turn=0,
        last_turn=0,
        policy_version=(0, 0),
        token_ids=column(st.integers(0, 200_000)),
        response_mask=column(st.integers(0, 1)),
        logprobs=column(numbers),
        rewards=column(numbers),
        turn_index=column(st.integers(-1, 5)),
        state_hash=column(st.integers(0, 2**63 - 1)),
    )


COLUMNS = {
    "input_ids": ("token_ids", PAD, torch.int64),
    "response_mask": ("response_mask", 0, torch.bool),
    "sampler_log_probs": ("logprobs", 0.0, torch.float32),
    "token_rewards": ("rewards", 0.0, torch.float32),
    "turn_index": ("turn_index", NO_TURN, torch.int64),
    "state_hashes": ("state_hash", 0, torch.int64),
}


@pytest.mark.long
@given(st.lists(samples(), min_size=1, max_size=6))
def test_rows_are_the_samples_padded_on_the_right(rows: list[Sample]) -> None:
    batch = collate(rows, PAD)
    width = max(len(row) for row in rows)
    assert batch.batch_size == (len(rows),)
    assert batch["lengths"].tolist() == [len(row) for row in rows]
    assert set(batch.keys()) == {*COLUMNS, "lengths"}
    for name, (field, padding, dtype) in COLUMNS.items():
        assert batch[name].dtype == dtype
        assert batch[name].tolist() == [[*getattr(row, field), *[padding] * (width - len(row))] for row in rows], name


def test_no_samples_is_a_readable_error() -> None:
    with pytest.raises(ValueError, match="No sample to train on"):
        collate([], PAD)
