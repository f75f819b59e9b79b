"""`fsdp_train` over several ranks equals `fsdp_train` in one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fsdp_scenarios import (
    Case,
    Outcome,
    construction_error,
    loading_error,
    score,
    shard_sizes,
    survive_a_bad_step,
    tensors_alive_while_streaming,
    train,
    train_in_bf16,
    train_with_breaks,
    train_with_given_totals,
)
from rank_pool import RankPool

from tests.rings import exhaustive_but

EXACT = 1e-7
"""For float64 weights; not less, since the model's norms round to single precision, which another split tips."""


def assert_equal_runs(case: Case, alone: Outcome, ranks: list[Outcome], digits: float) -> None:
    for rank in ranks:
        assert rank.steps == ranks[0].steps, "every rank reports the same"
        assert [step.keys() for step in rank.steps] == [step.keys() for step in alone.steps]
        for ours, expected in zip(rank.steps, alone.steps, strict=True):
            for name, value in expected.items():
                # The loss itself divides this share in single precision.
                allowed = max(digits, 1e-6) if name.endswith("clip_fraction") else digits
                assert ours[name] == pytest.approx(value, rel=allowed, abs=allowed), name
        assert rank.parameters.keys() == alone.parameters.keys()
        for name, expected in alone.parameters.items():
            np.testing.assert_allclose(rank.parameters[name], expected, rtol=digits, atol=digits, err_msg=name)
    outputs = np.concatenate([rank.outputs for rank in ranks if rank.speaks])
    np.testing.assert_allclose(outputs, alone.outputs, rtol=1e-5, atol=1e-5)


CASES = {
    "fp32": Case(double=False),
    "uneven": Case(shares=(7, 2)),
    "no rows on one rank": Case(shares=(0, 6)),
    "no contributing rows on one rank": Case(silent=(1,)),
    "no contributing rows at all": Case(silent=(0, 1), train={"l2": 0.5}),
    "experts": Case(shares=(2, 4), experts=True, tied=False),
    "critic": Case(critic=True, shares=(5, 3)),
    "keep gathered weights": Case(fsdp={"reshard_after_forward": False}),
    "weights from rank 0": Case(fsdp={"meta_init": True}),
    "untied weights from rank 0": Case(tied=False, fsdp={"meta_init": True}),
    "critic from rank 0": Case(critic=True, fsdp={"meta_init": True}),
    "shared prefixes": Case(shares=(5, 3), train={"share_prefixes": True, "max_tokens_per_microbatch": 40}),
    "demonstrations": Case(shares=(5, 3), imitates=True, train={"use_sequence_packing": True}),
    "packed critic": Case(shares=(5, 3), critic=True, train={"use_sequence_packing": True}),
    "everything": Case(
        shares=(3, 5),
        train={
            "gradient_checkpointing": True,
            "use_sequence_packing": True,
            "log_prob_chunk_size": 3,
            "l2": 0.05,
            "temperature": 0.7,
        },
        fsdp={"offload_params": True, "meta_init": True},
    ),
}


@pytest.mark.parametrize("name", exhaustive_but(CASES, "uneven", "no rows on one rank", "critic", "everything"))
def test_three_steps_on_two_ranks_equal_one_process(two: RankPool, name: str) -> None:
    case = CASES[name]
    batches = [case.batch(seed) for seed in range(3)]
    # What saves memory is a matter of the ranks; the witness is the plain run.
    plain = replace(case, fsdp={}, train={key: case.train[key] for key in ("l2", "temperature") if key in case.train})
    alone = train(plain, batches)
    assert all(step["grad_norm"] > 0.1 for step in alone.steps), "clipping is active"
    assert_equal_runs(case, alone, two.run(train, case, batches), EXACT if case.double else 1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 2])
