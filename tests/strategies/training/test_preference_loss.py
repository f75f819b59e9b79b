"""What learning from preferences minimises: what plain loops and TRL say, however a batch is cut or packed."""

import contextlib
import copy
import io
import json
import math
from types import SimpleNamespace

import pytest
import torch

from roll.config import load
from roll.distributed.sharding import shard
from roll.models.loading import load_model
from roll.pipelines.dpo import loss_of
from roll.pipelines.sampling.preferences import mismatched_batch, preference_batch, read_preferences
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.preference import answer_sums
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.workers.loading import load_text
from tests.strategies.training.batches import step_gradient

PAIRS = [
    ("1 + 2", "3", "it is 4"),
    ("12 + 30", "12 + 30 is 42.", "41"),
    ("5 + 5", "10, I think", "11"),
    ("100 + 1", "101", "110 or 100"),
]
ROWS = [
    {
        "prompt": [{"role": "user", "content": f"{asked} = ?"}],
        "chosen": [{"role": "assistant", "content": better}],
        "rejected": [{"role": "assistant", "content": worse}],
    }
    for asked, better, worse in PAIRS
]
KINDS = ("sigmoid", "sigmoid_norm", "robust", "ipo", "simpo", "orpo", "kto")


def model() -> torch.nn.Module:
    return load_model("toy_math", dtype="fp32", device="cpu", attn_implementation="sdpa").double()


@pytest.fixture(scope="module")
def policy_and_reference():
    """A policy that has moved away from its reference."""
    reference, policy = model(), model()
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype))
    return policy, reference


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, policy_and_reference):
    """Batches of pairs and of judged answers, with what the loss reads of the reference."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def batch(kind: str):
        keys = {
            "pipeline": "dpo",
            "pretrain": "toy_math",
            "loss_type": kind,
            **({"label_smoothing": 0.1} if kind == "robust" else {}),
            "actor_train": {
                "data_args": {"file_name": str(path)},
                "training_args": {"per_device_train_batch_size": 8},
            },
        }
        config = load(keys)
        text = load_text(config)
        table = read_preferences(config, text, config.actor_train.data_args)
        rows, padding = list(range(len(table))), text.tokenizer.pad_token_id
        made = preference_batch(table, rows, padding)
        policy, reference = policy_and_reference
        trainers = [FsdpTrainStrategy(one, TrainOptions()) for one in (policy, reference)]
        made["ref_sums"] = doubles(trainers[1], made)
        if kind == "kto":
            unrelated = mismatched_batch(table, rows, padding, 2048)
            divergence = (doubles(trainers[0], unrelated) - doubles(trainers[1], unrelated)).mean().clamp_min(0)
            made["kl_estimate"] = divergence.repeat(len(made))
            return text.tokenizer, made, loss_of(config), unrelated
        return text.tokenizer, made, loss_of(config), None

    return {kind: batch(kind) for kind in KINDS}


def doubles(trainer, batch) -> torch.Tensor:
    """Return sums of log-probs; the scorer itself rounds to single precision."""
    with torch.no_grad():
        found = torch.zeros(len(batch), dtype=torch.float64)
        for rows, micro, _ in trainer._scorer.passes(batch, scoring=True):
            found[rows] = answer_sums(trainer._scorer.forward(micro, with_entropy=False)[0], micro)
    return found


def step(policy, batch, loss, **options):
    return step_gradient(FsdpTrainStrategy(policy, TrainOptions(max_grad_norm=0, **options)), batch, loss)


def plain_sums(model, batch) -> list[float]:
    """Sums of log-probs by a plain loop over rows and tokens."""
    sums = []
    for row in range(len(batch)):
        ids = batch["input_ids"][row, : int(batch["lengths"][row])]
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0]
        places = [t for t in range(1, len(ids)) if batch["response_mask"][row, t]]
        sums.append(sum(float(torch.log_softmax(logits[t - 1], -1)[ids[t]]) for t in places))
    return sums


def test_dpo_is_a_plain_loop_over_pairs(prepared, policy_and_reference) -> None:
    _, batch, loss, _ = prepared["sigmoid"]
    policy, reference = (plain_sums(one, batch) for one in policy_and_reference)
    ratios = [a - b for a, b in zip(policy, reference, strict=True)]
    margins = [ratios[2 * pair] - ratios[2 * pair + 1] for pair in range(len(PAIRS))]

    _, metrics = step(policy_and_reference[0], batch, loss)

    expected = sum(math.log1p(math.exp(-0.1 * h)) for h in margins) / len(PAIRS)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-9)
    assert metrics["rewards/accuracies"] == sum(h > 0 for h in margins) / len(PAIRS)
    assert metrics["rewards/margins"] == pytest.approx(0.1 * sum(margins) / len(PAIRS), rel=1e-9)
    assert metrics["logps/rejected"] == pytest.approx(sum(policy[1::2]) / len(PAIRS), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_packing_micro_batches_and_shares_of_ranks_change_nothing(prepared, policy_and_reference, kind: str) -> None:
    _, batch, loss, _ = prepared[kind]
    whole, told = step(policy_and_reference[0], batch, loss)

    def same(gradient, metrics) -> None:
        assert metrics == {name: pytest.approx(value, rel=1e-9, abs=1e-12) for name, value in told.items()}
        for name, expected in whole.items():
            torch.testing.assert_close(gradient[name], expected, rtol=1e-9, atol=1e-9)

    same(*step(policy_and_reference[0], batch, loss, use_sequence_packing=True, max_tokens_per_microbatch=70))
    one = {"max_tokens_per_microbatch": None, "max_samples_per_microbatch": 1}
    same(*step(policy_and_reference[0], batch[torch.randperm(len(batch))], loss, **one))
    # Two ranks: the sum of the gradients of their rows.
    totals, parts = loss.totals(batch), shard(batch, batch["lengths"], 2)
    trainer = FsdpTrainStrategy(policy_and_reference[0], TrainOptions(max_grad_norm=0))
    train_step, summed = trainer.train_step, dict.fromkeys(whole, 0.0)
    for part in parts:
        trainer.train_step = lambda rows, what: train_step(rows, what, totals)
        for name, gradient in step_gradient(trainer, part.batch, loss)[0].items():
            summed[name] = summed[name] + gradient
    for name, expected in whole.items():
        torch.testing.assert_close(summed[name], expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, prepared, policy_and_reference):
    """Trainers of TRL, each with copies of the policy and the reference, whose forward passes it replaces."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    tokenizer = prepared["sigmoid"][0]
    judged = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in ROWS
        for side in ("chosen", "rejected")
    ]

    def make(trainer, config, rows, reference=True, **options):
        arguments = config(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            per_device_train_batch_size=len(rows),
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_length=None,
            disable_tqdm=True,
            **options,
        )
        policy, ref = map(copy.deepcopy, policy_and_reference)
        models = {"model": policy, **({"ref_model": ref} if reference else {})}
        with contextlib.redirect_stdout(io.StringIO()):
            return trainer(args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **models)

    return {
        "dpo": make(trl.DPOTrainer, trl.DPOConfig, ROWS),
        "kto": make(trl.KTOTrainer, trl.KTOConfig, judged),
        "cpo": make(CPOTrainer, CPOConfig, ROWS, False, loss_type="simpo", cpo_alpha=0.0, beta=2.0, simpo_gamma=0.5),
    }


