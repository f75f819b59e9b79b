"""A student on `megatron_train` learns from teachers what one of `fsdp_train` learns in one process.

Every tensor-parallel rank has a part of the vocabulary of the student and of its teachers.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch
from megatron_support.ranks import ranks
from megatron_support.scenarios import CONTEXT, PIPELINE, SEQUENCE, TENSOR, VOCABULARY, Case, plain_outputs
from tensordict import TensorDict
from torch import Tensor, nn

from roll.algorithms.distillation import REVERSE_KL, Divergence, top_k
from roll.strategies.training.comparing import BUCKETS, HEAD, IDS, STATES
from roll.strategies.training.distilled import DistillationLoss
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.rings import exhaustive_but

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core: pip install 'roll-rl[megatron]'"
)

JSD = Divergence("jsd", 0.3)
WAYS = {
    "tensor, reverse": (TENSOR, REVERSE_KL, "states"),
    "sequence, forward": (SEQUENCE, Divergence("forward_kl"), "states"),
    "tensor, jsd, several teachers": (TENSOR, JSD, "several"),
    "pipeline, jsd, top k": (PIPELINE, JSD, 5),
    "tensor, reverse, top k": (TENSOR, REVERSE_KL, 5),
    "tensor, forward, softened": (TENSOR, Divergence("forward_kl", temperature=2.0), "fewer"),
    "tensor, forward, softened, top k": (TENSOR, Divergence("forward_kl", temperature=2.0), 5),
    "tensor, forward, all named": (TENSOR, Divergence("forward_kl"), VOCABULARY),
    "context, forward": (CONTEXT, Divergence("forward_kl"), "states"),
    "tensor, jsd, a teacher with fewer tokens": (TENSOR, JSD, "fewer"),
    "tensor, reverse, a teacher with more tokens": (TENSOR, REVERSE_KL, "more"),
}


def taught(batch: TensorDict, what: str | int) -> tuple[list[nn.Linear], TensorDict]:
    """The heads of teachers, and the batch with what they say of it: drawn states, which need no model."""
    noise = torch.Generator().manual_seed(8)
    sizes = {"several": [VOCABULARY, VOCABULARY], "fewer": [VOCABULARY - 20], "more": [VOCABULARY + 20]}
    heads = []
    for number, size in enumerate(sizes.get(str(what), [VOCABULARY])):
        head = nn.Linear(12 + 4 * number, size, bias=number == 0)
        for parameter in head.parameters():
            parameter.requires_grad_(False)
            parameter.copy_(torch.randn(parameter.shape, generator=noise))
        heads.append(head)
    batch = batch.clone()
    states = torch.randn(*batch["input_ids"].shape, heads[-1].in_features, generator=noise)
    if isinstance(what, int):
        log_probs = torch.log_softmax(heads[0](states[..., :12]).double(), -1)  # as they are: any distribution will do
        batch[IDS], buckets = top_k(log_probs, what)
        batch[BUCKETS] = buckets.float()
        return [], batch
    batch[STATES], batch[HEAD] = states, torch.arange(len(states)) % len(heads)
    return heads, batch


@pytest.mark.parametrize("way", exhaustive_but(WAYS, "tensor, jsd, several teachers"))
def test_two_steps_on_two_ranks_equal_those_of_one_process(way: str) -> None:
    megatron, choice, what = WAYS[way]
    case = Case(megatron=megatron, train={"log_prob_chunk_size": 7, "temperature": 0.8})
    prepared = [taught(case.batch(seed), what) for seed in (3, 4)]
    heads, batches = prepared[0][0], [batch for _, batch in prepared]

    alone = FsdpTrainStrategy(case.model(), replace(case.options, log_prob_chunk_size=None))
    alone.measure_from(*heads, divergence=choice)
    expected = [alone.train_step(batch.clone(), DistillationLoss()) for batch in batches]

    for found in ranks(2).run("distil", case, heads, choice, batches):
        for ours, theirs in zip(found.steps, expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
        for name, value in alone.model.named_parameters():
            np.testing.assert_allclose(found.parameters[name], value.detach(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_divergence_is_that_of_a_loop_over_the_whole_vocabulary() -> None:
    """In float64 from the formula, so that both trainers cannot err alike."""
    case = Case(megatron=TENSOR)
    heads, batch = taught(case.batch(3), "states")
    mask, states = batch["response_mask"].clone(), batch[STATES].clone()
    with torch.no_grad():
        logits = case.model().eval()(batch["input_ids"], use_cache=False).logits
    total, tokens = 0.0, 0
    for row, column in mask.nonzero().tolist():
        student = softmax(logits[row, column - 1])
        teacher = softmax(heads[0](states[row, column]))
        mixture = [0.3 * t + 0.7 * s for s, t in zip(student, teacher, strict=True)]
        total += 0.3 * kl(teacher, mixture) + 0.7 * kl(student, mixture)
        tokens += 1
    (first, *_), *_ = (found.steps for found in ranks(2).run("distil", case, heads, JSD, [batch]))
    assert first["distill/divergence"] == pytest.approx(total / tokens, rel=1e-5)
    _, entropy = plain_outputs(case.model().eval(), batch)
    assert entropy is not None
    assert first["distill/entropy"] == pytest.approx(float(entropy.detach()[mask].mean()), rel=1e-4)


def softmax(logits: Tensor) -> list[float]:
    weights = [float(torch.exp(each)) for each in (logits.double() - logits.double().max())]
    return [weight / sum(weights) for weight in weights]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * float(np.log(a / b)) for a, b in zip(p, q, strict=True) if a > 0)
