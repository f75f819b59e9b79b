from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoModelForCausalLM

from roll.algorithms.aggregation import MODES
from roll.pipelines.learning.objective import PROPORTIONAL_LOSSES, PolicyObjective
from roll.strategies.base import TrainStrategy
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.train import CHECKPOINT_FILE, FsdpTrainStrategy
from tests.strategies.generation.hf_infer.hf_infer_support import qwen
from tests.strategies.training.batches import NegativeLogLikelihood, policy_batch, step_gradient, token_batch

SPLITS = [(None, 1), (None, 4), (20, None), (33, None), (47, 2)]


def double_trainer(**options) -> FsdpTrainStrategy:
    return FsdpTrainStrategy(qwen(3).double(), TrainOptions(max_grad_norm=0, **options))


def objective(**changes) -> PolicyObjective:
    """Every term at once, with clips that are active."""
    given = dict(
        options={"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 1.5},
        max_length=30,
        policy_weight=0.9,
        entropy_weight=0.05,
        kl_weight=0.3,
        kl_kind="low_var_kl",
        supervised_weight=0.2,
    )
    return PolicyObjective(**{**given, **changes})


def assert_same(
    first: tuple[dict[str, Tensor], dict[str, float]], second: tuple[dict[str, Tensor], dict[str, float]]
) -> None:
    assert first[0].keys() == second[0].keys()
    for name, gradient in first[0].items():
        torch.testing.assert_close(second[0][name], gradient, atol=1e-9, rtol=1e-9)
    assert first[1].keys() == second[1].keys()
    for name, value in first[1].items():
        # A share of tokens is divided in single precision by the loss itself.
        digits = 1e-7 if name == "policy/clip_fraction" else 1e-9
        assert second[1][name] == pytest.approx(value, rel=digits, abs=digits), name


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy_loss", ["ppo", "gspo_segment"])
def test_any_micro_batches_give_the_same_gradient_and_metrics(mode: str, policy_loss: str) -> None:
    trainer = double_trainer(max_tokens_per_microbatch=None)
    batch = policy_batch(trainer)
    changes = {} if policy_loss == "ppo" else {"policy_loss": policy_loss, "options": {}}
    loss = objective(aggregation=mode, **changes)
    whole = step_gradient(trainer, batch, loss)
    metrics = whole[1]
    assert 0 < metrics["policy/clip_fraction"] < 1 and metrics["policy/ratio_max"] > 1.3
    assert all(metrics[name] != 0 for name in ("loss/policy", "loss/kl", "loss/sft", "policy/entropy", "grad_norm"))
    for tokens, samples in SPLITS:
        split = double_trainer(max_tokens_per_microbatch=tokens, max_samples_per_microbatch=samples)
        assert_same(whole, step_gradient(split, batch, loss))


class EveryRow(PolicyObjective):
    """The same objective, computed for rows without an advantage too."""

    def contributing_rows(self, batch: TensorDict) -> None:
        return None


@pytest.mark.long
@pytest.mark.parametrize("policy_loss", sorted(PROPORTIONAL_LOSSES))
@pytest.mark.parametrize("mode", MODES)
def test_leaving_out_rows_without_advantage_changes_no_gradient(mode: str, policy_loss: str) -> None:
    trainer = double_trainer(max_tokens_per_microbatch=64)
    batch = policy_batch(trainer)
    batch["advantages"][[0, 3]] = 0.0
    terms = dict(policy_loss=policy_loss, aggregation=mode, max_length=30)
    assert PolicyObjective(**terms).contributing_rows(batch).tolist() == [False, False, True, False, True, True]
    skipped, _ = step_gradient(trainer, batch, PolicyObjective(**terms))
    whole, _ = step_gradient(trainer, batch, EveryRow(**terms))
    assert max(float(gradient.abs().max()) for gradient in whole.values()) > 1e-6
    for name, gradient in whole.items():
        torch.testing.assert_close(skipped[name], gradient, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("change", [{"entropy_weight": 0.1}, {"kl_weight": 0.1}, {"supervised_weight": 0.1}])
def test_rows_without_advantage_stay_where_another_term_has_a_gradient(change: dict[str, float]) -> None:
    batch = policy_batch(double_trainer())
    batch["advantages"] *= 0.0
    trained = batch["response_mask"].any(1)
    for objective_with in (PolicyObjective(**change), PolicyObjective(policy_loss="kimi15")):
        rows = objective_with.contributing_rows(batch)
        assert rows is None or bool(rows[trained].all())
    assert not PolicyObjective().contributing_rows(batch).any()


def test_a_step_without_any_advantage_moves_the_optimiser_as_a_zero_gradient_does() -> None:
    first, second = double_trainer(weight_decay=0.1), double_trainer(weight_decay=0.1)
    batch = policy_batch(first)
    for trainer in (first, second):
        trainer.train_step(batch, PolicyObjective())
    batch["advantages"] *= 0.0
    first.train_step(batch, PolicyObjective())
    second.train_step(batch, EveryRow())
    assert_equal_state(first, second)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_is_that_of_the_loss_of_the_whole_batch(mode: str) -> None:
    """Against automatic differentiation of the objective on plain full-vocabulary log-probs."""
    trainer = double_trainer(max_tokens_per_microbatch=20)
    batch, loss = policy_batch(trainer), objective(aggregation=mode)
    model, mask = qwen(3).double(), batch["response_mask"]
    every = torch.log_softmax(model(input_ids=batch["input_ids"], use_cache=False).logits, -1)
    chosen = torch.zeros(mask.shape, dtype=torch.float64)
    entropy = torch.zeros_like(chosen)
    chosen[:, 1:] = every[:, :-1].gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    entropy[:, 1:] = -(every.exp() * every).sum(-1)[:, :-1]
    value, _ = loss(chosen * mask, entropy * mask, batch, loss.totals(batch))
    value.backward()
    gradient, metrics = step_gradient(trainer, batch, loss)
    assert metrics["loss"] == pytest.approx(float(value.detach()), rel=1e-9)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradient[name], parameter.grad, atol=1e-9, rtol=1e-9)


def test_the_order_of_the_samples_does_not_matter() -> None:
    batch = policy_batch(double_trainer())
    shuffled = batch[torch.tensor([4, 2, 0, 5, 1, 3])]
    options = {"max_tokens_per_microbatch": 40}
    assert_same(
        step_gradient(double_trainer(**options), batch, objective()),
        step_gradient(double_trainer(**options), shuffled, objective()),
    )


def test_padding_does_not_matter() -> None:
    batch = policy_batch(double_trainer())
    padded = TensorDict(
        {
            name: torch.nn.functional.pad(value, (0, 9), value=5 if name == "input_ids" else 0)
            if value.ndim == 2
            else value
            for name, value in batch.items()
        },
        batch_size=[len(batch)],
    )
    assert padded["input_ids"].shape[1] == 29
    assert_same(
        step_gradient(double_trainer(), batch, objective()), step_gradient(double_trainer(), padded, objective())
    )


def test_gradient_checkpointing_recomputes_and_gives_the_same_gradient() -> None:
    batch = policy_batch(double_trainer())
    plain = step_gradient(double_trainer(), batch, objective())
    recomputing = double_trainer(gradient_checkpointing=True)
    calls: list[int] = []
    recomputing.model.get_decoder().layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    assert_same(plain, step_gradient(recomputing, batch, objective()))
    assert len(calls) == 2, "one forward, and one more in the backward pass"
    calls.clear()
    recomputing.compute_log_probs(batch)
    assert len(calls) == 1


def plain_adamw(batch: TensorDict, *, rates: list[float], decay: float, limit: float) -> tuple[list, torch.nn.Module]:
    """AdamW written out, three steps of it; returns (loss, norm before clipping) of each step and the model."""
    model, mask = qwen(3), batch["response_mask"][:, 1:]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    history = []
    for step, rate in enumerate(rates, start=1):
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
        loss = nll[mask].mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        history.append((float(loss.detach()), norm))
        scale = min(1.0, limit / (norm + 1e-6))
        with torch.no_grad():
            for p, g, (first, second) in zip(model.parameters(), gradients, moments, strict=True):
                first.mul_(0.9).add_(g * scale, alpha=0.1)
                second.mul_(0.95).add_((g * scale).square(), alpha=0.05)
                if p.ndim >= 2:
                    p.mul_(1 - rate * decay)
                p -= rate * (first / (1 - 0.9**step)) / ((second / (1 - 0.95**step)).sqrt() + 1e-5)
    return history, model


def test_three_steps_equal_a_plain_adamw_loop() -> None:
    batch = token_batch(2)
    options = TrainOptions(
        learning_rate=4e-3,
        weight_decay=0.5,
        betas=(0.9, 0.95),
        epsilon=1e-5,
        max_grad_norm=0.7,
        lr_scheduler_type="linear",
        warmup_steps=2,
        total_steps=4,
        max_tokens_per_microbatch=45,
    )
    trainer = FsdpTrainStrategy(qwen(3), options)
    taken = [trainer.train_step(batch, NegativeLogLikelihood()) for _ in range(4)]
    # Linear warm-up over two steps from 0, then down to 0 over the other two.
    rates = [0.0, 2e-3, 4e-3, 2e-3]
    assert [metrics["learning_rate"] for metrics in taken] == pytest.approx(rates)
    expected, model = plain_adamw(batch, rates=rates, decay=0.5, limit=0.7)
    assert expected[0][1] > 0.7, "clipping is active"
    for metrics, (loss, norm) in zip(taken, expected, strict=True):
        assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    initial = dict(qwen(3).named_parameters())
    for (name, ours), (_, plain) in zip(trainer.named_parameters(), model.named_parameters(), strict=True):
        torch.testing.assert_close(ours, plain.detach(), atol=1e-6, rtol=1e-6)
        assert not torch.equal(ours, initial[name].detach()), name


def test_weight_decay_shrinks_matrices_only() -> None:
    trainer = FsdpTrainStrategy(qwen(3), TrainOptions(learning_rate=0.1, weight_decay=0.5))
    before = {name: value.clone() for name, value in trainer.named_parameters()}
    trainer.train_step(token_batch(), NegativeLogLikelihood(factor=0.0))
    kinds = set()
    for name, value in trainer.named_parameters():
        kinds.add(value.ndim)
        torch.testing.assert_close(value, before[name] * (0.95 if value.ndim == 2 else 1.0))
    assert kinds == {1, 2}


@pytest.mark.parametrize("samples", [None, 2])
def test_the_l2_term_is_that_of_automatic_differentiation_on_matrices_only(samples: int | None) -> None:
    batch = token_batch()
    plain, without = step_gradient(double_trainer(), batch, NegativeLogLikelihood())
    trainer = double_trainer(l2=0.3, max_samples_per_microbatch=samples)
    model = qwen(3).double()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    term = 0.5 * 0.3 * sum(parameter.square().sum() for parameter in matrices)
    term.backward()
    gradient, metrics = step_gradient(trainer, batch, NegativeLogLikelihood())
    assert "loss/l2" not in without and metrics["loss/l2"] == pytest.approx(float(term.detach()), rel=1e-12)
    assert metrics["loss"] == pytest.approx(without["loss"] + metrics["loss/l2"], rel=1e-12)
    assert 0 < len(matrices) < len(plain)
    for name, parameter in model.named_parameters():
        expected = plain[name] if parameter.grad is None else plain[name] + parameter.grad
        torch.testing.assert_close(gradient[name], expected, atol=1e-12, rtol=1e-12)


def test_the_l2_term_is_clipped_with_the_rest_of_the_gradient() -> None:
    batch = token_batch()
    free, metrics = step_gradient(double_trainer(l2=5.0), batch, NegativeLogLikelihood())
    limited = FsdpTrainStrategy(qwen(3).double(), TrainOptions(l2=5.0, max_grad_norm=0.3))
    clipped, clipped_metrics = step_gradient(limited, batch, NegativeLogLikelihood())
    assert clipped_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"]) == pytest.approx(gradient_norm(free))
    assert gradient_norm(clipped) == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize("samples", [None, 1])
def test_the_schedule_advances_once_per_optimiser_step(samples: int | None) -> None:
    options = TrainOptions(
        learning_rate=1.0, lr_scheduler_type="cosine", total_steps=4, max_samples_per_microbatch=samples
    )
    trainer = FsdpTrainStrategy(qwen(3), options)
    rates = [trainer.train_step(token_batch(k), NegativeLogLikelihood())["learning_rate"] for k in range(4)]
    assert rates == pytest.approx([0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(4)])


def gradient_norm(gradient: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))


