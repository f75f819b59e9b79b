from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForTokenClassification

from roll.algorithms.advantages import gae
from roll.algorithms.aggregation import MODES
from roll.pipelines.learning.value_objective import ValueObjective, explained_variance
from roll.strategies.base import TrainStrategy
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.values import forward_values
from tests.strategies.generation.hf_infer.hf_infer_support import SIZES, VOCABULARY
from tests.strategies.training.batches import step_gradient, token_batch

SPLITS = [(None, 1), (None, 4), (20, None), (33, None), (47, 2)]


def critic(seed: int = 3, **options) -> Qwen3ForTokenClassification:
    torch.manual_seed(seed)
    return Qwen3ForTokenClassification(Qwen3Config(**SIZES, num_labels=1, classifier_dropout=0.0, **options)).eval()


def trainer_of(model: Qwen3ForTokenClassification, **options) -> FsdpTrainStrategy:
    return FsdpTrainStrategy(model, TrainOptions(**{"max_grad_norm": 0, **options}), predicts="values")


def value_batch(seed: int = 0) -> TensorDict:
    """Old values so far from the critic's that many are clipped, and returns on both sides of them."""
    batch = token_batch(seed)
    noise = torch.Generator().manual_seed(seed + 1)
    mask = batch["response_mask"]
    values = trainer_of(critic().double()).compute_values(batch).double()
    for name, distance in (("values", 0.3), ("returns", 1.0)):
        shift = distance * torch.randn(mask.shape, generator=noise, dtype=torch.float64)
        batch[name] = (values + shift) * mask
    return batch


def by_hand(model: Qwen3ForTokenClassification, batch: TensorDict) -> Tensor:
    """The classifier's own output one token earlier, row by row and without padding."""
    values = torch.zeros(batch["input_ids"].shape, dtype=torch.float64)
    for row in range(len(batch)):
        ids = batch["input_ids"][row, : int(batch["lengths"][row])]
        with torch.no_grad():
            logits = model(ids.unsqueeze(0), use_cache=False).logits[0, :, 0]
        for position in range(1, len(ids)):
            if batch["response_mask"][row, position]:
                values[row, position] = logits[position - 1]
    return values


@pytest.mark.parametrize("tokens", [None, 40])
def test_values_equal_an_independent_forward_pass(tokens: int | None) -> None:
    model, batch = critic(), token_batch(3)
    expected = by_hand(model, batch)
    assert expected.count_nonzero() > 20
    for strategy in (
        Scorer(model, predicts="values", max_tokens_per_microbatch=tokens),
        trainer_of(model, max_tokens_per_microbatch=tokens),
    ):
        values = strategy.compute_values(batch)
        assert values.dtype == torch.float32 and not values.requires_grad
        torch.testing.assert_close(values.double(), expected, atol=1e-5, rtol=0)


def test_a_value_sees_the_tokens_before_its_own_and_no_other() -> None:
    model, batch = critic().double(), token_batch()
    everywhere = torch.ones_like(batch["response_mask"])
    with torch.no_grad():
        before = forward_values(model, batch["input_ids"], everywhere)
        for position in (1, 7, 19):
            changed = batch["input_ids"].clone()
            changed[:, position] = (changed[:, position] + 1) % VOCABULARY
            difference = (forward_values(model, changed, everywhere) - before).abs()
            assert (difference[:, : position + 1] < 1e-12).all()
            assert (difference[:, position + 1 :] > 1e-9).all()
    assert (before[:, 0] == 0).all() and (before[:, 1:] != 0).all()


