"""A CUDA device computes what the CPU computes, and gives memory back when it is asked to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from transformers import Qwen3Config, Qwen3ForCausalLM

from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.strategies.generation.hf_infer.hf_infer_support import qwen
from tests.strategies.training.batches import NegativeLogLikelihood, policy_batch, step_gradient
from tests.strategies.training.pytorch.test_fsdp_packing import OBJECTIVE

LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {},
    "packed": {"use_sequence_packing": True},
    "shared": {"share_prefixes": True},
    "recomputed": {"gradient_checkpointing": True, "use_sequence_packing": True},
    "compiled": {"compiled": True},
}


def trainer_on(device: torch.device | str, compiled: bool = False, **options: object) -> FsdpTrainStrategy:
    fsdp = FsdpOptions(torch_compile=compiled)
    return FsdpTrainStrategy(qwen(3).to(device), TrainOptions(max_tokens_per_microbatch=64, **options), fsdp=fsdp)


@pytest.fixture(scope="module")
def batch() -> TensorDict:
    made = policy_batch(trainer_on("cpu"), rows=8)
    made["input_ids"][:, :3] = made["input_ids"][:1, :3]
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_is_that_of_the_cpu(cuda: torch.device, batch: TensorDict, layout: str) -> None:
    on_cpu, on_cuda = trainer_on("cpu"), trainer_on(cuda, **LAYOUTS[layout])
    torch.testing.assert_close(
        on_cuda.compute_log_probs(batch).cpu(), on_cpu.compute_log_probs(batch), atol=2e-4, rtol=0
    )
    expected, expected_metrics = step_gradient(on_cpu, batch, OBJECTIVE)
    gradient, metrics = step_gradient(on_cuda, batch, OBJECTIVE)
    for name, values in expected.items():
        torch.testing.assert_close(gradient[name].cpu(), values, atol=2e-4, rtol=2e-3, msg=name)
    for name in ("loss", "grad_norm"):
        assert metrics[name] == pytest.approx(expected_metrics[name], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_bf16_is_near_and_learns(cuda: torch.device, batch: TensorDict, layout: str) -> None:
    exact = trainer_on("cpu").compute_log_probs(batch)
    rounded = trainer_on(cuda, mixed_precision=True, learning_rate=1e-2, **LAYOUTS[layout])
    assert (rounded.compute_log_probs(batch).cpu() - exact).abs().max() < 0.15
    losses = [rounded.train_step(batch, NegativeLogLikelihood())["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_two_runs_take_the_same_steps_bit_for_bit(cuda: torch.device, batch: TensorDict, layout: str) -> None:
    def run() -> dict[str, torch.Tensor]:
        trainer = trainer_on(cuda, learning_rate=1e-2, **LAYOUTS[layout])
        for _ in range(4):
            trainer.train_step(batch, OBJECTIVE)
        return {name: value.clone() for name, value in trainer.named_parameters()}

    first, second = run(), run()
    assert all(torch.equal(values, second[name]) for name, values in first.items())


def long_batch() -> TensorDict:
    """Groups whose members go apart in the middle of a block of FlexAttention, after some blocks and at once."""
    noise = torch.Generator().manual_seed(0)
    lengths = torch.tensor([900, 860, 700, 901, 640, 64])
    ids = torch.randint(1, 97, (6, 901), generator=noise)
    for row, (like, same) in enumerate([(0, 0), (0, 600), (0, 384), (3, 0), (3, 511), (3, 1)]):
        ids[row, :same] = ids[like, :same]
    inside = torch.arange(901) < lengths.unsqueeze(1)
    mask = inside.clone()
    mask[:, :20] = False
    return TensorDict({"input_ids": ids * inside, "response_mask": mask, "lengths": lengths}, batch_size=[6])


def test_beginnings_of_many_blocks_are_shared(cuda: torch.device) -> None:
    """With heads of 64, which FlexAttention has kernels for as they are."""

    def model() -> Qwen3ForCausalLM:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=97, hidden_size=128, num_hidden_layers=3, intermediate_size=192, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, initializer_range=0.1,
        )  # fmt: skip
        return Qwen3ForCausalLM(config).to(cuda)

    rows, options = long_batch(), {"max_tokens_per_microbatch": 2048}
    padded = FsdpTrainStrategy(model(), TrainOptions(**options))
    shared = FsdpTrainStrategy(model(), TrainOptions(**options, share_prefixes=True))
    torch.testing.assert_close(shared.compute_log_probs(rows), padded.compute_log_probs(rows), atol=1e-4, rtol=0)
    expected, _ = step_gradient(padded, rows, NegativeLogLikelihood())
    gradient, _ = step_gradient(shared, rows, NegativeLogLikelihood())
    for name, values in expected.items():
        torch.testing.assert_close(gradient[name], values, atol=1e-4, rtol=2e-3, msg=name)


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_the_gradient_of_a_larger_model_in_bf16_points_where_that_in_fp32_does(cuda: torch.device, layout: str) -> None:
    """70 million weights, a vocabulary of 32,000."""

    def trainer(**options: Any) -> FsdpTrainStrategy:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=32000, hidden_size=768, num_hidden_layers=8, intermediate_size=2048, num_attention_heads=12,
            num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
        )  # fmt: skip
        with cuda:
            return FsdpTrainStrategy(Qwen3ForCausalLM(config), TrainOptions(**options))

    rows = long_batch()
    exact, _ = step_gradient(trainer(), rows, NegativeLogLikelihood())
    rounded, _ = step_gradient(trainer(mixed_precision=True, **LAYOUTS[layout]), rows, NegativeLogLikelihood())
    for name, values in exact.items():
        near = torch.nn.functional.cosine_similarity(rounded[name].flatten(), values.flatten(), dim=0)
        assert near > 0.99, (name, float(near))


def test_what_is_handed_over_leaves_the_device_and_comes_back_as_it_was(cuda: torch.device, batch: TensorDict) -> None:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=97, hidden_size=1024, num_hidden_layers=4, intermediate_size=2048, num_attention_heads=8,
            num_key_value_heads=2, head_dim=64, tie_word_embeddings=True,
        )
    ).to(cuda)  # fmt: skip
    trainer = FsdpTrainStrategy(model, TrainOptions(learning_rate=1e-3))
    trainer.train_step(batch, OBJECTIVE)
    held = torch.cuda.memory_allocated()
    weights = {name: value.clone().cpu() for name, value in trainer.named_parameters()}
    own = sum(parameter.nbytes for parameter in model.parameters())
    trainer.offload(weights=False)
    without_moments = torch.cuda.memory_allocated()
    assert held - without_moments == pytest.approx(2 * own, rel=0.05), "the two moments of AdamW"
    trainer.offload()
    assert without_moments - torch.cuda.memory_allocated() == pytest.approx(own, rel=0.05), "the weights"
    trainer.reload()
    assert torch.cuda.memory_allocated() == pytest.approx(held, rel=0.02)
    assert all(torch.equal(value.cpu(), weights[name]) for name, value in trainer.named_parameters())
    trainer.train_step(batch, OBJECTIVE)


def test_a_checkpoint_goes_on_with_the_same_random_numbers(
    cuda: torch.device, batch: TensorDict, tmp_path: Path
) -> None:
    def with_dropout() -> FsdpTrainStrategy:
        model = qwen(3, attention_dropout=0.3).to(cuda)
        return FsdpTrainStrategy(model, TrainOptions(learning_rate=1e-2))

    saved, resumed = with_dropout(), with_dropout()
    saved.train_step(batch, OBJECTIVE)
    saved.save_checkpoint(tmp_path)
    expected = saved.train_step(batch, OBJECTIVE)
    torch.manual_seed(99)
    resumed.load_checkpoint(tmp_path)
    assert resumed.train_step(batch, OBJECTIVE) == expected


def test_the_device_takes_over_a_checkpoint_of_the_cpu(cuda: torch.device, batch: TensorDict, tmp_path: Path) -> None:
    on_cpu, on_cuda = trainer_on("cpu", learning_rate=1e-3), trainer_on(cuda, learning_rate=1e-3)
    on_cpu.train_step(batch, OBJECTIVE)
    on_cpu.save_checkpoint(tmp_path)
    on_cuda.load_checkpoint(tmp_path)
    expected, step = on_cpu.train_step(batch, OBJECTIVE), on_cuda.train_step(batch, OBJECTIVE)
    assert step["loss"] == pytest.approx(expected["loss"], rel=1e-3, abs=1e-4)


def test_sharded_weights_of_one_rank_take_the_same_steps(nccl: torch.device, batch: TensorDict) -> None:
    """FSDP2 over NCCL; a group of one rank."""
    plain, sharded = trainer_on("cpu", learning_rate=1e-3), trainer_on(nccl, learning_rate=1e-3)
    for _ in range(3):
        expected, step = plain.train_step(batch, OBJECTIVE), sharded.train_step(batch, OBJECTIVE)
        assert step["loss"] == pytest.approx(expected["loss"], rel=1e-3, abs=1e-4)
        assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
