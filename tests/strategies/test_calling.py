"""Models are spoken to by the names that the transformers that is there gives, whichever it is."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from roll.strategies.calling import cache_argument, keep_activations, recompute_activations


@pytest.fixture
def model() -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes))


def test_no_name_is_one_that_transformers_has_given_up(model: LlamaForCausalLM) -> None:
    ids, cache = torch.tensor([[1, 2, 3]]), DynamicCache(config=model.config)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        model(input_ids=ids, use_cache=True, **{cache_argument(model): cache})
        recompute_activations(model)
        keep_activations(model)
    assert cache.get_seq_length() == 3


def test_activations_are_computed_again_until_they_are_kept(model: LlamaForCausalLM) -> None:
    calls = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    model.train()
    for switch, expected in ((recompute_activations, 2), (keep_activations, 1)):
        switch(model)
        calls.clear()
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits.sum().backward()
        assert len(calls) == expected


def test_a_module_that_is_no_model_of_transformers_keeps_them_as_it_is() -> None:
    keep_activations(torch.nn.Linear(1, 1))
