"""What training of reward models minimises: what plain loops, TRL and transformers say, however a batch is cut."""

import contextlib
import copy
import io
import json
import math

import pytest
import torch
from torch import nn
from transformers import AutoModelForTokenClassification

from roll.config import load
from roll.distributed.sharding import shard
from roll.models.critic import load_critic
from roll.models.finding import resolve_pretrain
from roll.models.reward_model import load_reward_model
from roll.pipelines.reward_model import loss_of
from roll.pipelines.sampling.preferences import read_preferences
from roll.pipelines.sampling.scored import encode_pair, pair_batch, read_steps, step_batch
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.values import value_head
from roll.workers.loading import load_text
from tests.strategies.training.batches import step_gradient

PAIRS = [
    ("1 + 2", "3", "it is 4", 0.0),
    ("12 + 30", "12 + 30 is 42.", "41", 0.7),
    ("5 + 5", "10, I think", "11", -0.2),
    ("100 + 1", "101", "110 or 100", 2.0),
]
COMPARED = [
    {
        "prompt": [{"role": "user", "content": f"{asked} = ?"}],
        "chosen": [{"role": "assistant", "content": better}],
        "rejected": [{"role": "assistant", "content": worse}],
        "margin": margin,
    }
    for asked, better, worse, margin in PAIRS
]
STEPS = [
    {"prompt": "1 + 2 = ?", "completions": ["1 and 2", "is 3"], "labels": [True, True]},
    {"prompt": "47 + 38 = ?", "completions": ["7+8=15", "4+3=7", "so 75"], "labels": [True, False, False]},
    {"prompt": "5 + 5 = ?", "completions": ["10"], "labels": [True]},
    {"prompt": "9 + 9 = ?", "completions": ["9+9=19", "19"], "labels": [False, False]},
]


def prepared(folder, rows, **keys):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load(
        {
            "pipeline": "reward_model",
            "pretrain": "toy_math",
            "actor_train": {"data_args": {"file_name": str(path)}},
            **keys,
        }
    )
    return config, load_text(config)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """A model with a head, a batch of pairs, and the loss with all of its terms."""
    config, text = prepared(tmp_path_factory.mktemp("pairs"), COMPARED, center_rewards_coefficient=0.05)
    table = read_preferences(config, text, config.actor_train.data_args, encode_pair)
    batch = pair_batch(table, range(len(table)), text.tokenizer.pad_token_id)
    return with_head(load_reward_model("toy_math")), batch, loss_of(config), text.tokenizer


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    config, text = prepared(tmp_path_factory.mktemp("steps"), STEPS, supervision="process")
    table = read_steps(config, text, config.actor_train.data_args)
    batch = step_batch(table, range(len(table)), text.tokenizer.pad_token_id)
    return with_head(load_critic("toy_math")), batch, loss_of(config), text.tokenizer


def with_head(model):
    """Return a model in double precision whose head says something."""
    model = model.double()
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in value_head(model).parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=noise))
    return model


def step(model, batch, loss, **options):
    trainer = FsdpTrainStrategy(model, TrainOptions(max_grad_norm=0, **options), predicts="values")
    return step_gradient(trainer, batch, loss)


@torch.no_grad()
def plain_scores(model, batch) -> list[list[float]]:
    """Scores of each row by itself, at the tokens before those of the mask."""
    head, found = value_head(model), []
    for row in range(len(batch)):
        places = [t - 1 for t in range(batch["input_ids"].shape[1]) if batch["response_mask"][row, t]]
        hidden = model.base_model(batch["input_ids"][row, : places[-1] + 1][None]).last_hidden_state[0]
        found.append([float(head(hidden[place])) for place in places])
    return found


def test_the_loss_of_pairs_is_a_plain_loop(outcome) -> None:
    model, batch, loss, _ = outcome
    scores = [one for (one,) in plain_scores(model, batch)]
    pairs = list(zip(scores[0::2], scores[1::2], [margin for *_, margin in PAIRS], strict=True))

    _, told = step(model, batch, loss)

    compared = sum(math.log1p(math.exp(-(c - r - m))) for c, r, m in pairs) / len(pairs)
    centered = sum((c + r) ** 2 for c, r, _ in pairs) / len(pairs)
    assert told["loss"] == pytest.approx(compared + 0.05 * centered, rel=1e-9)
    assert told["center"] == pytest.approx(centered, rel=1e-9)
    assert told["accuracy"] == sum(c > r for c, r, _ in pairs) / len(pairs)
    assert told["margin"] == pytest.approx(sum(c - r for c, r, _ in pairs) / len(pairs), rel=1e-9)
    assert told["rewards/rejected"] == pytest.approx(sum(scores[1::2]) / len(pairs), rel=1e-9)


