"""Beginnings that are computed once, and a last layer that leaves out what nobody reads, change no number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForTokenClassification

from roll.pipelines.learning.value_objective import ValueObjective
from roll.strategies.training.micro_batches import PAIR
from roll.strategies.training.packed_attention import AttentionOptions
from roll.strategies.training.packing import flat_hidden, prepare_packing
from roll.strategies.training.prefix_tree import PrefixTree
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy, TrainOptions
from roll.strategies.training.shared_attention import SharedPlan, tree_mask
from tests.strategies.generation.hf_infer.hf_infer_support import SIZES, qwen
from tests.strategies.training.batches import NegativeLogLikelihood, policy_batch, step_gradient
from tests.strategies.training.pytorch.test_fsdp_packing import MODELS, OBJECTIVE, assert_same_step, trainer_of

EXACT = 1e-5  # as far as the norms of these models, which round to single precision, let sums of another order agree


def alike(batch: TensorDict) -> TensorDict:
    """Let the rows begin with 3 to 13 tokens of the first, and the last one be a beginning of it."""
    ids, lengths = batch["input_ids"].clone(), batch["lengths"].tolist()
    for row in range(1, len(lengths)):
        same = min(lengths[row], lengths[0], 3 + 5 * row % 11 if row < len(lengths) - 1 else lengths[row])
        ids[row, :same] = ids[0, :same]
    batch["input_ids"] = ids
    return batch


def grouped_batch(rows: int = 6) -> TensorDict:
    return alike(policy_batch(trainer_of(qwen().double()), rows=rows))


def computed_tokens(model: torch.nn.Module) -> list[int]:
    seen: list[int] = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    return seen


@pytest.mark.parametrize("tokens", [None, 25])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sliding window"])
def test_shared_equals_padded(name: str, tokens: int | None) -> None:
    make, batch = MODELS[name], grouped_batch()
    padded = trainer_of(make().double(), max_tokens_per_microbatch=tokens)
    shared = trainer_of(make().double(), max_tokens_per_microbatch=tokens, share_prefixes=True)
    expected = padded.compute_log_probs(batch)
    assert expected.count_nonzero() > 20
    torch.testing.assert_close(shared.compute_log_probs(batch), expected, atol=1e-6, rtol=0)
    seen = computed_tokens(shared.model)
    expected_step = step_gradient(padded, batch, OBJECTIVE)
    assert max(float(gradient.abs().max()) for gradient in expected_step[0].values()) > 1e-3
    assert_same_step(expected_step, step_gradient(shared, batch, OBJECTIVE), EXACT)
    tree = len(PrefixTree.of(batch["input_ids"], batch["lengths"]).ids)
    assert tree <= sum(seen) < int(batch["lengths"].sum()) and (tokens is not None or sum(seen) == tree)


def test_a_critic_shares_too() -> None:
    def critic(**options) -> FsdpTrainStrategy:
        torch.manual_seed(3)
        model = Qwen3ForTokenClassification(Qwen3Config(**SIZES, num_labels=1, classifier_dropout=0.0)).double()
        return FsdpTrainStrategy(model, TrainOptions(max_grad_norm=0, **options), predicts="values")

    batch = grouped_batch()
    batch["values"] = torch.zeros(batch["input_ids"].shape, dtype=torch.float64)
    batch["returns"] = torch.randn(batch["input_ids"].shape, dtype=torch.float64) * batch["response_mask"]
    padded, shared = critic(), critic(share_prefixes=True, max_tokens_per_microbatch=30)
    torch.testing.assert_close(shared.compute_values(batch), padded.compute_values(batch), atol=1e-6, rtol=0)
    loss = ValueObjective()
    assert_same_step(step_gradient(padded, batch, loss), step_gradient(shared, batch, loss), EXACT)


@pytest.mark.parametrize("layout", ["use_sequence_packing", "share_prefixes"])
def test_what_is_recomputed_in_the_backward_pass_is_alike(layout: str) -> None:
    batch = grouped_batch()
    computed = trainer_of(qwen(3).double(), gradient_checkpointing=True, **{layout: True})
    expected = step_gradient(trainer_of(qwen(3).double()), batch, OBJECTIVE)
    assert_same_step(expected, step_gradient(computed, batch, OBJECTIVE), EXACT)


def test_pairs_stay_in_one_pass() -> None:
    batch = grouped_batch()
    batch[PAIR] = torch.tensor([0, 1, 2, 0, 1, 2])
    scorer = Scorer(qwen(), share_prefixes=True, max_tokens_per_microbatch=40)
    passes = [set(part.rows.tolist()) for part in scorer.passes(batch)]
    assert len(passes) > 1
    assert all(rows & pair in (set(), pair) for rows in passes for pair in ({0, 3}, {1, 4}, {2, 5}))


@pytest.mark.parametrize("layout", ["use_sequence_packing", "share_prefixes"])
def test_the_last_layer_feeds_forward_only_what_is_read(layout: str) -> None:
    batch, model = grouped_batch(), qwen()
    trainer = trainer_of(model, **{layout: True})
    sizes: dict[str, list[int]] = {"first": [], "last": []}
    for name, layer in (("first", model.model.layers[0]), ("last", model.model.layers[-1])):
        layer.mlp.gate_proj.register_forward_hook(
            lambda module, args, output, name=name: sizes[name].append(args[0].shape[1])
        )
    batch["response_mask"] = torch.arange(20).expand(6, 20) == 3
    trainer.train_step(batch, NegativeLogLikelihood())
    # The rows begin with the same three tokens, and the state behind them is what all of them read.
    assert sizes["last"] == [1 if layout == "share_prefixes" else 6] and sizes["first"][0] > 20
    trainer.compute_log_probs(batch)
    prepared = model(batch["input_ids"], use_cache=False).logits
    torch.testing.assert_close(prepared.isfinite().all(), torch.tensor(True))
    assert sizes["last"][-1] == 20, "outside of packing all of it is computed"


def test_a_model_that_looks_through_a_window_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"share_prefixes: Mistral.*sliding window.*Switch share_prefixes off"):
        Scorer(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)), share_prefixes=True)


def test_an_attention_that_is_not_ours_is_refused() -> None:
    model = qwen()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="share_prefixes does not work with attn_implementation=flash_attention_2"):
        prepare_packing(model, shared=True)


def test_sequences_that_are_spread_over_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="share_prefixes does not work with ulysses_size above 1"):
        Scorer(qwen(), share_prefixes=True, fsdp=FsdpOptions(ulysses_size=2))


def test_half_precision_is_near() -> None:
    batch = grouped_batch()
    exact = trainer_of(qwen(3)).compute_log_probs(batch)
    for layout in ("use_sequence_packing", "share_prefixes"):
        rounded = trainer_of(qwen(3), mixed_precision=True, **{layout: True})
        assert (rounded.compute_log_probs(batch) - exact).abs().max() < 0.1
        assert rounded.train_step(batch, NegativeLogLikelihood())["grad_norm"] > 0


def plain_attention(plan_ends: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Written from the definition: softmax over what each token may see."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    place = torch.arange(query.shape[2])
    visible = (place[:, None] >= place) & (place[:, None] < plan_ends)
    scores = (query @ key.mT * 0.4).masked_fill(~visible, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(0, 1000))
def test_halves_of_branches_make_the_attention_of_the_tree(rows: list[list[int]], seed: int) -> None:
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    tree = PrefixTree.of(ids, lengths)
    plan = SharedPlan.of(tree, lengths)
    noise = torch.Generator().manual_seed(seed)
    states = [
        torch.randn(1, heads, len(tree.ids), 4, generator=noise, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2)
    ]
    got = plan.attend(torch.nn.Identity(), *states, AttentionOptions(0.4, 0.0, None))
    expected = plain_attention(plan.ends, *states)
    torch.testing.assert_close(got, expected)
    weights = torch.randn(expected.shape, generator=noise, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad(got, states, weights), torch.autograd.grad(expected, states, weights), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_what_flex_attention_is_told_is_the_same_attention() -> None:
    """On the CPU its plain form; `make test-gpu` runs its kernels."""
    batch = grouped_batch()
    tree = PrefixTree.of(batch["input_ids"], batch["lengths"])
    ends = tree.ends(batch["lengths"])
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, len(ends), 8) for heads in (4, 2, 2))
    got = flex_attention(query, key, value, block_mask=tree_mask(ends), scale=0.4, enable_gqa=True)
    torch.testing.assert_close(got.transpose(1, 2), plain_attention(ends, query, key, value), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 128, 129, 500])
def test_blocks_are_those_that_pytorch_finds_by_looking_at_each_pair(length: int) -> None:
    """Rows that share up to three blocks, in trees of one block and of many."""
    noise = torch.Generator().manual_seed(length)
    ids = torch.randint(1, 9, (6, length), generator=noise)
    lengths = torch.randint(1, length + 1, (6,), generator=noise)
    for row, same in enumerate((0, 3, 130, 130, 257, 400)):
        ids[row, :same] = ids[0, :same]
    tree = PrefixTree.of(ids, lengths)
    ends = tree.ends(lengths)
    mask = tree_mask(ends)
    whole = create_block_mask(mask.mask_mod, None, None, len(ends), len(ends), device="cpu")
    assert (mask.shape, mask.seq_lengths, mask.BLOCK_SIZE) == (whole.shape, whole.seq_lengths, whole.BLOCK_SIZE)

    def blocks(numbers: Tensor, indices: Tensor) -> list[set[int]]:
        return [set(row[:count].tolist()) for count, row in zip(numbers.flatten(), indices[0, 0], strict=True)]

    assert blocks(mask.kv_num_blocks, mask.kv_indices) == blocks(whole.kv_num_blocks, whole.kv_indices)
    assert blocks(mask.full_kv_num_blocks, mask.full_kv_indices) == blocks(
        whole.full_kv_num_blocks, whole.full_kv_indices
    )
    if length == 500:
        assert int(mask.full_kv_num_blocks.sum()) and mask.sparsity() > 10, "some of each kind"


def test_one_row_alone_is_computed_as_it_is() -> None:
    model = qwen().double()
    prepare_packing(model, shared=True)
    ids, lengths = torch.arange(1, 8).unsqueeze(0), torch.tensor([7])
    with torch.no_grad():
        states = flat_hidden(model.model, ids, lengths, shared=True).states
        torch.testing.assert_close(states, flat_hidden(model.model, ids).states, atol=1e-6, rtol=1e-6)
