from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from roll.strategies.training.log_probs import forward_log_probs
from roll.strategies.training.pytorch.scoring import Scorer
from tests.strategies.generation.hf_infer.hf_infer_support import VOCABULARY, qwen
from tests.strategies.training.batches import token_batch


def by_hand(model, batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies from one unpadded Hugging Face forward pass per row and loops over tokens."""
    log_probs = torch.zeros(batch["input_ids"].shape, dtype=torch.float64)
    entropy = torch.zeros_like(log_probs)
    for row in range(len(batch)):
        ids = batch["input_ids"][row, : int(batch["lengths"][row])]
        with torch.no_grad():
            logits = model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0].double() / temperature
        for position in range(1, len(ids)):
            if batch["response_mask"][row, position]:
                distribution = torch.log_softmax(logits[position - 1], -1)
                log_probs[row, position] = distribution[ids[position]]
                entropy[row, position] = -sum(math.exp(p) * p for p in distribution.tolist())
    return log_probs, entropy


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_log_probs_and_entropy_equal_an_independent_forward_pass(temperature: float) -> None:
    model, batch = qwen(1), token_batch(3)
    expected, expected_entropy = by_hand(model, batch, temperature)
    assert expected.count_nonzero() > 20
    got = forward_log_probs(
        model, batch["input_ids"], batch["response_mask"], temperature=temperature, with_entropy=True
    )
    torch.testing.assert_close(got.log_probs.double(), expected, atol=1e-5, rtol=0)
    assert got.entropy is not None
    torch.testing.assert_close(got.entropy.double(), expected_entropy, atol=1e-5, rtol=0)
    scored = Scorer(model, temperature=temperature, max_tokens_per_microbatch=40).compute_log_probs(batch)
    torch.testing.assert_close(scored.double(), expected, atol=1e-5, rtol=0)
    assert scored.dtype == torch.float32 and not scored.requires_grad


def test_the_position_before_which_there_is_nothing_is_zero_even_if_masked() -> None:
    batch = token_batch()
    mask = torch.ones_like(batch["response_mask"])
    outputs = forward_log_probs(qwen(), batch["input_ids"], mask, with_entropy=True)
    assert outputs.entropy is not None
    assert (outputs.log_probs[:, 0] == 0).all() and (outputs.entropy[:, 0] == 0).all()
    assert (outputs.log_probs[:, 1:] < 0).all() and (outputs.entropy[:, 1:] > 0).all()


@pytest.mark.parametrize("extra", [1, 7, 50])
def test_the_amount_and_content_of_padding_change_nothing(extra: int) -> None:
    model, batch = qwen(2).double(), token_batch(5)
    ids, mask = batch["input_ids"], batch["response_mask"]
    plain = forward_log_probs(model, ids, mask, with_entropy=True)
    beyond = torch.arange(ids.shape[1]).unsqueeze(0) >= batch["lengths"].unsqueeze(1)
    garbage = torch.where(beyond, torch.randint(VOCABULARY, ids.shape), ids)
    assert not torch.equal(garbage, ids)
    garbage = torch.cat([garbage, torch.randint(VOCABULARY, (len(ids), extra))], 1)
    wide = forward_log_probs(model, garbage, torch.nn.functional.pad(mask, (0, extra)), with_entropy=True)
    for narrow, padded in zip(plain[:2], wide[:2], strict=True):
        assert narrow is not None and padded is not None
        torch.testing.assert_close(padded[:, : ids.shape[1]], narrow, atol=1e-12, rtol=0)
        assert (padded[:, ids.shape[1] :] == 0).all()


def test_the_gradient_ignores_what_is_not_trained() -> None:
    model, batch = qwen(2).double(), token_batch(5)

    def gradient(ids: Tensor) -> Tensor:
        model.zero_grad()
        forward_log_probs(model, ids, batch["response_mask"]).log_probs.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()

    beyond = torch.arange(batch["input_ids"].shape[1]).unsqueeze(0) >= batch["lengths"].unsqueeze(1)
    changed = torch.where(beyond, 17, batch["input_ids"])
    torch.testing.assert_close(gradient(changed), gradient(batch["input_ids"]), atol=1e-12, rtol=0)


def test_precision_is_at_least_single_and_double_stays_double() -> None:
    batch = token_batch()
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        model = qwen().to(dtype)
        ids, mask = batch["input_ids"][:2, :6], batch["response_mask"][:2, :6]
        assert forward_log_probs(model, ids, mask).log_probs.dtype == expected


def test_a_batch_without_response_tokens_gives_zeros_and_a_zero_gradient() -> None:
    model, batch = qwen(), token_batch()
    outputs = forward_log_probs(model, batch["input_ids"], torch.zeros_like(batch["response_mask"]), with_entropy=True)
    assert outputs.entropy is not None
    assert outputs.log_probs.count_nonzero() == outputs.entropy.count_nonzero() == 0
    (outputs.log_probs.sum() + outputs.entropy.sum()).backward()
    assert all(p.grad is None or p.grad.count_nonzero() == 0 for p in model.parameters())


def test_logits_are_computed_for_the_positions_before_response_tokens_only() -> None:
    model, batch = qwen(), token_batch()
    seen: list[int] = []

    def project(hidden: Tensor) -> Tensor:
        seen.append(hidden.shape[0])
        return model.get_output_embeddings()(hidden)

    got = forward_log_probs(model, batch["input_ids"], batch["response_mask"], project=project)
    assert seen == [int(batch["response_mask"].sum())]
    assert torch.equal(got.log_probs, forward_log_probs(model, batch["input_ids"], batch["response_mask"]).log_probs)


def test_scoring_has_a_batch_size_of_its_own() -> None:
    batch = token_batch(9)
    scorer = Scorer(qwen(4), max_tokens_per_microbatch=None, max_samples_per_microbatch=1, max_samples_per_scoring=4)
    assert [len(rows) for rows, _, _ in scorer.passes(batch)] == [1] * 6
    assert [len(rows) for rows, _, _ in scorer.passes(batch, scoring=True)] == [4, 2]
    widths: list[int] = []

    def note(module: object, given: tuple[Tensor]) -> None:
        widths.append(len(given[0]))

    scorer.model.get_input_embeddings().register_forward_pre_hook(note)
    scorer.compute_log_probs(batch)
    assert sorted(widths) == [2, 4]


@pytest.mark.parametrize(("tokens", "samples"), [(None, None), (20, None), (45, None), (None, 1), (60, 2)])
def test_scoring_does_not_depend_on_micro_batches(tokens: int | None, samples: int | None) -> None:
    model, batch = qwen(4).double(), token_batch(9)
    whole = Scorer(model, max_tokens_per_microbatch=None).compute_log_probs(batch)
    split = Scorer(model, max_tokens_per_microbatch=tokens, max_samples_per_microbatch=samples)
    torch.testing.assert_close(split.compute_log_probs(batch), whole, atol=1e-6, rtol=0)
