"""LoRA adapters: what is trained, what is exported, and that peft agrees."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForTokenClassification

from roll.models.lora import add_adapters
from roll.pipelines.learning.objective import PolicyObjective
from roll.pipelines.learning.value_objective import ValueObjective
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.adapters import is_adapter, merged_named_parameters
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from tests.strategies.generation.hf_infer.hf_infer_support import SIZES, qwen
from tests.strategies.training.batches import NegativeLogLikelihood, policy_batch, token_batch

RANK, ALPHA = 3, 5.0
OPTIONS = TrainOptions(learning_rate=2e-2, weight_decay=0.1, epsilon=1e-4, max_grad_norm=0.5)


def lora_trainer(seed: int = 3, target: list[str] | None = None, options: TrainOptions = OPTIONS) -> FsdpTrainStrategy:
    return FsdpTrainStrategy(add_adapters(qwen(seed).double(), RANK, ALPHA, target), options)


def trained(steps: int = 3, **changes) -> FsdpTrainStrategy:
    trainer = lora_trainer(**changes)
    for step in range(steps):
        trainer.train_step(token_batch(step), NegativeLogLikelihood())
    return trainer


def whole_log_probs(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.log_softmax(-1)


@pytest.mark.long
def test_three_steps_equal_a_loop_that_writes_the_product_out() -> None:
    """Against a model without peft whose weights are ``W + alpha / rank * B A``, by automatic differentiation."""
    trainer, plain = lora_trainer(), qwen(3).double()
    base = {name: value.detach() for name, value in plain.named_parameters()}
    factors = {
        name: value.detach().clone().requires_grad_()
        for name, value in trainer.model.named_parameters()
        if is_adapter(name)
    }
    optimizer = torch.optim.AdamW(factors.values(), lr=2e-2, weight_decay=0.1, eps=1e-4)
    for step in range(3):
        batch = token_batch(step)
        weights = dict(base)
        for name in factors:
            if ".lora_A." in name:
                a, b = factors[name], factors[name.replace("lora_A", "lora_B")]
                layer = name.split(".lora_A.")[0] + ".weight"
                weights[layer] = base[layer] + ALPHA / RANK * b @ a
        logits = torch.func.functional_call(plain, weights, (batch["input_ids"],), {"use_cache": False}).logits
        every, mask = logits[:, :-1].log_softmax(-1), batch["response_mask"][:, 1:]
        loss = -every.gather(-1, batch["input_ids"][:, 1:, None])[..., 0][mask].mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(factors.values(), 0.5)
        metrics = trainer.train_step(batch, NegativeLogLikelihood())
        assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-7)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-6) and float(norm) > 0.5
        optimizer.step()
        optimizer.zero_grad()
    ours = dict(trainer.model.named_parameters())
    assert len(factors) == 2 * 2 * 7, "two factors of seven matrices in two layers"
    for name, value in factors.items():
        torch.testing.assert_close(ours[name].detach(), value.detach(), atol=1e-7, rtol=1e-7)
        assert value.abs().max() > 1e-3


def test_only_adapters_change() -> None:
    before, trainer = dict(qwen(3).double().named_parameters()), trained()
    for name, value in trainer.model.named_parameters():
        if not is_adapter(name):
            assert torch.equal(value, before[name.replace(".base_layer", "")]) and not value.requires_grad
    assert {id(p) for group in trainer.optimizer.param_groups for p in group["params"]} == {
        id(p) for name, p in trainer.model.named_parameters() if is_adapter(name)
    }


def test_streamed_weights_equal_the_merge_of_peft_and_leave_training_weights_alone() -> None:
    trainer = trained()
    before = copy.deepcopy(trainer.model.state_dict())
    ours = dict(trainer.named_parameters())
    after = trainer.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert ours.keys() == dict(qwen(3).named_parameters()).keys()
    wrapped = copy.deepcopy(trainer.model)
    for module in wrapped.modules():
        if hasattr(module, "merge"):
            module.merge()
    for name, value in wrapped.named_parameters():
        if not is_adapter(name):
            assert torch.equal(ours[name.replace(".base_layer", "")], value), name


def test_the_merged_model_computes_what_the_adapted_one_does() -> None:
    trainer, plain, ids = trained(), qwen(9).double(), token_batch()["input_ids"]
    plain.load_state_dict(dict(trainer.named_parameters()), strict=False)
    adapted = whole_log_probs(trainer.model.eval(), ids)
    torch.testing.assert_close(whole_log_probs(plain, ids), adapted, atol=1e-6, rtol=0)
    assert (adapted - whole_log_probs(qwen(3).double(), ids)).abs().max() > 0.1


def test_without_adapters_the_policy_is_its_own_reference() -> None:
    trainer, batch = trained(), token_batch(7)
    expected = FsdpTrainStrategy(qwen(3).double(), OPTIONS).compute_log_probs(batch)
    own = trainer.compute_log_probs(batch)
    with trainer.adapters_disabled():
        torch.testing.assert_close(trainer.compute_log_probs(batch), expected, atol=1e-6, rtol=0)
    assert torch.equal(trainer.compute_log_probs(batch), own) and (own - expected).abs().max() > 0.05


def test_saved_adapters_are_read_by_peft(tmp_path: Path) -> None:
    trainer, ids = trained(target=["q_proj", "down_proj"]), token_batch()["input_ids"]
    trainer.save_adapters(tmp_path)
    loaded = PeftModel.from_pretrained(qwen(3).double(), tmp_path).eval()
    assert loaded.peft_config["default"].r == RANK
    assert torch.equal(whole_log_probs(loaded, ids), whole_log_probs(trainer.model.eval(), ids))


def test_the_saved_model_is_merged_and_needs_no_peft(tmp_path: Path) -> None:
    trainer = trained()
    trainer.save_hf(tmp_path)
    assert not (tmp_path / "adapter_config.json").exists()
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for name, value in trainer.named_parameters():
        assert torch.equal(loaded.get_parameter(name), value), name


def test_six_steps_equal_three_a_checkpoint_and_three_more(tmp_path: Path) -> None:
    straight = trained(6)
    trained(3).save_checkpoint(tmp_path)
    resumed = trained(1, seed=99)
    resumed.load_checkpoint(tmp_path)
    for step in range(3, 6):
        resumed.train_step(token_batch(step), NegativeLogLikelihood())
    for (name, ours), (_, expected) in zip(
        resumed.model.named_parameters(), straight.model.named_parameters(), strict=True
    ):
        assert torch.equal(ours, expected), name


def test_packing_and_recomputing_change_nothing() -> None:
    batch = policy_batch(lora_trainer())
    other = TrainOptions(
        learning_rate=2e-2,
        weight_decay=0.1,
        epsilon=1e-4,
        max_grad_norm=0.5,
        use_sequence_packing=True,
        gradient_checkpointing=True,
        max_tokens_per_microbatch=30,
    )
    first, second = lora_trainer(), lora_trainer(options=other)
    for _ in range(2):
        plain, packed = (one.train_step(batch, PolicyObjective()) for one in (first, second))
    assert packed["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    for (name, ours), (_, expected) in zip(second.named_parameters(), first.named_parameters(), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-6, msg=name)


def critic() -> PreTrainedModel:
    torch.manual_seed(3)
    return Qwen3ForTokenClassification(Qwen3Config(**SIZES, num_labels=1, classifier_dropout=0.0)).double()


def test_a_critic_trains_adapters_and_its_head_and_peft_reads_both(tmp_path: Path) -> None:
    trainer = FsdpTrainStrategy(add_adapters(critic(), RANK), OPTIONS, predicts="values")
    batch = token_batch()
    batch["values"] = torch.zeros(batch["input_ids"].shape, dtype=torch.float64)
    batch["returns"] = torch.ones(batch["input_ids"].shape, dtype=torch.float64)
    for _ in range(2):
        trainer.train_step(batch, ValueObjective())
    assert not torch.equal(trainer.model.score.weight, critic().score.weight)
    assert not hasattr(trainer.model.score, "lora_A")
    trainer.save_adapters(tmp_path)
    loaded = PeftModel.from_pretrained(critic(), tmp_path).eval()
    with torch.no_grad():
        ours, theirs = (m(batch["input_ids"], use_cache=False).logits for m in (trainer.model.eval(), loaded))
    torch.testing.assert_close(theirs, ours, atol=1e-12, rtol=0)


def test_the_same_seed_draws_the_same_adapters_and_leaves_the_generator_alone() -> None:
    first, second = qwen(3), qwen(3)
    torch.manual_seed(1)
    add_adapters(first, RANK)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)
    add_adapters(second, RANK)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    initial = dict(qwen(3).named_parameters())
    assert all(torch.equal(value, initial[name]) for name, value in merged_named_parameters(first))


def test_a_target_that_is_not_there_names_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"'q_prj' is no linear layer of Qwen3ForCausalLM; did you mean q_proj\?"):
        add_adapters(qwen(), RANK, target=["q_prj"])
    with pytest.raises(ValueError, match="'lm_head' is no linear layer"):
        add_adapters(qwen(), RANK, target="lm_head")


def test_adapters_are_added_once_and_asked_for_before_they_are_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has LoRA adapters already"):
        add_adapters(add_adapters(qwen(), RANK), RANK)
    with pytest.raises(ValueError, match=r"no LoRA adapters\. Set model_args\.lora_rank"):
        FsdpTrainStrategy(qwen(), OPTIONS).save_adapters(tmp_path)


def test_without_peft_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'roll-rl\[lora\]'"):
        add_adapters(qwen(), RANK)