def test_four_ranks_in_groups_that_copy_each_other_equal_one_process(four: RankPool, size: int) -> None:
    case = Case(shares=(3, 1, 0, 5), fsdp={"fsdp_size": size}, train={"max_tokens_per_microbatch": 20, "l2": 0.05})
    batches = [case.batch(seed) for seed in range(3)]
    alone = train(replace(case, fsdp={}), batches)
    assert_equal_runs(case, alone, four.run(train, case, batches), EXACT)
    sizes = four.run(shard_sizes, case)
    whole = sizes[0][1]
    assert sum(own for own, _ in sizes) == whole * 4 // size, "each group holds the weights once"
    assert max(own for own, _ in sizes) < 1.3 * whole / size


def test_totals_of_the_caller_are_taken(two: RankPool) -> None:
    case = Case(shares=(6, 2))
    batches = [case.batch(seed) for seed in range(2)]
    assert_equal_runs(case, train(case, batches), two.run(train_with_given_totals, case, batches), EXACT)


@pytest.mark.parametrize("fsdp", exhaustive_but([{}, {"reshard_after_forward": False}, {"offload_params": True}], {}))
def test_scoring_streaming_and_offloading_between_steps_change_nothing(two: RankPool, fsdp: dict) -> None:
    case = Case(fsdp=fsdp)
    batches = [case.batch(seed) for seed in range(3)]
    alone = train(replace(case, fsdp={}), batches)
    assert_equal_runs(case, alone, two.run(train_with_breaks, case, batches), EXACT)
    assert_equal_runs(case, alone, [train_with_breaks(case, batches)], 1e-12)


def test_a_gradient_that_is_not_finite_on_one_rank_stops_the_step_on_all(two: RankPool) -> None:
    case = Case()
    batches = [case.batch(seed) for seed in range(3)]
    alone = train(case, batches)
    results = two.run(survive_a_bad_step, case, batches)
    assert all("the step was not taken" in message for message, _ in results)
    assert_equal_runs(case, alone, [after for _, after in results], EXACT)


def test_a_sharded_reference_scores_like_a_whole_one(two: RankPool) -> None:
    case = Case(shares=(7, 1))
    batch = case.batch(5)
    alone = score(case, batch)
    assert np.count_nonzero(alone) > 20
    np.testing.assert_allclose(np.concatenate(two.run(score, case, batch)), alone, rtol=1e-6, atol=1e-6)


def test_parameters_are_streamed_one_at_a_time(two: RankPool) -> None:
    assert max(two.run(tensors_alive_while_streaming, Case())) <= 1


@pytest.mark.parametrize("critic", exhaustive_but([False, True], False))
def test_mixed_precision_computes_in_bf16_and_moves_fp32_weights(two: RankPool, critic: bool) -> None:
    case = Case(shares=(1, 1), critic=critic, double=False, train={"mixed_precision": True})
    batch = case.batch(1)
    exact = train(replace(case, train={}), [batch]).steps[0]["loss"]
    for result in two.run(train_in_bf16, case, batch):
        assert result["seen"].pop("mlp") == "torch.bfloat16"
        assert result["seen"] == ({"score": "torch.float32"} if critic else {})
        assert result["stored"] == {"torch.float32"} and result["moved"]
        assert result["loss"] == pytest.approx(exact, abs=0.1)


def test_ranks_with_different_weights_are_refused(two: RankPool) -> None:
    for message in two.run(construction_error, Case(), True):
        assert "Rank 1 holds other weights than rank 0" in message and "meta_init" in message


def test_a_group_size_that_does_not_divide_the_ranks_is_refused(two: RankPool) -> None:
    for message in two.run(construction_error, Case(fsdp={"fsdp_size": 3})):
        assert message == "fsdp_size=3 does not divide the 2 ranks. Use one of 1, 2, or -1 for all."


def test_a_model_that_rank_0_cannot_load_fails_everywhere(two: RankPool) -> None:
    first, second = two.run(loading_error)
    assert first == "OSError: no such folder"
    assert second.startswith("RuntimeError: Rank 0 could not load the model")
