"""What distillation minimises: what logits held at once say, however a batch is cut, packed, padded or taught."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from transformers import Qwen3Config, Qwen3ForCausalLM

from roll.algorithms.distillation import Divergence, buckets, top_k
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.distilled import TEACHER_LOG_PROBS, DistillationLoss, SampledDistillationLoss
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.strategies.training.batches import step_gradient

CHOICES = [Divergence("reverse_kl"), Divergence("forward_kl"), Divergence("jsd", 0.3)]
SOFT = Divergence("forward_kl", temperature=2.5)
TEMPERATURE = 0.8


def model(seed: int, hidden: int = 16, vocabulary: int = 40) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=0,
        initializer_range=0.5,
    )
    return Qwen3ForCausalLM(config).double().eval()


STUDENT = model(0)
TEACHERS = [model(1, hidden=12), model(2, hidden=24, vocabulary=48)]
"""A narrower one, and a wider one that fills its vocabulary up."""


def rows(width: int = 9) -> TensorDict:
    noise = torch.Generator().manual_seed(3)
    lengths = torch.tensor([9, 4, 7, 6])
    ids = torch.zeros(4, width, dtype=torch.int64)
    ids[:, :9] = torch.randint(1, 40, (4, 9), generator=noise)
    valid = torch.arange(width) < lengths.unsqueeze(1)
    mask = torch.zeros(4, width, dtype=torch.bool)
    mask[:, 1:9] = torch.rand(4, 8, generator=noise) < 0.6
    columns = {"input_ids": ids * valid, "response_mask": mask & valid, "lengths": lengths}
    columns["ref_head"] = torch.tensor([0, 1, 1, 0])
    return TensorDict(columns, batch_size=[4])


def taught(batch: TensorDict, k: int | None = None, softened: float = 1.0) -> TensorDict:
    """Add what the teachers say: states, or their likeliest tokens at the temperature of the divergence."""
    widest = max(each.config.hidden_size for each in TEACHERS)
    states = torch.zeros(*batch["input_ids"].shape, widest, dtype=torch.float64)
    for number, teacher in enumerate(TEACHERS):
        mine = batch["ref_head"] == number
        found = Scorer(teacher).compute_states(batch[mine]).double()
        states[mine, :, : found.shape[-1]] = found
    if k is None:
        batch["ref_states"] = states
        return batch
    logits = torch.stack(
        [
            TEACHERS[number].lm_head(row[:, : TEACHERS[number].config.hidden_size])[:, :40]
            for number, row in zip(batch["ref_head"].tolist(), states, strict=True)
        ]
    )
    batch["ref_ids"], named = top_k((logits / (TEMPERATURE * softened)).log_softmax(-1).detach(), k)
    batch["ref_buckets"] = named.masked_fill(~batch["response_mask"].unsqueeze(-1), 0.0)
    return batch


def step(batch: TensorDict, choice: Divergence, **options):
    settings = {"max_tokens_per_microbatch": 64, "temperature": TEMPERATURE, "max_grad_norm": 0.0, **options}
    strategy = FsdpTrainStrategy(copy.deepcopy(STUDENT), TrainOptions(**settings))
    strategy.measure_from(*(each.lm_head for each in TEACHERS), divergence=choice)
    return step_gradient(strategy, batch, DistillationLoss())


def at_once(batch: TensorDict, choice: Divergence, k: int | None = None) -> tuple[float, dict[str, torch.Tensor]]:
    """The mean over all trained tokens, row by row, without anything of the trainer."""
    heat = TEMPERATURE * choice.temperature
    student, total, count = copy.deepcopy(STUDENT), torch.zeros((), dtype=torch.float64), 0
    for row in range(len(batch)):
        ids = batch["input_ids"][row : row + 1, : int(batch["lengths"][row])]
        teacher = TEACHERS[int(batch["ref_head"][row])]
        with torch.no_grad():
            theirs = (teacher(ids).logits[0, :, :40] / heat).log_softmax(-1)
        ours = (student(ids).logits[0] / heat).log_softmax(-1)
        for place in range(1, ids.shape[1]):
            if batch["response_mask"][row, place]:
                s, t = ours[place - 1], theirs[place - 1]
                if k is not None:
                    named, t = top_k(t, k)
                    s = buckets(s, named)
                total, count = total + choice(s, t), count + 1
    (total / count).backward()
    return float(total.detach() / count), {name: p.grad for name, p in student.named_parameters()}


@pytest.mark.parametrize("choice", [*CHOICES, SOFT], ids=str)
@pytest.mark.parametrize("k", [None, 5, 40])
def test_loss_and_gradient_are_those_of_logits_held_at_once(choice: Divergence, k: int | None) -> None:
    batch = taught(rows(), k, choice.temperature)
    before = [copy.deepcopy(each.state_dict()) for each in TEACHERS]
    wanted, gradients = at_once(batch, choice, k)

    got, metrics = step(batch, choice)

    # States of teachers travel in single precision.
    assert metrics["loss"] == metrics["distill/divergence"] == pytest.approx(wanted, rel=1e-6)
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-5, atol=1e-6)
    for teacher, state in zip(TEACHERS, before, strict=True):
        assert all(parameter.grad is None for parameter in teacher.parameters())
        assert all(torch.equal(value, state[name]) for name, value in teacher.state_dict().items())


@pytest.mark.parametrize("k", [None, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens_per_microbatch": None, "max_samples_per_microbatch": 1},
        {"use_sequence_packing": True, "max_tokens_per_microbatch": 16},
        {"log_prob_chunk_size": 3},
    ],
    ids=lambda given: next(iter(given)),
)
def test_passes_packing_and_chunks_change_nothing(k: int | None, options: dict) -> None:
    whole, told = step(taught(rows(), k), CHOICES[2])
    other, again = step(taught(rows(), k), CHOICES[2], **options)
    assert again == pytest.approx(told, rel=1e-9)
    for name, gradient in whole.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("k", [None, 5])
def test_padding_and_what_is_not_trained_change_nothing(k: int | None) -> None:
    whole, told = step(taught(rows(), k), CHOICES[0])
    batch = taught(rows(width=14), k)
    for name in ("ref_states", "ref_ids", "ref_buckets"):
        if name in batch.keys():
            batch[name][~batch["response_mask"]] = 7
    other, again = step(batch, CHOICES[0])
    assert again["loss"] == pytest.approx(told["loss"], rel=1e-9)
    for name, gradient in whole.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-9, atol=1e-10)


def sampled(batch: TensorDict) -> TensorDict:
    """Add what the first teacher says of the tokens that are there, and what they were sampled with."""
    batch[TEACHER_LOG_PROBS] = Scorer(TEACHERS[0], temperature=TEMPERATURE).compute_log_probs(batch)
    batch["sampler_log_probs"] = Scorer(model(3), temperature=TEMPERATURE).compute_log_probs(batch)
    return batch


@pytest.mark.parametrize("options", [{}, {"use_sequence_packing": True, "max_tokens_per_microbatch": 16}], ids=str)
def test_the_loss_of_sampled_tokens_is_that_of_a_loop(options: dict) -> None:
    batch, student = sampled(rows()), copy.deepcopy(STUDENT)
    surrogate, total, count = torch.zeros((), dtype=torch.float64), 0.0, 0
    for row in range(len(batch)):
        ids = batch["input_ids"][row : row + 1, : int(batch["lengths"][row])]
        ours = (student(ids).logits[0] / TEMPERATURE).log_softmax(-1)
        for place in range(1, ids.shape[1]):
            if batch["response_mask"][row, place]:
                own = ours[place - 1, ids[0, place]]
                weight = (own.detach() - batch["sampler_log_probs"][row, place]).exp()
                estimate = float(weight * (own.detach() - batch[TEACHER_LOG_PROBS][row, place]))
                surrogate, total, count = surrogate + estimate * own, total + estimate, count + 1
    (surrogate / count).backward()

    settings = {"max_tokens_per_microbatch": 64, "temperature": TEMPERATURE, "max_grad_norm": 0.0, **options}
    strategy = FsdpTrainStrategy(copy.deepcopy(STUDENT), TrainOptions(**settings))
    got, metrics = step_gradient(strategy, batch, SampledDistillationLoss())

    assert metrics["loss"] == metrics["distill/divergence"] == pytest.approx(total / count, rel=1e-6)
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-5, atol=1e-6)