def collated(peer):
    return peer.data_collator([peer.train_dataset[number] for number in range(len(peer.train_dataset))])


def leave_out_line_ends(ids, mask, batch, order, nothing=0) -> None:
    """Leave out of TRL's completions the line end behind the token that ends a turn, which nobody samples."""
    for row, own in enumerate(order):
        length = int(batch["lengths"][own])
        assert ids[row][:length].tolist() == batch["input_ids"][own, :length].tolist()
        kept = torch.zeros(mask.shape[1], dtype=torch.bool)
        kept[:length] = batch["response_mask"][own, :length]
        assert (mask[row][kept] != nothing).all()
        mask[row][~kept] = nothing


CHOSEN_THEN_REJECTED = [*range(0, 8, 2), *range(1, 8, 2)]


def equal_to(peer, inputs, policy, batch, loss) -> None:
    peer.model.zero_grad()
    expected = peer.compute_loss(peer.model, inputs)
    expected.backward()
    theirs = {name: parameter.grad for name, parameter in peer.model.named_parameters() if parameter.grad is not None}

    gradients, metrics = step(policy, batch, loss)

    assert metrics["loss"] == pytest.approx(float(expected), rel=1e-6)
    assert theirs.keys() == gradients.keys()
    # TRL rounds log-probs to single precision, whatever the model computes in.
    apart = sum(float((gradient - theirs[name]).square().sum()) for name, gradient in gradients.items())
    assert apart <= 1e-12 * sum(float(gradient.square().sum()) for gradient in gradients.values())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sigmoid", "sigmoid_norm", "robust", "ipo"])
def test_losses_over_pairs_are_those_of_trl(prepared, policy_and_reference, peers, kind: str) -> None:
    (_, batch, loss, _), peer = prepared[kind], peers["dpo"]
    inputs = collated(peer)
    leave_out_line_ends(inputs["input_ids"], inputs["completion_mask"], batch, CHOSEN_THEN_REJECTED)
    peer.loss_types, peer.label_smoothing, peer.beta = [kind], loss.label_smoothing, loss.beta

    equal_to(peer, inputs, policy_and_reference[0], batch, loss)


@pytest.mark.long
def test_kto_is_that_of_trl(prepared, policy_and_reference, peers) -> None:
    (_, batch, loss, unrelated), peer = prepared["kto"], peers["kto"]
    inputs = collated(peer)
    leave_out_line_ends(inputs["input_ids"], inputs["completion_mask"], batch, range(8))
    # Theirs begins with the last answer behind the first question, ours ends with it.
    order = [7, *range(7)]
    leave_out_line_ends(inputs["KL_input_ids"], inputs["KL_completion_mask"], unrelated, order)

    equal_to(peer, inputs, policy_and_reference[0], batch, loss)


@pytest.mark.long
def test_simpo_is_that_of_trl(prepared, policy_and_reference, peers) -> None:
    (_, batch, loss, _), peer = prepared["simpo"], peers["cpo"]
    inputs = collated(peer)
    for side, order in (("chosen", range(0, 8, 2)), ("rejected", range(1, 8, 2))):
        ids, labels = inputs[f"{side}_input_ids"], inputs[f"{side}_labels"]
        leave_out_line_ends(ids, labels, batch, order, nothing=-100)

    equal_to(peer, inputs, policy_and_reference[0], batch, loss)


def test_the_term_of_orpo_that_compares_is_that_of_trl(prepared) -> None:
    pytest.importorskip("trl")
    from trl.experimental.orpo import ORPOTrainer

    from roll.algorithms.losses import orpo

    peer = SimpleNamespace(beta=0.1, accelerator=SimpleNamespace(device="cpu"))
    chosen, rejected = torch.rand(2, 6).mul(-4).requires_grad_().unbind()
    expected = -ORPOTrainer.odds_ratio_loss(peer, chosen, rejected)[0].mean()
    theirs = torch.autograd.grad(expected, (chosen, rejected), retain_graph=True)

    found = 0.1 * orpo(chosen, rejected).mean()

    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for ours, other in zip(torch.autograd.grad(found, (chosen, rejected)), theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
