"""What supervised fine-tuning minimises: what a plain loop and TRL say, however a batch is cut or packed."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from roll.config import load
from roll.data.supervised import load_demonstrations
from roll.models.loading import load_model
from roll.pipelines.sampling.demonstrations import encode, rows_batch
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.supervised import SupervisedLoss
from roll.workers.loading import load_text
from tests.strategies.training.batches import step_gradient

SUMS = (("1 + 2", "3"), ("12 + 30", "12 + 30 is 42."), ("5 + 5", "10, I think"), ("100 + 1", "101"))
ROWS = [
    {"prompt": [{"role": "user", "content": f"{sum_} = ?"}], "completion": [{"role": "assistant", "content": answer}]}
    for sum_, answer in SUMS
]


def model() -> torch.nn.Module:
    return load_model("toy_math", dtype="fp32", device="cpu", attn_implementation="sdpa").double()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = load({"pipeline": "sft", "pretrain": "toy_math", "actor_train": {"data_args": {"file_name": str(path)}}})
    text = load_text(config)
    data = config.actor_train.data_args
    table = load_demonstrations(data, config, config.sequence_length, partial(encode, text))
    return text.tokenizer, rows_batch(table, range(len(table)), text.tokenizer.pad_token_id)


def step(batch, **options):
    strategy = FsdpTrainStrategy(model(), TrainOptions(max_grad_norm=0, **options))
    return step_gradient(strategy, batch, SupervisedLoss())


@pytest.mark.long
def test_loss_and_gradients_are_those_of_trl(prepared, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    tokenizer, batch = prepared
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=len(ROWS),
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=None,
        completion_only_loss=True,
        disable_tqdm=True,
    )
    peer = trl.SFTTrainer(
        model=model(), args=arguments, train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer
    )
    inputs = peer.data_collator([peer.train_dataset[number] for number in range(len(ROWS))])
    labels = inputs["labels"]
    for row, (ids, mask) in enumerate(zip(batch["input_ids"], batch["response_mask"], strict=True)):
        length = int(batch["lengths"][row])
        assert inputs["input_ids"][row][:length].tolist() == ids[:length].tolist()
        # TRL also imitates the line end behind the token that ends a turn, which nobody samples.
        kept = torch.nn.functional.pad(mask, (0, labels.shape[1] - len(mask)))[: labels.shape[1]]
        assert set((labels[row] != -100).nonzero().flatten().tolist()) >= set(kept.nonzero().flatten().tolist())
        labels[row][~kept] = -100
    loss = peer.compute_loss(peer.model, inputs)
    loss.backward()

    gradients, metrics = step(batch)

    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-6)
    theirs = {name: parameter.grad for name, parameter in peer.model.named_parameters() if parameter.grad is not None}
    assert theirs.keys() == gradients.keys()
    for name, gradient in gradients.items():
        # transformers rounds logits to single precision before its loss, whatever the model computes in.
        torch.testing.assert_close(gradient, theirs[name].to(gradient), rtol=1e-6, atol=5e-6)


def test_the_loss_is_that_of_a_plain_loop(prepared) -> None:
    _, batch = prepared
    policy, total, count = model(), 0.0, 0
    for row in range(len(batch)):
        ids = batch["input_ids"][row, : int(batch["lengths"][row])]
        with torch.no_grad():
            logits = policy(input_ids=ids[None]).logits[0]
        for place in range(1, len(ids)):
            if batch["response_mask"][row, place]:
                total -= float(torch.log_softmax(logits[place - 1], -1)[ids[place]])
                count += 1

    _, metrics = step(batch)

    assert metrics["loss"] == pytest.approx(total / count, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"use_sequence_packing": True},
        {"max_tokens_per_microbatch": None, "max_samples_per_microbatch": 1},
        {"use_sequence_packing": True, "max_tokens_per_microbatch": 64},
    ],
)
def test_packing_and_micro_batches_change_nothing(prepared, options: dict) -> None:
    _, batch = prepared

    (whole, told), (other, again) = step(batch), step(batch, **options)

    assert again["loss"] == pytest.approx(told["loss"], rel=1e-9)
    for name, gradient in whole.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-9, atol=1e-9)
