"""Ranks that share rows and each compute a part of every sequence equal one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fsdp_scenarios import Case, construction_error, data_places, score_states, step_with_other_rows, train
from rank_pool import RankPool
from test_fsdp_ranks import EXACT, assert_equal_runs

from tests.rings import exhaustive_but

ULYSSES = {"ulysses_size": 2}
PACKED = {"use_sequence_packing": True}

CASES = {
    "padded, fp32": Case(shares=(8,), fsdp=ULYSSES, double=False),
    "one key head for two ranks": Case(shares=(7,), key_heads=1, fsdp=ULYSSES, train=PACKED),
    "window": Case(shares=(7,), window=3, fsdp=ULYSSES),
    "packed window": Case(shares=(7,), window=3, fsdp=ULYSSES, train=PACKED),
    "critic": Case(shares=(7,), critic=True, fsdp=ULYSSES),
    "packed critic": Case(shares=(7,), critic=True, fsdp=ULYSSES, train=PACKED),
    "experts": Case(shares=(6,), experts=True, tied=False, fsdp=ULYSSES),
    "everything": Case(
        shares=(8,),
        fsdp={**ULYSSES, "offload_params": True, "meta_init": True},
        train={**PACKED, "gradient_checkpointing": True, "log_prob_chunk_size": 3, "l2": 0.05},
    ),
}


def alone(case: Case) -> Case:
    """The plain run in one process that others must equal."""
    return replace(case, fsdp={}, train={key: case.train[key] for key in ("l2",) if key in case.train})


@pytest.mark.parametrize("name", exhaustive_but(CASES, "everything"))
def test_two_parts_of_every_sequence_equal_one_process(two: RankPool, name: str) -> None:
    case = CASES[name]
    batches = [case.batch(seed) for seed in range(3)]
    expected = train(alone(case), batches)
    assert all(step["grad_norm"] > 0.1 for step in expected.steps), "clipping is active"
    ranks = two.run(train, case, batches)
    assert [rank.speaks for rank in ranks] == [True, False]
    np.testing.assert_array_equal(ranks[0].outputs, ranks[1].outputs)
    assert_equal_runs(case, expected, ranks, EXACT if case.double else 1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("fsdp_size", "packed"), [(-1, False), (2, True)])
def test_two_data_ranks_of_two_parts_each_equal_one_process(four: RankPool, fsdp_size: int, packed: bool) -> None:
    case = Case(shares=(2, 6), fsdp={**ULYSSES, "fsdp_size": fsdp_size}, train=PACKED if packed else {})
    batches = [case.batch(seed) for seed in range(3)]
    assert_equal_runs(case, train(alone(case), batches), four.run(train, case, batches), EXACT)


@pytest.mark.exhaustive
def test_four_parts_equal_one_process(four: RankPool) -> None:
    case = Case(shares=(6,), fsdp={"ulysses_size": 4})
    batches = [case.batch(seed) for seed in range(3)]
    assert_equal_runs(case, train(alone(case), batches), four.run(train, case, batches), EXACT)


def test_states_for_a_divergence_come_back_whole(two: RankPool) -> None:
    case = Case(shares=(5,), fsdp=ULYSSES)
    batch = case.batch(3)
    expected = score_states(replace(case, fsdp={}), batch)
    assert np.count_nonzero(expected) > 100
    for states in two.run(score_states, case, batch):
        np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
def test_every_rank_knows_its_share_of_a_batch(four: RankPool) -> None:
    assert four.run(data_places, Case(fsdp=ULYSSES)) == [(0, 2, True), (0, 2, False), (1, 2, True), (1, 2, False)]
    assert four.run(data_places, Case()) == [(rank, 4, True) for rank in range(4)]
    assert data_places(Case()) == (0, 1, True)


def test_ranks_that_share_rows_and_are_given_different_ones_are_refused(two: RankPool) -> None:
    for message in two.run(step_with_other_rows, Case(shares=(8,), fsdp=ULYSSES)):
        assert "Ranks 0 and 1 share rows (ulysses_size=2)" in message and "data_rank" in message


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case(fsdp={"ulysses_size": 3}),
            "ulysses_size=3 does not divide the 2 ranks. Set ulysses_size to one of 1, 2.",
        ),
        (Case(fsdp=ULYSSES, heads=3, key_heads=1), "ulysses_size=2 does not divide the 3 attention heads. Use one of"),
    ],
    ids=["ranks", "heads"],
)
def test_sizes_that_do_not_fit_are_refused(two: RankPool, case: Case, message: str) -> None:
    for error in two.run(construction_error, case):
        assert error.startswith(message)