def test_advantages_are_built_from_the_value_before_and_the_value_after_a_token() -> None:
    batch, gamma, lam = token_batch(4), 0.9, 0.7
    mask = batch["response_mask"]
    rewards = torch.randn(mask.shape, generator=torch.Generator().manual_seed(2)) * mask
    values = trainer_of(critic()).compute_values(batch)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    expected = by_hand(critic(), batch)
    rows_with_gaps = 0
    for row in range(len(batch)):
        tokens = mask[row].nonzero().flatten().tolist()
        rows_with_gaps += any(b - a > 1 for a, b in zip(tokens, tokens[1:], strict=False))
        following, value_after = 0.0, 0.0
        for t in reversed(tokens):
            delta = float(rewards[row, t]) + gamma * value_after - float(expected[row, t])
            following = delta + gamma * lam * following
            value_after = float(expected[row, t])
            assert float(advantages[row, t]) == pytest.approx(following, abs=1e-5)
            assert float(returns[row, t]) == pytest.approx(following + value_after, abs=1e-5)
    assert rows_with_gaps > 2


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_any_micro_batches_give_the_same_gradient_and_metrics(mode: str) -> None:
    batch, loss = value_batch(), ValueObjective(aggregation=mode, max_length=30)
    whole = step_gradient(trainer_of(critic().double(), max_tokens_per_microbatch=None), batch, loss)
    assert 0.1 < whole[1]["critic/value_clip_fraction"] < 0.9 and whole[1]["grad_norm"] > 0.1
    for tokens, samples in SPLITS:
        split = trainer_of(critic().double(), max_tokens_per_microbatch=tokens, max_samples_per_microbatch=samples)
        gradient, metrics = step_gradient(split, batch, loss)
        for name, expected in whole[0].items():
            torch.testing.assert_close(gradient[name], expected, atol=1e-9, rtol=1e-9)
        assert metrics == pytest.approx(whole[1], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_is_that_of_the_clipped_error_of_the_whole_batch(mode: str, checkpointing: bool) -> None:
    """Against automatic differentiation of the classifier's own output, one token earlier."""
    batch, loss = value_batch(), ValueObjective(aggregation=mode, max_length=30)
    model = critic().double()
    logits = model(batch["input_ids"], use_cache=False).logits[..., 0]
    shifted = torch.cat([torch.zeros_like(logits[:, :1]), logits[:, :-1]], 1)
    value, _ = loss(shifted, None, batch, loss.totals(batch))
    value.backward()
    trainer = trainer_of(critic().double(), max_tokens_per_microbatch=40, gradient_checkpointing=checkpointing)
    gradient, metrics = step_gradient(trainer, batch, loss)
    assert metrics["loss"] == pytest.approx(float(value.detach()), rel=1e-9)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradient[name], parameter.grad, atol=1e-9, rtol=1e-9)


def test_a_value_whose_move_is_clipped_has_no_gradient() -> None:
    batch = value_batch()
    mask = batch["response_mask"]
    values = trainer_of(critic().double()).compute_values(batch).double()
    # Every value has moved up by 1, towards a return that is still above it: further moves must not pay.
    batch["values"], batch["returns"] = (values - 1.0) * mask, (values + 0.5) * mask
    _, metrics = step_gradient(trainer_of(critic().double()), batch, ValueObjective(clip=0.2))
    assert metrics["critic/value_clip_fraction"] == 1.0 and metrics["grad_norm"] == 0.0
    _, metrics = step_gradient(trainer_of(critic().double()), batch, ValueObjective(clip=None))
    assert metrics["grad_norm"] > 0.1 and "critic/value_clip_fraction" not in metrics


def test_what_is_outside_the_mask_does_not_matter() -> None:
    batch = value_batch()
    expected = step_gradient(trainer_of(critic().double()), batch, ValueObjective())
    inside = torch.arange(batch["input_ids"].shape[1]).unsqueeze(0) < batch["lengths"].unsqueeze(1)
    changed = batch.clone()
    changed["input_ids"] = batch["input_ids"].masked_fill(~inside, 17)
    for name in ("values", "returns"):
        changed[name] = batch[name].masked_fill(~batch["response_mask"], math.nan)
    widths = {name: (0, 9) if value.ndim == 2 else (0, 0) for name, value in changed.items()}
    columns = {name: torch.nn.functional.pad(value, widths[name]) for name, value in changed.items()}
    padded = TensorDict(columns, batch_size=[len(batch)])
    assert padded["input_ids"].shape[1] == batch["input_ids"].shape[1] + 9
    for variant in (changed, padded):
        gradient, metrics = step_gradient(trainer_of(critic().double()), variant, ValueObjective())
        for name, value in expected[0].items():
            torch.testing.assert_close(gradient[name], value, atol=1e-9, rtol=1e-9)
        assert metrics == pytest.approx(expected[1], rel=1e-9)


