"""Micro-batches of several ranks are equally many; memory comes back as it was."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.strategies.jobs import TrainOptions
from roll.strategies.parking import Parking
from roll.strategies.training.balance import spread
from roll.strategies.training.micro_batches import split_by_tokens
from roll.strategies.training.packing import pack_by_tokens
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.strategies.generation.hf_infer.hf_infer_support import qwen
from tests.strategies.training.batches import NegativeLogLikelihood, token_batch


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.integers(40, 120),
    st.one_of(st.none(), st.integers(1, 5)),
    st.integers(0, 6),
    st.booleans(),
)
def test_any_number_of_micro_batches_keeps_to_the_caps(
    lengths: list[int], tokens: int, samples: int | None, more: int, packed: bool
) -> None:
    groups = (pack_by_tokens if packed else split_by_tokens)(lengths, tokens, samples)
    wanted = len(groups) + more
    caps = {"max_tokens": tokens, "max_samples": samples}
    result = spread(groups, lengths, wanted, packed=packed, **caps)
    assert sorted(index for group in result for index in group) == list(range(len(lengths)))
    assert len(result) == min(wanted, len(lengths))
    sizes = []
    for group in result:
        own = [lengths[index] for index in group]
        sizes.append(sum(own) if packed else len(own) * max(own))
        assert sizes[-1] <= tokens and len(own) <= (samples or len(own))
    assert sizes == sorted(sizes, reverse=True), "ranks compute their large ones at the same time"


def test_packed_micro_batches_are_of_similar_size() -> None:
    lengths = [30, 30, 30, 8, 7, 6, 5]
    groups = pack_by_tokens(lengths, 100)
    assert [sum(lengths[i] for i in group) for group in groups] == [98, 18]
    balanced = spread(groups, lengths, 3, packed=True, max_tokens=100, max_samples=None)
    assert [sum(lengths[i] for i in group) for group in balanced] == [41, 38, 37]


def test_parked_tensors_hold_no_memory_and_come_back_with_their_views() -> None:
    whole = torch.randn(40, 3)
    view, other, expected = whole[10:20], torch.arange(5), whole.clone()
    parking = Parking()
    parking.park([view, whole, other])
    assert len(parking) == 2 and parking.nbytes == 40 * 3 * 4 + 5 * 8
    assert whole.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    parking.restore()
    assert torch.equal(whole, expected) and torch.equal(view, expected[10:20]) and other.tolist() == [0, 1, 2, 3, 4]
    assert len(parking) == 0 and view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_nothing_is_computed_while_the_device_belongs_to_others() -> None:
    batch, loss = token_batch(), NegativeLogLikelihood()
    trainer, twin = (FsdpTrainStrategy(qwen(3), TrainOptions(learning_rate=1e-2)) for _ in range(2))
    for one in (trainer, twin):
        one.train_step(batch, loss)
    trainer.offload(weights=False)
    assert trainer.offloaded
    assert torch.equal(trainer.compute_log_probs(batch), twin.compute_log_probs(batch)), "weights are still here"
    with pytest.raises(RuntimeError, match=r"Call reload\(\)"):
        trainer.train_step(batch, loss)
    trainer.offload()
    for use in (trainer.compute_log_probs, lambda batch: dict(trainer.named_parameters())):
        with pytest.raises(RuntimeError, match=r"Call reload\(\)"):
            use(batch)
    trainer.reload()
    assert not trainer.offloaded
    assert trainer.train_step(batch, loss) == twin.train_step(batch, loss)
    for (name, ours), (_, expected) in zip(trainer.named_parameters(), twin.named_parameters(), strict=True):
        assert torch.equal(ours, expected), name


def test_a_scorer_hands_over_and_takes_back() -> None:
    scorer, batch = Scorer(qwen()), token_batch()
    before = scorer.compute_log_probs(batch)
    scorer.offload()
    with pytest.raises(RuntimeError, match=r"Call reload\(\)"):
        scorer.compute_log_probs(batch)
    scorer.reload()
    assert torch.equal(scorer.compute_log_probs(batch), before)
