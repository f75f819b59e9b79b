"""The divergence over the whole vocabulary, against logits of both models held at once."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from transformers import Qwen3Config, Qwen3ForCausalLM

from roll.algorithms.kl import kl_penalty
from roll.strategies.training.pytorch.scoring import Scorer


def model(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=0,
        initializer_range=0.5,
    )
    return Qwen3ForCausalLM(config).double().eval()


def batch() -> TensorDict:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([9, 4, 7])
    ids = torch.randint(1, 40, (3, 9), generator=generator)
    valid = torch.arange(9) < lengths.unsqueeze(1)
    mask = valid & (torch.rand(3, 9, generator=generator) < 0.6)
    return TensorDict({"input_ids": ids * valid, "response_mask": mask, "lengths": lengths}, batch_size=[3])


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_it_is_the_sum_over_the_vocabulary(chunk: int | None, packed: bool, temperature: float) -> None:
    policy, frozen, data = model(0), model(1), batch()
    # The states of the reference are stored in single precision.
    options = {"temperature": temperature, "max_tokens_per_microbatch": 12, "use_sequence_packing": packed}
    scorer = Scorer(policy, log_prob_chunk_size=chunk, **options)  # type: ignore[arg-type]
    reference = Scorer(frozen, **options)  # type: ignore[arg-type]
    data["ref_states"] = reference.compute_states(data).double()
    scorer.measure_from(frozen.get_output_embeddings())
    got = scorer.compute_divergence(data)
    with torch.no_grad():
        attended = {"attention_mask": torch.arange(9) < data["lengths"].unsqueeze(1)}
        logits = [each(data["input_ids"], **attended).logits[:, :-1] / temperature for each in (policy, frozen)]
    expected = torch.zeros(3, 9, dtype=torch.float64)
    expected[:, 1:] = kl_penalty(*logits, "full")
    mask = data["response_mask"].clone()
    mask[:, 0] = False
    assert mask.sum() > 5
    torch.testing.assert_close(got[mask].double(), expected[mask], rtol=1e-5, atol=1e-6)
    assert not got[~mask].any() and bool((got[mask] > 0).all())


def test_its_gradient_is_that_of_the_formula() -> None:
    policy, frozen, data = model(0), model(1), batch()
    scorer, reference = Scorer(policy), Scorer(frozen)
    data["ref_states"] = reference.compute_states(data).double()
    scorer.measure_from(frozen.get_output_embeddings())
    other = copy.deepcopy(policy)
    data["response_mask"][:, 0] = False
    micro = data.clone()
    scorer.forward(micro, with_entropy=False)
    micro["divergence"].sum().backward()
    attended = {"attention_mask": torch.arange(9) < data["lengths"].unsqueeze(1)}
    with torch.no_grad():
        fixed = frozen(data["input_ids"], **attended).logits[:, :-1]
    whole = kl_penalty(other(data["input_ids"], **attended).logits[:, :-1], fixed, "full")
    (whole * data["response_mask"][:, 1:]).sum().backward()
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(parameter.grad, dict(other.named_parameters())[name].grad, rtol=1e-4, atol=1e-5)