def test_a_batch_without_trained_tokens_gives_values_and_gradients_of_zero() -> None:
    batch = value_batch()
    batch["response_mask"] = torch.zeros_like(batch["response_mask"])
    trainer = trainer_of(critic())
    assert trainer.compute_values(batch).count_nonzero() == 0
    gradient, _ = step_gradient(trainer, batch, ValueObjective())
    assert all(value.count_nonzero() == 0 for value in gradient.values())


@pytest.mark.long
def test_training_fits_values_to_returns() -> None:
    """The return of a token depends on the token before it, which a critic sees, and on nothing else."""
    batch = token_batch(rows=12)
    mask = batch["response_mask"]
    batch["returns"] = torch.nn.functional.pad(batch["input_ids"][:, :-1] / VOCABULARY, (1, 0)) * mask
    model = critic()
    torch.nn.init.zeros_(model.score.weight)
    torch.nn.init.zeros_(model.score.bias)
    trainer = trainer_of(model, learning_rate=1e-2, max_grad_norm=1.0)
    explained = []
    before = {name: value.clone() for name, value in trainer.named_parameters()}
    for step in range(40):
        batch["values"] = trainer.compute_values(batch)
        explained.append(explained_variance(batch["values"], batch["returns"], mask))
        trainer.train_step(batch, ValueObjective())
        if step == 0:
            moved = {name for name, value in trainer.named_parameters() if not torch.equal(value, before[name])}
            assert moved == {"score.weight", "score.bias"}, "a head of zeros passes no gradient on"
    assert explained[0] == 0.0 and explained[-1] is not None and explained[-1] > 0.9


def test_six_steps_equal_three_a_checkpoint_and_three_more(tmp_path: Path) -> None:
    def resumable(seed: int) -> FsdpTrainStrategy:
        options = dict(learning_rate=1e-2, weight_decay=0.1, l2=0.01, lr_scheduler_type="cosine", total_steps=8)
        return trainer_of(critic(seed, attention_dropout=0.3), **options)

    batches = [value_batch(k) for k in range(6)]
    straight, first, second = resumable(3), resumable(3), resumable(99)
    torch.manual_seed(11)
    expected = [straight.train_step(batch, ValueObjective()) for batch in batches]
    torch.manual_seed(11)
    taken = [first.train_step(batch, ValueObjective()) for batch in batches[:3]]
    first.save_checkpoint(tmp_path / "critic")
    torch.manual_seed(5)
    second.load_checkpoint(tmp_path / "critic")
    taken += [second.train_step(batch, ValueObjective()) for batch in batches[3:]]
    assert taken == expected
    for (name, ours), (_, theirs) in zip(second.named_parameters(), straight.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert torch.equal(second.compute_values(batches[0]), second.compute_values(batches[0])), "dropout is off"


def test_mixed_precision_keeps_the_head_in_fp32() -> None:
    batch, model = token_batch(rows=2, longest=8), critic()
    seen: list[torch.dtype] = []
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *a: seen.append(a[2].dtype))
    mixed = trainer_of(model, mixed_precision=True)
    values = mixed.compute_values(batch)
    assert set(seen) == {torch.bfloat16}
    assert not torch.equal(values, values.bfloat16().float())
    torch.testing.assert_close(values.double(), by_hand(critic(), batch), atol=0.1, rtol=0)


def test_what_a_model_does_not_predict_is_an_error() -> None:
    trainer = trainer_of(critic())
    assert isinstance(trainer, TrainStrategy)
    with pytest.raises(TypeError, match="Qwen3ForTokenClassification is used here for its values, not for log_probs"):
        trainer.compute_log_probs(token_batch())
    with pytest.raises(TypeError, match="used here for its log_probs, not for values"):
        Scorer(critic()).compute_values(token_batch())
