"""Packed sequences and chunked logits change no number, and keep what they promise about memory."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForTokenClassification,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from roll.config import ConfigError
from roll.pipelines.learning.objective import PolicyObjective
from roll.pipelines.learning.value_objective import ValueObjective
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.log_probs import forward_log_probs
from roll.strategies.training.packing import PackingPlan, pack_by_tokens
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.strategies.generation.hf_infer.hf_infer_support import SIZES, qwen
from tests.strategies.training.batches import NegativeLogLikelihood, policy_batch, step_gradient, token_batch


def mistral(seed: int = 0) -> MistralForCausalLM:
    torch.manual_seed(seed)
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)).eval()


def other(kind: type, config: type) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(config(**{k: v for k, v in SIZES.items() if k != "head_dim"})).eval()


MODELS = {
    "qwen3": qwen,
    "eager": lambda: qwen(attn_implementation="eager"),
    "sliding window": mistral,
    "llama": lambda: other(LlamaForCausalLM, LlamaConfig),
    "qwen2": lambda: other(Qwen2ForCausalLM, Qwen2Config),
}


def assert_same_step(
    first: tuple[dict[str, Tensor], dict[str, float]],
    second: tuple[dict[str, Tensor], dict[str, float]],
    digits: float = 1e-9,
) -> None:
    for name, gradient in first[0].items():
        torch.testing.assert_close(second[0][name], gradient, atol=digits, rtol=digits)
    for name, value in first[1].items():
        allowed = max(digits, 1e-6) if name == "policy/clip_fraction" else digits
        assert second[1][name] == pytest.approx(value, rel=allowed, abs=allowed), name


def trainer_of(model: torch.nn.Module, **options) -> FsdpTrainStrategy:
    return FsdpTrainStrategy(model, TrainOptions(max_grad_norm=0, **options))


OBJECTIVE = PolicyObjective(
    options={"clip_low": 0.2, "clip_high": 0.3}, entropy_weight=0.05, kl_weight=0.3, supervised_weight=0.2
)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [None, 25])
def test_packed_equals_padded(name: str, tokens: int | None) -> None:
    make = MODELS[name]
    batch = policy_batch(trainer_of(make().double()))
    padded = trainer_of(make().double(), max_tokens_per_microbatch=tokens)
    packed = trainer_of(make().double(), max_tokens_per_microbatch=tokens, use_sequence_packing=True)
    assert packed.model.config._attn_implementation == "roll_packed_attention"
    expected = padded.compute_log_probs(batch)
    assert expected.count_nonzero() > 20
    torch.testing.assert_close(packed.compute_log_probs(batch), expected, atol=1e-6, rtol=0)
    # The model's own eager attention rounds its weights to single precision.
    digits = 1e-6 if name == "eager" else 1e-9
    expected_step = step_gradient(padded, batch, OBJECTIVE)
    assert max(float(gradient.abs().max()) for gradient in expected_step[0].values()) > 1e-3
    assert_same_step(expected_step, step_gradient(packed, batch, OBJECTIVE), digits)


def test_a_packed_critic_equals_a_padded_one() -> None:
    def critic(**options) -> FsdpTrainStrategy:
        torch.manual_seed(3)
        model = Qwen3ForTokenClassification(Qwen3Config(**SIZES, num_labels=1, classifier_dropout=0.0)).double()
        return FsdpTrainStrategy(model, TrainOptions(max_grad_norm=0, **options), predicts="values")

    batch = token_batch()
    batch["values"] = torch.zeros(batch["input_ids"].shape, dtype=torch.float64)
    batch["returns"] = torch.randn(batch["input_ids"].shape, dtype=torch.float64) * batch["response_mask"]
    padded, packed = critic(), critic(use_sequence_packing=True, max_tokens_per_microbatch=30)
    torch.testing.assert_close(packed.compute_values(batch), padded.compute_values(batch), atol=1e-6, rtol=0)
    loss = ValueObjective()
    assert_same_step(step_gradient(padded, batch, loss), step_gradient(packed, batch, loss))


def test_packed_sequences_are_recomputed_alike() -> None:
    """Gradient checkpointing runs the attention again in the backward pass, outside of the forward call."""
    batch = policy_batch(trainer_of(qwen(3).double()))
    packed = trainer_of(qwen(3).double(), use_sequence_packing=True, gradient_checkpointing=True)
    expected = step_gradient(trainer_of(qwen(3).double()), batch, OBJECTIVE)
    assert_same_step(expected, step_gradient(packed, batch, OBJECTIVE))


def test_a_model_prepared_for_packing_computes_masked_rows_as_before() -> None:
    plain, prepared = qwen(1), qwen(1)
    Scorer(prepared, use_sequence_packing=True)
    batch = token_batch()
    # Left padding needs a mask: it must not get lost.
    ids = torch.flip(batch["input_ids"], [1])
    mask = torch.arange(20) >= (20 - batch["lengths"]).unsqueeze(1)
    with torch.no_grad():
        expected = plain(ids, attention_mask=mask.long(), use_cache=False).logits
        got = prepared(ids, attention_mask=mask.long(), use_cache=False).logits
    torch.testing.assert_close(got[mask], expected[mask], atol=1e-5, rtol=1e-5)


def leaky(module, query, key, value, attention_mask, **options):
    """An attention that does not know of packed sequences."""
    return sdpa_attention_forward(module, query, key, value, None, scaling=options.get("scaling"))


def test_an_attention_that_lets_packed_sequences_see_each_other_is_refused() -> None:
    AttentionInterface.register("leaky", leaky)
    model = qwen()
    model.set_attn_implementation("leaky")
    with pytest.raises(ValueError, match=r"attn_implementation=leaky: packed sequences see each other .*Switch"):
        Scorer(model, use_sequence_packing=True)
    Scorer(model)


def test_packing_runs_no_padding_and_keeps_to_its_budget() -> None:
    batch = token_batch(rows=30)
    model = qwen()
    seen: list[tuple[int, ...]] = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    scorer = Scorer(model, use_sequence_packing=True, max_tokens_per_microbatch=50)
    seen.clear()
    scorer.compute_log_probs(batch)
    assert all(rows == 1 and tokens <= 50 for rows, tokens in seen)
    assert sum(tokens for _, tokens in seen) == int(batch["lengths"].sum())
    assert len(seen) <= math.ceil(11 / 9 * int(batch["lengths"].sum()) / 50) + 1


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of elements that an operation returned, in forward and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_packed_attention_never_compares_all_tokens_with_all() -> None:
    batch = token_batch(rows=40)
    tokens = int(batch["lengths"].sum())
    packed = trainer_of(qwen(), use_sequence_packing=True, max_tokens_per_microbatch=None)
    with LargestTensor() as seen:
        packed.train_step(batch, NegativeLogLikelihood())
    assert seen.elements < tokens**2 / 4


VOCABULARY = 5000


def wide() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "vocab_size": VOCABULARY}, tie_word_embeddings=False)).eval()


@pytest.mark.parametrize("with_entropy", [False, True])
def test_chunks_bound_what_is_held_of_the_logits(with_entropy: bool) -> None:
    batch, model = token_batch(rows=12), wide()
    tokens = int(batch["response_mask"][:, 1:].sum())
    weights = VOCABULARY * SIZES["hidden_size"]
    assert 20 * VOCABULARY > weights / 2 and tokens > 60

    def largest(chunk: int | None) -> int:
        model.zero_grad()
        with LargestTensor() as seen:
            outputs = forward_log_probs(
                model, batch["input_ids"], batch["response_mask"], with_entropy=with_entropy, chunk_size=chunk
            )
            (outputs.log_probs.sum() + (outputs.entropy.sum() if with_entropy else 0.0)).backward()
        return seen.elements

    assert largest(None) == tokens * VOCABULARY, "the witness sees logits"
    assert largest(8) == weights, "nothing is larger than the gradient of the head"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunked_equals_whole(size: int) -> None:
    batch = policy_batch(trainer_of(qwen(3).double()))
    whole, chunked = trainer_of(qwen(3).double()), trainer_of(qwen(3).double(), log_prob_chunk_size=size)
    torch.testing.assert_close(chunked.compute_log_probs(batch), whole.compute_log_probs(batch), atol=1e-6, rtol=0)
    assert_same_step(step_gradient(whole, batch, OBJECTIVE), step_gradient(chunked, batch, OBJECTIVE))


def test_without_a_chunk_size_the_vocabulary_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.strategies.training.log_probs.MAX_LOGITS", 3 * SIZES["vocab_size"] + 1)
    model, batch, sizes = qwen(), token_batch(), []
    model.lm_head.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    with torch.no_grad():
        forward_log_probs(model, batch["input_ids"], batch["response_mask"])
    assert max(sizes) == 3 and sum(sizes) == int(batch["response_mask"][:, 1:].sum())


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 120), st.one_of(st.none(), st.integers(1, 5)))
def test_bins_hold_every_sample_once_within_the_budget(lengths: list[int], tokens: int, samples: int | None) -> None:
    bins = pack_by_tokens(lengths, tokens, samples)
    assert sorted(index for one in bins for index in one) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in one) <= tokens for one in bins)
    if samples is not None:
        assert all(len(one) <= samples for one in bins)
    else:
        # First fit: of two bins at most one is half empty.
        assert sum(2 * sum(lengths[index] for index in one) <= tokens for one in bins) <= 1


def test_a_sample_that_fits_in_no_bin_is_an_error() -> None:
    with pytest.raises(ValueError, match="Sample 1 has 41 tokens, more than max_tokens_per_microbatch=40"):
        pack_by_tokens([3, 41], 40)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any))
def test_a_plan_finds_every_token_where_its_sequence_is(lengths: list[int]) -> None:
    plan = PackingPlan.of(torch.tensor(lengths))
    outputs = torch.cat([group.flatten() for group in plan.groups])
    assert outputs[plan.places].tolist() == list(range(sum(lengths)))
    for group in plan.groups:
        # Consecutive places, then the last one again and again.
        steps = group.diff(dim=1)
        assert ((steps == 1) | (steps == 0)).all() and (steps.sort(dim=1, descending=True).values == steps).all()
        assert 2 * int(steps.sum(1).min() + 1) >= group.shape[1]


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as caught:
        FsdpOptions.from_mapping({"fsdp_siz": 2, "meta_init": "yes"}, "actor_train.strategy_args.strategy_config")
    message = str(caught.value)
    assert "actor_train.strategy_args.strategy_config.fsdp_siz = 2" in message and "did you mean fsdp_size?" in message
    assert "strategy_config.meta_init = 'yes'" in message and "true or false" in message
    assert FsdpOptions.from_mapping(None) == FsdpOptions()
    assert FsdpOptions.from_mapping({"fsdp_size": 4, "reshard_after_forward": False}).fsdp_size == 4


@pytest.mark.long
def test_compiled_layers_give_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a back end that needs no C++ compiler; which one is used does not change what is compiled."""
    graphs: list[object] = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compile_one = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **options: compile_one(*args, **options, backend=backend))
    batch = policy_batch(trainer_of(qwen(3).double()))
    compiled = FsdpTrainStrategy(qwen(3).double(), TrainOptions(max_grad_norm=0), fsdp=FsdpOptions(torch_compile=True))
    expected = step_gradient(trainer_of(qwen(3).double()), batch, OBJECTIVE)
    assert_same_step(expected, step_gradient(compiled, batch, OBJECTIVE))
    assert graphs


def test_an_empty_batch_scores_to_nothing() -> None:
    batch = token_batch()[:0]
    assert isinstance(batch, TensorDict)
    assert Scorer(qwen()).compute_log_probs(batch).shape == (0, 20)