def test_the_loss_of_steps_is_a_plain_loop(process) -> None:
    model, batch, loss, _ = process
    labels = [label for row in STEPS for label in row["labels"]]
    shares = [1 / (1 + math.exp(-logit)) for row in plain_scores(model, batch) for logit in row]
    assert len(shares) == len(labels)

    _, told = step(model, batch, loss)

    losses = [-math.log(p if label else 1 - p) for p, label in zip(shares, labels, strict=True)]
    assert told["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-9)
    said = [(p > 0.5, label) for p, label in zip(shares, labels, strict=True)]
    assert told["accuracy"] == pytest.approx(sum(a == b for a, b in said) / len(said))
    assert told["accuracy/right"] == pytest.approx(sum(a for a, b in said if b) / sum(labels))
    assert told["accuracy/wrong"] == pytest.approx(sum(not a for a, b in said if not b) / (len(said) - sum(labels)))
    assert told["rewards/mean"] == pytest.approx(sum(shares) / len(shares), rel=1e-9)


def test_labels_may_be_probabilities(tmp_path) -> None:
    config, text = prepared(tmp_path, [{**STEPS[1], "labels": [1, 0.25, 0]}], supervision="process")
    batch = step_batch(read_steps(config, text, config.actor_train.data_args), [0], 0)
    model = with_head(load_critic("toy_math"))
    (logits,) = plain_scores(model, batch)

    _, told = step(model, batch, loss_of(config))

    shares = [1 / (1 + math.exp(-logit)) for logit in logits]
    pairs = zip(shares, [1, 0.25, 0], strict=True)
    assert told["loss"] == pytest.approx(sum(-y * math.log(p) - (1 - y) * math.log(1 - p) for p, y in pairs) / 3)


@pytest.mark.long
@pytest.mark.parametrize("supervision", ["outcome", "process"])
def test_packing_micro_batches_and_shares_of_ranks_change_nothing(request, supervision: str) -> None:
    model, batch, loss, _ = request.getfixturevalue(supervision)
    whole, told = step(model, batch, loss)

    def same(gradient, metrics) -> None:
        assert metrics == {name: pytest.approx(value, rel=1e-9, abs=1e-12) for name, value in told.items()}
        for name, expected in whole.items():
            torch.testing.assert_close(gradient[name], expected, rtol=1e-9, atol=1e-9)

    same(*step(model, batch, loss, use_sequence_packing=True, max_tokens_per_microbatch=70))
    one = {"max_tokens_per_microbatch": None, "max_samples_per_microbatch": 1}
    same(*step(model, batch[torch.randperm(len(batch))], loss, **one))
    totals, parts = loss.totals(batch), shard(batch, batch["lengths"], 2)
    trainer = FsdpTrainStrategy(model, TrainOptions(max_grad_norm=0), predicts="values")
    train_step, summed = trainer.train_step, dict.fromkeys(whole, 0.0)
    for part in parts:
        trainer.train_step = lambda rows, what: train_step(rows, what, totals)
        for name, gradient in step_gradient(trainer, part.batch, loss)[0].items():
            summed[name] = summed[name] + gradient
    for name, expected in whole.items():
        torch.testing.assert_close(summed[name], expected, rtol=1e-9, atol=1e-9)


def test_the_token_behind_a_text_changes_nothing(outcome) -> None:
    model, batch, loss, _ = outcome
    whole, told = step(model, batch, loss)
    other = batch.clone()
    rows = torch.arange(len(other))
    other["input_ids"][rows, other["lengths"] - 1] = 7

    gradient, metrics = step(model, other, loss)

    assert metrics == told and all(torch.equal(gradient[name], whole[name]) for name in whole)


@pytest.mark.long
def test_the_loss_of_pairs_is_that_of_trl(outcome, tmp_path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    model, batch, loss, tokenizer = outcome
    arguments = trl.RewardConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=len(COMPARED),
        center_rewards_coefficient=0.05,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        max_length=None,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        peer = trl.RewardTrainer(
            model=copy.deepcopy(model),
            args=arguments,
            train_dataset=Dataset.from_list(COMPARED),
            processing_class=tokenizer,
        )
    peer.model.double()
    inputs = peer.data_collator([peer.train_dataset[number] for number in range(len(peer.train_dataset))])
    for row, own in enumerate([*range(0, 8, 2), *range(1, 8, 2)]):
        length = int(batch["lengths"][own]) - 1
        assert inputs["attention_mask"][row].sum() == length
        assert inputs["input_ids"][row, :length].tolist() == batch["input_ids"][own, :length].tolist()
    expected = peer.compute_loss(peer.model, inputs)
    expected.backward()
    theirs = {name: parameter.grad for name, parameter in peer.model.named_parameters() if parameter.grad is not None}

    gradients, metrics = step(model, batch, loss)

    assert metrics["loss"] == pytest.approx(float(expected.detach()), rel=1e-6)
    assert theirs.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-6, atol=1e-6)


def test_the_loss_of_steps_is_that_of_a_token_classifier_with_two_classes(process) -> None:
    # TRL trained such a classifier (PRMTrainer) with the loss of transformers, at the last token of each separator.
    model, batch, loss, _ = process
    peer = AutoModelForTokenClassification.from_pretrained(resolve_pretrain("toy_math"), num_labels=2).double().eval()
    head = value_head(model)
    with torch.no_grad():
        peer.score = nn.Linear(head.in_features, 2, dtype=torch.float64)
        peer.score.weight.copy_(torch.cat([torch.zeros_like(head.weight), head.weight]))
        peer.score.bias.copy_(torch.cat([torch.zeros_like(head.bias), head.bias]))
    labels = torch.full_like(batch["input_ids"], -100)
    mask = batch["response_mask"]
    labels[:, :-1][mask[:, 1:]] = batch["step_labels"][mask].long()
    inside = torch.arange(mask.shape[1]) < batch["lengths"].unsqueeze(1)
    expected = peer(input_ids=batch["input_ids"], attention_mask=inside.long(), labels=labels).loss
    expected.backward()

    gradients, metrics = step(model, batch, loss)

    assert metrics["loss"] == pytest.approx(float(expected.detach()), rel=1e-6)
    for name, parameter in peer.named_parameters():
        theirs = parameter.grad[1:] if name.startswith("score") else parameter.grad
        torch.testing.assert_close(gradients[name], theirs, rtol=1e-6, atol=1e-6)
