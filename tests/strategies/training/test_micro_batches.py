from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from roll.strategies.training.micro_batches import iterate_micro_batches, split_by_tokens

lengths_lists = st.lists(st.integers(1, 40), max_size=30)
CPU = torch.device("cpu")


@given(lengths_lists, st.none() | st.integers(40, 200), st.none() | st.integers(1, 5))
def test_the_caps_are_never_exceeded_and_every_index_comes_once(
    lengths: list[int], tokens: int | None, samples: int | None
) -> None:
    groups = split_by_tokens(lengths, tokens, samples)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert group
        assert tokens is None or len(group) * max(lengths[i] for i in group) <= tokens
        assert samples is None or len(group) <= samples


@given(lengths_lists)
def test_without_caps_there_is_one_micro_batch(lengths: list[int]) -> None:
    assert len(split_by_tokens(lengths, None)) == bool(lengths)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(40, 200))
def test_neighbours_have_similar_lengths_and_no_two_groups_could_be_one(lengths: list[int], tokens: int) -> None:
    groups = split_by_tokens(lengths, tokens)
    for first, second in zip(groups, groups[1:], strict=False):
        assert min(lengths[i] for i in first) >= max(lengths[i] for i in second)
        assert (len(first) + 1) * lengths[first[0]] > tokens


def test_the_split_by_example() -> None:
    assert split_by_tokens([3, 9, 4, 9, 1], 18) == [[1, 3], [2, 0, 4]]
    assert split_by_tokens([3, 9, 4, 9, 1], 18, max_samples=2) == [[1, 3], [2, 0], [4]]


def test_a_sample_over_the_cap_is_an_error_that_names_sample_and_key() -> None:
    with pytest.raises(ValueError, match=r"Sample 2 has 11 tokens, more than max_tokens_per_microbatch=10"):
        split_by_tokens([3, 10, 11, 4], 10)


def make_batch(lengths: list[int], width: int) -> TensorDict:
    rows = len(lengths)
    ids = torch.arange(rows * width).view(rows, width)
    return TensorDict(
        {
            "input_ids": ids,
            "lengths": torch.tensor(lengths),
            "vectors": ids.unsqueeze(-1).expand(rows, width, 3).clone(),
            "score": torch.arange(rows) * 10,
            "pair": torch.arange(rows * 2).view(rows, 2),
        },
        batch_size=[rows],
    )


@given(st.lists(st.integers(1, 12), min_size=1, max_size=10), st.integers(12, 60), st.integers(0, 4))
def test_micro_batches_hold_the_rows_they_name_cut_to_their_longest_sequence(
    lengths: list[int], tokens: int, padding: int
) -> None:
    width = max(*lengths, 3) + padding
    batch = make_batch(lengths, width)
    seen: list[int] = []
    for indices, micro in iterate_micro_batches(batch, CPU, max_tokens=tokens):
        seen += indices.tolist()
        longest = max(lengths[i] for i in indices.tolist())
        assert micro["input_ids"].numel() <= tokens
        assert torch.equal(micro["input_ids"], batch["input_ids"][indices, :longest])
        assert torch.equal(micro["vectors"], batch["vectors"][indices, :longest])
        for name in ("lengths", "score", "pair"):
            assert torch.equal(micro[name], batch[name][indices])
    assert sorted(seen) == list(range(len(lengths)))
