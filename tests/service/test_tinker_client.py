"""Training as a service, with the public client of its protocol over HTTP; numbers are held against peft and torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinker
import torch
from peft import PeftModel
from tinker import types
from training_server import KEY, base, client, serving

from roll.models.loading import load_model, load_tokenizer
from roll.service.clients import ENGINES, Clients

TEXT = "What is 2 + 3? 5"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(Clients(base(), tmp_path_factory.mktemp("weights"))) as address:
        yield address


@pytest.fixture(scope="module")
def service(address: str) -> tinker.ServiceClient:
    return client(address)


def datum(text: str = TEXT, **inputs: list[float]) -> types.Datum:
    ids = load_tokenizer("toy_math")(text)["input_ids"]
    given = inputs or {"weights": [1.0] * (len(ids) - 1)}
    return types.Datum(types.ModelInput.from_ints(ids[:-1]), {"target_tokens": ids[1:], **given})


def logprobs_of(model: torch.nn.Module, text: str = TEXT) -> torch.Tensor:
    ids = torch.tensor([load_tokenizer("toy_math")(text)["input_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1]).logits.float()
    return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[0, :, 0]


def test_the_python_of_the_page_runs_as_it_stands(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "training_service.md"
    (text,) = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert "http://127.0.0.1:8000" in text and "tml-…" in text
    names: dict[str, tinker.ServiceClient] = {}
    exec(text.replace("http://127.0.0.1:8000", address).replace("tml-…", KEY), names)  # our own documentation
    names["service"].close("success").result()
    losses = [float(line) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 30 and losses[-1] < losses[0] / 4


def test_what_the_server_has(service: tinker.ServiceClient) -> None:
    (model,) = service.get_server_capabilities().supported_models
    assert (model.model_name, model.max_context_length) == ("toy_math", 512)


@pytest.mark.long
def test_it_learns_what_it_is_shown_and_samples_it(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model="toy_math", rank=4, seed=1).result()
    assert training.get_tokenizer().encode("a") == load_tokenizer("toy_math").encode("a")
    losses = []
    for _ in range(30):
        learned = training.forward_backward([datum(), datum("2 + 2 = 4")], "cross_entropy")
        stepped = training.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(learned.result().metrics["loss:sum"])
        assert stepped.result().metrics["grad_norm"] > 0
    expected = -(logprobs_of(load_model("toy_math")).sum() + logprobs_of(load_model("toy_math"), "2 + 2 = 4").sum())
    assert losses[0] == pytest.approx(float(expected), rel=1e-4) and losses[-1] < losses[0] / 4
    sampling = training.save_weights_and_get_sampling_client().result()
    prompt = types.ModelInput.from_ints(load_tokenizer("toy_math")("What is 2 + 3?")["input_ids"])
    drawn = types.SamplingParams(max_tokens=2, temperature=0.0, seed=1)
    answer = sampling.sample(prompt=prompt, num_samples=2, sampling_params=drawn).result()
    assert [load_tokenizer("toy_math").decode(each.tokens) for each in answer.sequences] == [" 5", " 5"]
    assert answer.sequences[0].logprobs[0] > -1.0


@pytest.mark.exhaustive
def test_samplers_of_many_steps_have_few_engines_and_answer_as_before(tmp_path: Path) -> None:
    prompt = types.ModelInput.from_ints(load_tokenizer("toy_math")("What is 2 + 3?")["input_ids"])
    drawn = types.SamplingParams(max_tokens=4, temperature=1.0, seed=1)

    def answers(of: list[tinker.SamplingClient]) -> list[list[int]]:
        asked = [each.sample(prompt=prompt, num_samples=1, sampling_params=drawn) for each in of]
        return [each.result().sequences[0].tokens for each in asked]

    clients = Clients(base(), tmp_path)
    with serving(clients) as address:
        session = client(address)
        training = session.create_lora_training_client(base_model="toy_math", rank=4, seed=1).result()
        saved = [client(address).create_sampling_client(base_model="toy_math").result()]
        before = answers(saved)
        for _ in range(2 * ENGINES):
            training.forward_backward([datum()], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
            saved.append(training.save_weights_and_get_sampling_client().result())
            before += answers(saved[-1:])
            assert len(clients.engines) <= ENGINES
        assert len({tuple(each) for each in before}) > 2
        assert [answers([each])[0] for each in saved] == before and len(clients.engines) == ENGINES
        assert answers(saved) == before, "all at once have one each"
        assert answers(saved[:1]) == before[:1] and len(clients.engines) == ENGINES
        session.close("success").result()
        assert not clients.models() and len(clients.engines) == 1
        assert answers(saved[:1]) == before[:1], "that of another session"


def test_gradients_add_up_until_a_step(service: tinker.ServiceClient) -> None:
    together, apart = (
        service.create_lora_training_client(base_model="toy_math", rank=2, seed=3).result() for _ in range(2)
    )
    both = [datum(), datum("2 + 2 = 4")]
    together.forward_backward(both, "cross_entropy").result()
    for each in both:
        apart.forward_backward([each], "cross_entropy").result()
    norms = [each.optim_step(types.AdamParams()).result().metrics["grad_norm"] for each in (together, apart)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro"])
def test_losses_of_reinforcement_learning(service: tinker.ServiceClient, loss: str) -> None:
    training = service.create_lora_training_client(base_model="toy_math", rank=2).result()
    before = logprobs_of(load_model("toy_math"))
    sampled = (before - 0.5).tolist()  # so the ratio is e^0.5, above the clip of 1.2
    advantages = [1.0 if number % 2 else -1.0 for number in range(len(sampled))]
    config = {"beta": 0.05} if loss == "dro" else None
    learned = training.forward_backward([datum(logprobs=sampled, advantages=advantages)], loss, config).result()
    ratio, signs = torch.full_like(before, 0.5).exp(), torch.tensor(advantages)
    expected = {
        "importance_sampling": -(ratio * signs),
        "ppo": -torch.minimum(ratio * signs, ratio.clamp(0.8, 1.2) * signs),
        "cispo": -(ratio.clamp(0.8, 1.2) * signs * before),
        "dro": -(signs * before - 0.05 / 2 * 0.5**2),
    }[loss]
    assert learned.metrics["loss:sum"] == pytest.approx(float(expected.sum()), rel=1e-3, abs=1e-3)
    torch.testing.assert_close(learned.loss_fn_outputs[0]["logprobs"].to_torch(), before, rtol=1e-4, atol=1e-4)


def soft(targets: torch.Tensor, weights: torch.Tensor, *, sparse: bool = False) -> types.Datum:
    """The text with several targets at each position: as the client sends tensors with many zeros, or lists."""
    given = {"target_tokens": targets, "weights": weights}
    inputs = given if sparse else {name: each.tolist() for name, each in given.items()}
    return types.Datum(datum().model_input, inputs)


def test_several_targets_at_a_position_are_learned_as_so_many_examples(service: tinker.ServiceClient) -> None:
    ids = torch.tensor(load_tokenizer("toy_math")(TEXT)["input_ids"])
    with torch.no_grad():
        logits = load_model("toy_math")(input_ids=ids[None, :-1]).logits[0].double()
    length = len(ids) - 1
    targets = torch.stack([ids[1:], (ids[1:] + 5) % 50, ids[:-1]], 1)
    weights = torch.rand(length, 3, generator=torch.Generator().manual_seed(1))
    few = weights * (torch.arange(length) >= length - 1)[:, None]  # so few that the client sends them sparse
    assert soft(targets, few, sparse=True).loss_fn_inputs["weights"].sparse_crow_indices is not None
    expected = 0.0
    for position in range(length):
        whole = float(logits[position].exp().sum().log())
        for target, weight in zip(targets[position].tolist(), (weights + few)[position].tolist(), strict=True):
            expected -= weight * (float(logits[position, target]) - whole)

    together, apart = (
        service.create_lora_training_client(base_model="toy_math", rank=2, seed=3).result() for _ in range(2)
    )
    rows = [soft(targets, weights), soft(targets, few, sparse=True), soft(targets[:, :1], torch.zeros(length, 1))]
    learned = together.forward_backward([*rows, datum(weights=[0.0] * length)], "cross_entropy").result()
    assert learned.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4)
    logprobs = [each["logprobs"].to_torch() for each in learned.loss_fn_outputs]
    assert [tuple(each.shape) for each in logprobs] == [(length, 3), (length, 3), (length, 1), (length,)]
    true = torch.log_softmax(logits, -1).gather(-1, targets).float()
    for found in (logprobs[0], logprobs[1], torch.cat([logprobs[2], true[:, 1:]], 1)):
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logprobs[3], true[:, 0], rtol=1e-4, atol=1e-4)

    singly = [
        types.Datum(
            datum().model_input, {"target_tokens": targets[:, k].tolist(), "weights": (weights + few)[:, k].tolist()}
        )
        for k in range(3)
    ]
    apart.forward_backward(singly, "cross_entropy").result()
    norms = [each.optim_step(types.AdamParams()).result().metrics["grad_norm"] for each in (together, apart)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_a_loss_of_the_clients_own(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model="toy_math", rank=2, seed=5).result()

    def own(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        loss = sum((each.exp() ** 2).sum() for each in logprobs)
        assert isinstance(loss, torch.Tensor)
        return loss, {"own": loss.item()}

    learned = training.forward_backward_custom([datum()], own).result()
    assert learned.metrics["own"] == pytest.approx(
        float((logprobs_of(load_model("toy_math")).exp() ** 2).sum()), rel=1e-3
    )
    assert training.optim_step(types.AdamParams()).result().metrics["grad_norm"] > 0


def test_weights_are_saved_and_loaded_with_the_optimiser(service: tinker.ServiceClient) -> None:
    training = service.create_lora_training_client(base_model="toy_math", rank=2, seed=7).result()

    def step(trained: tinker.TrainingClient) -> float:
        learned = trained.forward_backward([datum()], "cross_entropy")
        trained.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        return float(learned.result().metrics["loss:sum"])

    step(training)
    path = training.save_state("first").result().path
    expected = [step(training) for _ in range(3)]
    with pytest.raises(Exception, match="LoadWeights is not permitted"):
        training.load_state_with_optimizer(path).result()
    fresh = service.create_lora_training_client(base_model="toy_math", rank=2).result()
    fresh.load_state_with_optimizer(path).result()
    assert [step(fresh) for _ in range(3)] == pytest.approx(expected, rel=1e-5)
    listed = service.create_rest_client().list_checkpoints(training.model_id).result().checkpoints
    assert [(each.tinker_path, each.checkpoint_type) for each in listed] == [(path, "training")]
    other = service.create_training_client_from_state_with_optimizer(path).result()
    assert [step(other) for _ in range(3)] == pytest.approx(expected, rel=1e-5)


def test_what_was_stored_can_be_deleted(service: tinker.ServiceClient) -> None:
    training, rest = (
        service.create_lora_training_client(base_model="toy_math", rank=2).result(),
        service.create_rest_client(),
    )
    paths = [training.save_state(name).result().path for name in ("first", "second")]
    rest.delete_checkpoint_from_tinker_path(paths[0]).result()
    left = rest.list_checkpoints(training.model_id).result().checkpoints
    assert [each.tinker_path for each in left] == [paths[1]]
    with pytest.raises(Exception, match="not of the form"):
        rest.delete_checkpoint(training.model_id, "second").result()
    runs = rest.list_training_runs(limit=100).result()
    assert training.model_id in [run.training_run_id for run in runs.training_runs]


def test_several_clients_do_not_meet(address: str) -> None:
    services = [client(address) for _ in range(3)]
    trained = [each.create_lora_training_client(base_model="toy_math", rank=2, seed=9).result() for each in services]
    futures = []
    for number, each in enumerate(trained):
        for _ in range(number + 1):
            futures.append(each.forward_backward([datum()], "cross_entropy"))
            futures.append(each.optim_step(types.AdamParams(learning_rate=1e-2)))
    for future in futures:
        future.result()
    left = [each.forward([datum()], "cross_entropy").result().metrics["loss:sum"] for each in trained]
    assert left[0] > left[1] > left[2]


def test_weights_for_sampling_are_what_peft_reads(service: tinker.ServiceClient, tmp_path: Path) -> None:
    import io
    import json
    import tarfile
    import urllib.error
    import urllib.request

    training = service.create_lora_training_client(base_model="toy_math", rank=2, seed=11).result()
    for _ in range(3):
        training.forward_backward([datum()], "cross_entropy").result()
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    path = training.save_weights_for_sampler("mine").result().path
    model, kind, name = path.removeprefix("tinker://").split("/")
    base_url = str(service.holder._base_url)
    archive_url = f"{base_url}/api/v1/training_runs/{model}/checkpoints/{kind}/{name}/archive"
    asked = urllib.request.Request(archive_url, headers={"X-API-Key": "tml-test"})
    content = urllib.request.urlopen(asked).read()
    # Clients before 0.25 ask for an address, and download from there without a key.
    asked.add_header("Accept", "application/json")
    address = json.loads(urllib.request.urlopen(asked).read())["url"]
    assert len(urllib.request.urlopen(address).read()) == len(content)
    for other in (archive_url, address[:-1] + ("0" if address[-1] != "0" else "1"), address.replace(name, "other")):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(other)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # Python 3.11.4
    expected = logprobs_of(PeftModel.from_pretrained(load_model("toy_math"), str(tmp_path)))
    sampling = service.create_sampling_client(model_path=path).result()
    ids = load_tokenizer("toy_math")(TEXT)["input_ids"]
    found = sampling.compute_logprobs(types.ModelInput.from_ints(ids)).result()
    assert found[0] is None
    torch.testing.assert_close(torch.tensor(found[1:]), expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_is_said(service: tinker.ServiceClient, address: str) -> None:
    with pytest.raises(Exception, match="no base model 'gpt'"):
        service.create_lora_training_client(base_model="gpt").result()
    training = service.create_lora_training_client(base_model="toy_math", rank=2).result()
    with pytest.raises(Exception, match="there is no loss 'gspo'"):
        training.forward_backward([datum()], "gspo").result()
    flat = datum().loss_fn_inputs["target_tokens"].to_torch()
    twice, ones = torch.stack([flat] * 2, 1), torch.ones(len(flat), 2)
    two = types.Datum(datum().model_input, {"target_tokens": twice, "logprobs": ones, "advantages": ones})
    with pytest.raises(Exception, match=r"target_tokens has shape .*, and is to have \[\d+\]"):
        training.forward_backward([two], "ppo").result()
    with pytest.raises(Exception, match="weights has shape"):
        training.forward_backward([soft(twice, ones[:, :1])], "cross_entropy").result()
    with pytest.raises(Exception, match="advantages"):
        training.forward_backward([datum()], "ppo").result()
    with pytest.raises(Exception, match="not of the form"):
        training.save_state("../../outside").result()
    with pytest.raises(Exception, match="none of this server"):
        client(address, "tml-other").create_lora_training_client(base_model="toy_math").result()
