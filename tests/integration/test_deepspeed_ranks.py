"""`deepspeed_train` over several ranks equals a plain training loop in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepspeed_support import (
    Outcome,
    ZeroCase,
    diverge,
    look_at_sharing,
    plain_divergence,
    plain_run,
    preset,
    score,
    survive_a_bad_step,
    train,
    train_in_bf16,
    train_with_breaks,
)
from rank_pool import RankPool
from transformers import AutoModelForCausalLM

from tests.rings import exhaustive_but

DIGITS = 1e-5


def zero(stage: int, **options: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **options}}


OFFLOAD = {"device": "cpu", "pin_memory": True}
SETTINGS = {
    "zero 0": preset("deepspeed_zero"),
    "zero 1": zero(1),
    "zero 2": preset("deepspeed_zero2"),
    "zero 2 offload": zero(2, offload_optimizer=OFFLOAD),
    "zero 3": preset("deepspeed_zero3"),
    "zero 3 offload": preset("deepspeed_zero3_cpuoffload"),
}


def assert_equal_runs(alone: Outcome, ranks: list[Outcome], digits: float = DIGITS) -> None:
    for rank in ranks:
        assert rank.steps == ranks[0].steps, "every rank reports the same"
        for ours, expected in zip(rank.steps, alone.steps, strict=True):
            assert {"loss", "grad_norm", "learning_rate"} <= ours.keys() <= expected.keys()
            for name, value in ours.items():
                assert value == pytest.approx(expected[name], rel=digits, abs=digits), name
        assert rank.parameters.keys() == alone.parameters.keys()
        for name, expected in alone.parameters.items():
            np.testing.assert_allclose(rank.parameters[name], expected, rtol=0, atol=digits, err_msg=name)
    outputs = np.concatenate([rank.outputs for rank in ranks])
    np.testing.assert_allclose(outputs, alone.outputs, rtol=digits, atol=digits)


def check(pool: RankPool, case: ZeroCase) -> None:
    batches = [case.batch(seed) for seed in range(3)]
    alone = plain_run(case, batches)
    assert all(step["grad_norm"] > 0.1 for step in alone.steps), "clipping is active"
    assert_equal_runs(alone, pool.run(train, case, batches))


@pytest.mark.parametrize("setting", exhaustive_but(SETTINGS, "zero 1", "zero 3"))
def test_three_steps_with_uneven_rows_equal_a_plain_loop(two: RankPool, setting: str) -> None:
    check(two, ZeroCase(shares=(6, 3), config=SETTINGS[setting], train={"l2": 0.01}))


@pytest.mark.parametrize("setting", exhaustive_but(["zero 0", "zero 2", "zero 3"], "zero 3"))
def test_packed_rows_and_a_rank_without_rows_equal_a_plain_loop(two: RankPool, setting: str) -> None:
    case = ZeroCase(shares=(0, 6), config=SETTINGS[setting], loader=False, train={"use_sequence_packing": True})
    check(two, case)


@pytest.mark.exhaustive
def test_shared_prefixes_equal_a_plain_loop(two: RankPool) -> None:
    options = {"share_prefixes": True, "max_tokens_per_microbatch": 40}
    check(two, ZeroCase(shares=(5, 2), config=SETTINGS["zero 3"], train=options))


@pytest.mark.parametrize(
    ("tokens", "samples"),
    [
        pytest.param(None, None, marks=pytest.mark.exhaustive),
        (40, None),
        pytest.param(None, 1, marks=pytest.mark.exhaustive),
    ],
)
def test_any_micro_batches_give_the_same_gradient(two: RankPool, tokens: int | None, samples: int | None) -> None:
    limits = {"max_tokens_per_microbatch": tokens, "max_samples_per_microbatch": samples}
    check(two, ZeroCase(shares=(5, 2), config=SETTINGS["zero 2"], train=limits))


@pytest.mark.exhaustive
def test_recomputing_and_chunked_logits_change_nothing(two: RankPool) -> None:
    options = {
        "gradient_checkpointing": True,
        "use_sequence_packing": True,
        "log_prob_chunk_size": 3,
        "temperature": 2.5,
        "l2": 0.01,
    }
    check(two, ZeroCase(config=SETTINGS["zero 3"], train=options))


@pytest.mark.parametrize(
    ("setting", "shares"), [pytest.param("zero 2", (5, 3), marks=pytest.mark.exhaustive), ("zero 3", (0, 6))]
)
def test_a_critic_learns_as_in_a_plain_loop(two: RankPool, setting: str, shares: tuple[int, int]) -> None:
    check(two, ZeroCase(shares=shares, critic=True, config=SETTINGS[setting]))


@pytest.mark.exhaustive
def test_a_pass_without_a_response_is_made_in_step_with_the_other_ranks(two: RankPool) -> None:
    limits = {"max_samples_per_microbatch": 1, "log_prob_chunk_size": 2}
    check(two, ZeroCase(shares=(3, 3), likelihood=True, config=SETTINGS["zero 3"], train=limits))


def test_divergence_is_measured_from_a_reference_that_is_shared_out(two: RankPool) -> None:
    case = ZeroCase(shares=(5, 3), config=SETTINGS["zero 3"])
    batches = [case.batch(0)]
    expected = plain_divergence(case, batches)
    assert expected.max() > 0.01
    np.testing.assert_allclose(np.concatenate(two.run(diverge, case, batches)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setting", exhaustive_but(["zero 0", "zero 2", "zero 3"], "zero 0"))
def test_a_step_to_which_no_row_contributes_moves_the_weights_by_momentum_only(two: RankPool, setting: str) -> None:
    case = ZeroCase(config=SETTINGS[setting], silent=True, train={"l2": 0.01, "max_grad_norm": 0.0})
    batches = [case.batch(0)]
    assert_equal_runs(plain_run(case, batches), two.run(train, case, batches))


@pytest.mark.parametrize("setting", exhaustive_but(["zero 1", "zero 3"], "zero 3"))
def test_adapters_learn_as_in_a_plain_loop(two: RankPool, setting: str) -> None:
    check(two, ZeroCase(shares=(5, 3), lora=4, config=SETTINGS[setting]))


@pytest.mark.exhaustive
def test_four_ranks_equal_a_plain_loop(four: RankPool) -> None:
    check(four, ZeroCase(shares=(3, 1, 0, 5), config=SETTINGS["zero 3"], train={"l2": 0.01}))


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", ["zero 0", "zero 2 offload", "zero 3 offload"])
def test_scoring_streaming_and_offloading_between_steps_change_nothing(two: RankPool, setting: str) -> None:
    case = ZeroCase(config=SETTINGS[setting])
    batches = [case.batch(seed) for seed in range(2)]
    results = two.run(train_with_breaks, case, batches)
    assert_equal_runs(plain_run(case, batches), [after for _, after in results])
    assert all(weights > 0 and states > 0 for parked, _ in results for weights, states in parked[1:])


@pytest.mark.parametrize("setting", exhaustive_but(["zero 0", "zero 2 offload", "zero 3"], "zero 3"))
def test_a_gradient_that_is_not_finite_on_one_rank_stops_the_step_on_all(two: RankPool, setting: str) -> None:
    case = ZeroCase(config=SETTINGS[setting])
    batches = [case.batch(seed) for seed in range(2)]
    alone = plain_run(case, batches)
    results = two.run(survive_a_bad_step, case, batches)
    assert all("the step was not taken" in message for message, _ in results)
    assert_equal_runs(alone, [after for _, after in results])


def test_stage_3_shares_weights_out_and_gathers_a_bucket_at_a_time(two: RankPool) -> None:
    case = ZeroCase(config=zero(3, stage3_param_persistence_threshold=0))
    bucket = 70_000
    for found in two.run(look_at_sharing, case, bucket):
        assert found["held"] == 0, "between passes no rank holds a whole weight"
        assert 0 < max(found["gathered"]) <= bucket < sum(found["gathered"]) == found["whole"]
        assert found["later"] == found["whole"], "a model that is loaded later is whole"


@pytest.mark.parametrize("critic", exhaustive_but([False, True], False))
@pytest.mark.parametrize(("stage", "packed"), [pytest.param(0, False, marks=pytest.mark.exhaustive), (3, True)])
def test_a_frozen_model_scores_like_a_whole_one(two: RankPool, stage: int, critic: bool, packed: bool) -> None:
    options = {"use_sequence_packing": packed}
    case = ZeroCase(shares=(7, 1), critic=critic, config=zero(stage), train=options)
    expected = plain_run(case, [])
    ranks = two.run(score, case, case.batch(77))
    ours = np.concatenate([rank["values" if critic else "log_probs"] for rank in ranks])
    if not critic:
        assert np.count_nonzero(expected.outputs) > 20
        states = np.concatenate([rank["states"] for rank in ranks])
        assert states.shape[-1] == 128 and np.array_equal(states.any(-1), ours != 0)
    np.testing.assert_allclose(ours, expected.outputs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("setting", exhaustive_but(["zero 0", "zero 1", "zero 2", "zero 3"], "zero 3"))
def test_mixed_precision_streams_bf16_and_saves_fp32_weights(two: RankPool, setting: str, tmp_path: Path) -> None:
    case = ZeroCase(shares=(1, 1), config=SETTINGS[setting], train={"mixed_precision": True})
    batch = case.batch(1)
    exact = plain_run(case, [batch, batch])
    results = two.run(train_in_bf16, case, batch, tmp_path)
    for found in results:
        assert found["types"] == {"torch.bfloat16"}
        for ours, expected in zip(found["steps"], exact.steps, strict=True):
            assert ours["loss"] == pytest.approx(expected["loss"], abs=0.02)
            assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    for name, weights in loaded.named_parameters():
        assert str(weights.dtype) == "torch.float32"
        rounded = weights.detach().bfloat16().float()
        np.testing.assert_array_equal(rounded.numpy(), results[0]["weights"][name], err_msg=name)
        assert weights.ndim == 1 or not weights.equal(rounded)