def test_the_gradient_norm_is_reported_before_clipping_and_0_switches_clipping_off() -> None:
    batch, loss = token_batch(), NegativeLogLikelihood(factor=50.0)
    free, metrics = step_gradient(double_trainer(), batch, loss)
    assert metrics["grad_norm"] == pytest.approx(gradient_norm(free)) and metrics["grad_norm"] > 10
    clipped, clipped_metrics = step_gradient(
        FsdpTrainStrategy(qwen(3).double(), TrainOptions(max_grad_norm=0.3)), batch, loss
    )
    assert gradient_norm(clipped) == pytest.approx(0.3, rel=1e-5)
    assert clipped_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"])
    for name, value in free.items():
        torch.testing.assert_close(clipped[name], value * 0.3 / metrics["grad_norm"], atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize(("bad", "limit"), [(math.nan, 1.0), (math.inf, 1.0), (math.nan, 0.0), (math.inf, 0.0)])
def test_a_gradient_that_is_not_finite_raises_and_changes_nothing(bad: float, limit: float) -> None:
    options = TrainOptions(learning_rate=1e-2, lr_scheduler_type="linear", total_steps=9, max_grad_norm=limit)
    hurt, healthy = FsdpTrainStrategy(qwen(3), options), FsdpTrainStrategy(qwen(3), options)
    for trainer in (hurt, healthy):
        trainer.train_step(token_batch(1), NegativeLogLikelihood())
    with pytest.raises(FloatingPointError, match=r"the step was not taken.*training_args\.learning_rate"):
        hurt.train_step(token_batch(2), NegativeLogLikelihood(factor=bad))
    assert_equal_state(hurt, healthy)
    after = [trainer.train_step(token_batch(3), NegativeLogLikelihood()) for trainer in (hurt, healthy)]
    assert after[0] == after[1]
    assert_equal_state(hurt, healthy)


def assert_equal_state(first: FsdpTrainStrategy, second: FsdpTrainStrategy) -> None:
    for (name, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    ours, theirs = first.optimizer.state_dict(), second.optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"] and ours["state"].keys() == theirs["state"].keys()
    for key, moments in ours["state"].items():
        assert all(torch.equal(moments[name], theirs["state"][key][name]) for name in moments)
    assert first.scheduler.state_dict() == second.scheduler.state_dict()


def test_mixed_precision_computes_in_bf16_and_moves_fp32_weights() -> None:
    batch = token_batch(rows=2, longest=8)
    full = FsdpTrainStrategy(qwen(3), TrainOptions(learning_rate=1e-3))
    mixed = FsdpTrainStrategy(qwen(3), TrainOptions(learning_rate=1e-3, mixed_precision=True))
    seen: list[torch.dtype] = []
    mixed.model.get_decoder().layers[0].mlp.down_proj.register_forward_hook(lambda *a: seen.append(a[2].dtype))
    ours, exact = mixed.compute_log_probs(batch), full.compute_log_probs(batch)
    assert not torch.equal(ours, exact)
    torch.testing.assert_close(ours, exact, atol=0.1, rtol=0)
    before = {name: value.clone() for name, value in mixed.named_parameters()}
    metrics = mixed.train_step(batch, NegativeLogLikelihood())
    assert metrics["loss"] == pytest.approx(full.train_step(batch, NegativeLogLikelihood())["loss"], abs=0.1)
    assert set(seen) == {torch.bfloat16}
    for name, value in mixed.named_parameters():
        assert value.dtype == torch.float32 and not torch.equal(value, before[name]), name


def resumable(seed: int = 3) -> FsdpTrainStrategy:
    """With dropout, so that the random state counts."""
    options = TrainOptions(learning_rate=1e-2, weight_decay=0.1, lr_scheduler_type="cosine", total_steps=8)
    return FsdpTrainStrategy(qwen(seed, attention_dropout=0.3), options)


def test_six_steps_equal_three_a_checkpoint_and_three_more(tmp_path: Path) -> None:
    batches = [token_batch(k) for k in range(6)]
    straight = resumable()
    torch.manual_seed(11)
    expected = [straight.train_step(batch, NegativeLogLikelihood()) for batch in batches]
    first = resumable()
    torch.manual_seed(11)
    taken = [first.train_step(batch, NegativeLogLikelihood()) for batch in batches[:3]]
    first.save_checkpoint(tmp_path / "step")
    second = resumable(seed=99)
    torch.manual_seed(5)
    second.load_checkpoint(tmp_path / "step")
    taken += [second.train_step(batch, NegativeLogLikelihood()) for batch in batches[3:]]
    assert taken == expected
    assert_equal_state(second, straight)


def test_a_folder_without_training_state_is_a_readable_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path.name} holds no {CHECKPOINT_FILE}; it is not a checkpoint"):
        resumable().load_checkpoint(tmp_path)


def test_the_saved_model_loads_with_transformers_to_equal_logits(tmp_path: Path) -> None:
    trainer = FsdpTrainStrategy(qwen(3), TrainOptions(learning_rate=1e-2))
    trainer.train_step(token_batch(), NegativeLogLikelihood())
    trainer.save_hf(tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    ids = token_batch(4)["input_ids"]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, trainer.model.eval()(ids).logits)


def test_parameters_stream_under_hugging_face_names_without_a_copy_or_a_gradient() -> None:
    model = qwen(3)
    trainer = FsdpTrainStrategy(model, TrainOptions())
    assert isinstance(trainer, TrainStrategy)
    streamed = dict(trainer.named_parameters())
    assert streamed.keys() == dict(model.named_parameters()).keys()
    assert "model.layers.0.self_attn.q_proj.weight" in streamed
    for name, parameter in model.named_parameters():
        assert streamed[name].data_ptr() == parameter.data_ptr() and not streamed[name].requires_grad


def test_log_probs_do_not_see_dropout() -> None:
    trainer, batch = resumable(), token_batch()
    trainer.train_step(batch, NegativeLogLikelihood())
    assert torch.equal(trainer.compute_log_probs(batch), trainer.compute_log_probs(batch))
