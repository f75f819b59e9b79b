"""`megatron_train` on the CPU, over one, two and four ranks, equals a plain loop of PyTorch in one process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_support.ranks import ranks
from megatron_support.scenarios import (
    CONTEXT,
    EXPERTS,
    INTERLEAVED,
    LIMIT,
    PIPELINE,
    SEQUENCE,
    TENSOR,
    Case,
    Outcome,
    train_plain,
)

from tests.rings import exhaustive_but

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core: pip install 'roll-rl[megatron]'"
)

Plain = Callable[[Case], Outcome]

OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_bucket_size": 2000}
PACKED = {"use_sequence_packing": True}
MOE = "qwen3_moe"

TWO = {
    "data": Case(),
    "data, overlapping": Case(megatron=OVERLAP, uneven=True),
    "data, plain optimiser": Case(megatron={"use_distributed_optimizer": False}, tied=True),
    "data, one row per micro-batch": Case(train={"max_samples_per_microbatch": 1}),
    "data, one micro-batch": Case(train={"max_tokens_per_microbatch": None}, uneven=True),
    "data, no rows on one rank": Case(rows=3, uneven=True, train={"max_tokens_per_microbatch": 20}),
    "tensor, tied, qwen2": Case(megatron=TENSOR, tied=True, family="qwen2"),
    "tensor, llama": Case(megatron=TENSOR, family="llama"),
    "tensor, chunks, l2, temperature, recomputing": Case(
        megatron=TENSOR,
        train={"log_prob_chunk_size": 3, "l2": 0.05, "temperature": 0.7, "gradient_checkpointing": True},
    ),
    "sequence": Case(megatron=SEQUENCE),
    "sequence, packed": Case(megatron=SEQUENCE, train=PACKED),
    "sequence, mixture of experts": Case(megatron=SEQUENCE, family=MOE),
    "sequence, critic": Case(megatron=SEQUENCE, critic=True),
    "tensor, demonstrations": Case(megatron=TENSOR, imitates=True, train=PACKED),
    "pipeline": Case(megatron={**PIPELINE, "recompute_granularity": "selective"}),
    "pipeline, tied, l2": Case(megatron=PIPELINE, tied=True, train={"l2": 0.05}),
    "pipeline, uneven stages, overlapping": Case(
        megatron={**PIPELINE, **OVERLAP, "decoder_first_pipeline_num_layers": 1}, layers=3
    ),
    "pipeline, critic": Case(megatron=PIPELINE, critic=True),
    "interleaved": Case(megatron=INTERLEAVED, layers=4),
    "interleaved, packed, tied": Case(megatron={**INTERLEAVED, **OVERLAP}, layers=4, tied=True, train=PACKED),
    "context": Case(megatron=CONTEXT),
    "context, packed, overlapping": Case(megatron={**CONTEXT, **OVERLAP}, train=PACKED),
    "experts": Case(megatron={**EXPERTS, "moe_router_dtype": "fp64"}, family=MOE, uneven=True),
    "experts, packed, overlapping": Case(megatron={**EXPERTS, **OVERLAP}, family=MOE, train=PACKED),
    "experts, allgather": Case(megatron={**EXPERTS, "moe_token_dispatcher_type": "allgather"}, family=MOE, uneven=True),
    "experts, layers and norms computed again": Case(
        megatron={**EXPERTS, "recompute_granularity": "selective", "recompute_modules": ["moe", "layernorm"]},
        family=MOE,
    ),
    "experts, plain optimiser, one dense layer": Case(
        megatron={**EXPERTS, "use_distributed_optimizer": False, "moe_layer_recompute": True}, family=MOE, layers=3
    ),
}

OF_EACH = ("data", "sequence, packed", "pipeline", "context", "experts")

FOUR = {
    "tensor x pipeline": Case(megatron={**SEQUENCE, **PIPELINE}),
    "tensor x data": Case(megatron={**TENSOR, **OVERLAP}, uneven=True),
    "pipeline x data": Case(
        megatron={**PIPELINE, "use_distributed_optimizer": False}, tied=True, uneven=True, train={"l2": 0.05}
    ),
    "tensor x context": Case(megatron={**SEQUENCE, **CONTEXT}, train=PACKED),
    "tensor x experts": Case(megatron={**SEQUENCE, **EXPERTS, "expert_tensor_parallel_size": 1}, family=MOE, rows=9),
    "four stages": Case(megatron={"pipeline_model_parallel_size": 4, "overlap_grad_reduce": True}, layers=4, tied=True),
}


@pytest.fixture(scope="module")
def plain() -> Plain:
    """Train a case in one process, each model once."""
    known: dict[str, Outcome] = {}

    def train(case: Case) -> Outcome:
        # How the work is divided is a matter of the ranks.
        kept = {key: case.train[key] for key in ("l2", "temperature") if key in case.train}
        alone = replace(case, megatron={}, train=kept, uneven=False)
        if str(alone) not in known:
            known[str(alone)] = train_plain(alone, three_batches(case))
        return known[str(alone)]

    return train


def three_batches(case: Case) -> list:
    return [case.batch(seed) for seed in range(3)]


def assert_equal_runs(found: list[Outcome], expected: Outcome, digits: float = 1e-5) -> None:
    for rank in found:
        assert rank.steps == found[0].steps, "every rank reports the same"
        assert [step.keys() for step in rank.steps] == [step.keys() for step in expected.steps]
        for ours, theirs in zip(rank.steps, expected.steps, strict=True):
            for name, value in theirs.items():
                assert ours[name] == pytest.approx(value, rel=digits, abs=digits), name
        assert rank.parameters.keys() == expected.parameters.keys()
        for name, value in expected.parameters.items():
            np.testing.assert_allclose(rank.parameters[name], value, rtol=digits, atol=digits, err_msg=name)
        np.testing.assert_allclose(rank.outputs, expected.outputs[rank.rows], rtol=digits, atol=digits)


@pytest.mark.parametrize("name", exhaustive_but(TWO, *OF_EACH))
def test_three_steps_on_two_ranks_equal_a_plain_loop(plain: Plain, name: str) -> None:
    case = TWO[name]
    alone = plain(case)
    assert all(step["grad_norm"] > LIMIT for step in alone.steps), "clipping is active"
    clips = not (case.critic or case.imitates)
    assert not clips or all(step["policy/clip_fraction"] > 0 for step in alone.steps), "and that of the loss"
    assert_equal_runs(ranks(2).run("train", case, three_batches(case)), alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOUR)
def test_three_steps_on_four_ranks_equal_a_plain_loop(plain: Plain, name: str) -> None:
    case = FOUR[name]
    assert_equal_runs(ranks(4).run("train", case, three_batches(case)), plain(case))


@pytest.mark.exhaustive
def test_scoring_streaming_and_offloading_between_steps_change_nothing(plain: Plain) -> None:
    case = Case(megatron={**EXPERTS, **OVERLAP}, family=MOE)
    assert_equal_runs(ranks(2).run("train_with_breaks", case, three_batches(case)), plain(case))


@pytest.mark.parametrize("megatron", exhaustive_but([OVERLAP, PIPELINE], PIPELINE))
def test_a_gradient_that_is_not_finite_stops_the_step_on_every_rank(plain: Plain, megatron: dict) -> None:
    case = Case(megatron=megatron)
    found = ranks(2).run("survive_a_bad_step", case, three_batches(case))
    assert all("the step was not taken" in message for message, _ in found)
    assert_equal_runs([after for _, after in found], plain(case))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("critic", "megatron"), [(False, {}), (True, {**SEQUENCE, "use_distributed_optimizer": False})]
)
def test_bf16_comes_near(plain: Plain, critic: bool, megatron: dict) -> None:
    case = Case(megatron=megatron, critic=critic, train={"mixed_precision": True})
    expected = plain(case)
    for rank in ranks(2).run("train", case, three_batches(case)):
        for ours, theirs in zip(rank.steps, expected.steps, strict=True):
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.05)
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=0.03)


@pytest.mark.exhaustive
def test_ranks_that_hold_one_copy_of_the_model_say_so() -> None:
    found = ranks(4).run("places", Case(megatron={**TENSOR, **PIPELINE}))
    assert [(rank, size) for rank, size, _ in found] == [(0, 1)] * 4
    assert [speaks for *_, speaks in found] == [False, False, True, False]
    found = ranks(4).run("places", Case(megatron=CONTEXT))
    assert sorted(found) == [(0, 2, False), (0, 2, True), (1, 2, False), (1, 2, True)]


def test_different_rows_for_one_copy_of_the_model_are_refused() -> None:
    case = Case(megatron=TENSOR)
    for message in ranks(2).run("different_rows_error", case, case.batch(1)):
        assert "Ranks 0 and 1 were given different rows, and both have data_rank 0" in message


@pytest.mark.parametrize("megatron", exhaustive_but([SEQUENCE, CONTEXT, PIPELINE], SEQUENCE))
def test_the_divergence_from_a_reference_is_that_of_whole_distributions(megatron: dict) -> None:
    case, reference = Case(megatron=megatron), Case()
    batch = case.batch(4)
    # A copy: what is sent to ranks moves into memory that is shared with them.
    mask = batch["response_mask"].numpy().copy()
    with torch.no_grad():
        ours, theirs = (
            torch.log_softmax(model.eval()(batch["input_ids"]).logits, -1)
            for model in (case.model(), reference.model(seed=5))
        )
    expected = np.zeros(mask.shape)
    expected[:, 1:] = (ours.exp() * (ours - theirs)).sum(-1)[:, :-1].numpy()
    for rank in ranks(2).run("divergence", case, reference, batch):
        np.testing.assert_allclose(rank.outputs, (expected * mask)[rank.rows], rtol=1e-5, atol=1e-5)
        assert rank.outputs.max() > 0.1


@pytest.mark.exhaustive
def test_logits_are_made_in_chunks_and_activations_again_where_that_is_asked_for() -> None:
    batch = Case().batch(0)
    kept, whole, selective = (
        ranks(2).run("calls_and_widest_logits", Case(megatron={**TENSOR, **megatron}, train=train), batch)[0]
        for megatron, train in (
            ({}, {"log_prob_chunk_size": 5}),
            ({"recompute_granularity": "full"}, {}),
            ({"recompute_granularity": "selective"}, {}),
        )
    )
    passes = kept[0]
    assert passes > 2 and kept == (passes, passes, 5)
    assert whole[:2] == (2 * passes, 2 * passes) and whole[2] > 5
    assert selective[:2] == (passes, 2 * passes)


def test_one_parameter_is_streamed_at_a_time() -> None:
    # Query, key and value are one parameter; so are gate and up projection.
    for ahead, alive in ranks(2).run("tensors_gathered_ahead", Case(megatron=TENSOR)):
        assert ahead <= 3 and alive <= 3


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    case = Case()
    said = ranks(1).run("refusals", case, case.batch(0), tmp_path)[0]
    assert said["packing"].startswith("ValueError: use_sequence_packing: the attention of these layers cannot")
    assert "sees none" in said["device"] and "fsdp_train" in said["device"]
    assert "pip install 'transformer-engine[pytorch]'" in said["layers"]
    assert "more than max_tokens_per_microbatch=10" in said["long row"]
    assert "does not divide the 1 ranks" in said["other division"]
    assert said["values"] == "TypeError: qwen3 is used here for its log_probs, not for values."
    assert said["no checkpoint"].startswith("FileNotFoundError") and "train_state" in said["no checkpoint"]
    assert "Call reload()" in said["optimizer handed over"] and "Call reload()" in said["weights handed over"]
    assert "was written with use_distributed_optimizer=True" in said["other optimizer"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_model_parallel_size": 3}, "does not divide the 2 ranks"),
        ({"expert_model_parallel_size": 2}, "does not divide the 0 experts of the model"),
        ({"context_parallel_size": 2, "use_distributed_optimizer": False}, ""),
    ],
)
def test_sizes_that_do_not_divide_are_refused(changes: dict, message: str) -> None:
    for said in ranks(2).run("construction_error", Case(megatron=changes)):
        assert message in said and bool(message) == bool(said)
