"""Training on what a policy said about pictures: the sampler's log-probs, the model's own gradient, in any layout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.generation import GenerationRequest, Picture, SamplingParams
from roll.models.loading import load_model
from roll.models.lora import add_adapters
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.adapters import adapted_layers
from roll.strategies.training.pytorch.scoring import Scorer
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.trajectories.batch import collate
from roll.trajectories.model import Trajectory, Turn
from roll.trajectories.picture_column import PICTURES
from roll.trajectories.samples import Sample, samples_from
from tests.models.tiny_vision import make_tiny_vision, own_inputs
from tests.pictures import png
from tests.rings import exhaustive_but
from tests.strategies.generation.hf_infer.hf_infer_support import engine_for, run_all
from tests.strategies.training.batches import NegativeLogLikelihood, step_gradient

_LAYOUTS = [
    {**how, "max_tokens_per_microbatch": most, "max_samples_per_microbatch": rows}
    for how in ({}, {"use_sequence_packing": True}, {"share_prefixes": True})
    for most, rows in ((None, None), (None, 1), (110, None))
]
# Each way once, and rows in pieces.
LAYOUTS = exhaustive_but(_LAYOUTS, _LAYOUTS[0], _LAYOUTS[1], _LAYOUTS[5], _LAYOUTS[8])
Shown = int | tuple[int, int, int]
EPISODES: list[list[list[Shown]]] = [
    [[5, (2, 3, 1), 4], [2, (3, 2, 2), 3], [4]],
    [[12], [3]],
    [[1, (4, 5, 3), 2, (1, 2, 4), 6], [2, (2, 2, 5), 1]],
    [[30, (2, 2, 1), 1]],
]


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision(tmp_path_factory.mktemp("vision"), family=request.param)


def added(model, parts: Sequence[Shown], noise: random.Random) -> tuple[list[int], list[Picture]]:
    tokens: list[int] = []
    pictures = []
    for part in parts:
        if isinstance(part, int):
            tokens += [noise.randrange(20, 500) for _ in range(part)]
        else:
            pictures.append(Picture(len(tokens), part[0], part[1], png(*part)))
            tokens += [model.config.image_token_id] * (part[0] * part[1])
    return tokens, pictures


def played(model, number: int, turns: Sequence[Sequence[Shown]]) -> Trajectory:
    """An episode whose turns were sampled by the engine, pictures shown between them."""
    engine, noise = engine_for(model), random.Random(number)
    trajectory = Trajectory("tag", "g", number, seed=0, score=1.0)
    tokens: list[int] = []
    pictures: list[Picture] = []
    for turn, parts in enumerate(turns):
        more, shown = added(model, parts, noise)
        pictures += [picture.moved(len(tokens)) for picture in shown]
        tokens += more
        asked = GenerationRequest(
            str(turn), list(tokens), SamplingParams(max_new_tokens=6), seed=7 * number + turn, pictures=tuple(pictures)
        )
        said = run_all(engine, [asked])[0]
        tokens += said.token_ids
        trajectory.turns.append(Turn(more, said.token_ids, said.logprobs, pictures=shown))
    return trajectory


@pytest.fixture(scope="module")
def batch(folder: Path) -> TensorDict:
    model = load_model(str(folder))
    samples = [sample for number, turns in enumerate(EPISODES) for sample in samples_from(played(model, number, turns))]
    return collate(samples, pad_token_id=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probs_are_the_samplers(folder: Path, batch: TensorDict, layout) -> None:
    scorer = Scorer(load_model(str(folder)), **layout)
    torch.testing.assert_close(scorer.compute_log_probs(batch), batch["sampler_log_probs"], atol=1e-4, rtol=0)


def test_log_probs_depend_on_what_is_shown(folder: Path, batch: TensorDict) -> None:
    scorer = Scorer(load_model(str(folder)))
    blind = batch.clone()
    del blind[PICTURES]
    difference = (scorer.compute_log_probs(blind) - batch["sampler_log_probs"]).abs().amax(1)
    assert difference[1] < 1e-4 and difference[[0, 2, 3]].min() > 1e-2


def test_placeholders_are_never_trained_on(folder: Path, batch: TensorDict) -> None:
    placeholders = batch["input_ids"] == load_model(str(folder)).config.image_token_id
    assert placeholders.sum() == 6 + 6 + 20 + 2 + 4 + 4
    assert not (placeholders & batch["response_mask"]).any()


def own_gradient(folder: Path, batch: TensorDict) -> dict[str, Tensor]:
    """The gradient of the mean negative log-likelihood by the model's own forward pass, a row at a time."""
    from roll.trajectories.picture_column import pictures_of

    model = load_model(str(folder)).double()
    shown = pictures_of(batch)
    assert shown is not None
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        ids = batch["input_ids"][row, : int(batch["lengths"][row])].tolist()
        inputs = own_inputs(folder, ids, [picture.data for picture in shown[row]])
        log_probs = model(**inputs, use_cache=False).logits[0, :-1].log_softmax(-1)
        chosen = log_probs.gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1)
        loss = loss - chosen[batch["response_mask"][row, 1 : len(ids)]].sum()
    (loss / batch["response_mask"].sum()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.fixture(scope="module")
def expected(folder: Path, batch: TensorDict) -> dict[str, Tensor]:
    return own_gradient(folder, batch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_gradient_is_the_models_own(folder: Path, batch: TensorDict, expected, layout, checkpointing: bool) -> None:
    trainer = FsdpTrainStrategy(
        load_model(str(folder)).double(),
        TrainOptions(max_grad_norm=0, gradient_checkpointing=checkpointing, **layout),
    )
    gradient, _ = step_gradient(trainer, batch, NegativeLogLikelihood())
    assert gradient.keys() == expected.keys()
    for name, value in expected.items():
        # The image processor and the embeddings of angles compute in single precision.
        torch.testing.assert_close(gradient[name], value, atol=1e-6, rtol=1e-4)
    assert any(name.startswith("model.visual.blocks.0") and value.abs().max() > 0 for name, value in gradient.items())


def test_a_step_is_taken_where_some_micro_batches_have_no_pictures(folder: Path, batch: TensorDict) -> None:
    trainer = FsdpTrainStrategy(load_model(str(folder)), TrainOptions(max_samples_per_microbatch=1))
    metrics = trainer.train_step(batch, NegativeLogLikelihood())
    assert metrics["loss"] > 0


def test_beginnings_are_shared_where_the_same_is_shown(folder: Path) -> None:
    """Rows that begin alike, with the same picture or with another one of the same size."""
    noise, model = random.Random(0), load_model(str(folder))
    tokens, _ = added(model, [4, (4, 4, 0), 3], noise)
    samples = [
        Sample("g/0", "tag", "g", 0, 0, (0, 0), [*tokens, said, said + 1], pictures=[Picture(4, 4, 4, png(4, 4, look))])
        for said, look in ((30, 1), (40, 1), (50, 2), (60, 2))
    ]
    for sample in samples:
        count = len(sample.token_ids)
        sample.response_mask = [0] * (count - 2) + [1, 1]
        for column in (sample.logprobs, sample.rewards, sample.turn_index, sample.state_hash):
            column += [0] * count  # type: ignore[arg-type]
    batch = collate(samples, pad_token_id=0)
    shared = Scorer(model, share_prefixes=True)
    computed: list[int] = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, given: computed.append(given["inputs_embeds"].shape[1]), with_kwargs=True
    )
    found = shared.compute_log_probs(batch)
    torch.testing.assert_close(found, Scorer(load_model(str(folder))).compute_log_probs(batch), atol=1e-5, rtol=0)
    # Before the pictures all four are alike, up to their end two and two.
    assert computed == [4 + 2 * (16 + 3) + 4 * 2]
    trainers = [
        FsdpTrainStrategy(load_model(str(folder)).double(), TrainOptions(max_grad_norm=0, share_prefixes=share))
        for share in (False, True)
    ]
    apart, together = (step_gradient(trainer, batch, NegativeLogLikelihood())[0] for trainer in trainers)
    for name, value in apart.items():
        torch.testing.assert_close(together[name], value, atol=1e-6, rtol=1e-4)


def test_adapters_leave_the_vision_part_alone(folder: Path, batch: TensorDict) -> None:
    pytest.importorskip("peft")
    model = add_adapters(load_model(str(folder)), rank=2)
    trainer = FsdpTrainStrategy(model, TrainOptions(learning_rate=1e-2))
    assert adapted_layers(model) and not any("visual" in name for name in adapted_layers(model))
    assert not any(parameter.requires_grad for parameter in model.model.visual.parameters())
    before = trainer.compute_log_probs(batch)
    torch.testing.assert_close(before, batch["sampler_log_probs"], atol=1e-4, rtol=0)
    trainer.train_step(batch, NegativeLogLikelihood())
    assert (trainer.compute_log_probs(batch) - before).abs().max() > 1e-3


def test_rows_of_words_train_as_before(folder: Path, batch: TensorDict) -> None:
    trainer = FsdpTrainStrategy(load_model(str(folder)), TrainOptions(use_sequence_packing=True))
    words = batch[torch.tensor([1])]
    del words[PICTURES]
    assert trainer.train_step(words, NegativeLogLikelihood())["loss"] > 0
    # What no row reached has a gradient of zero, so that its moments move as they would.
    assert trainer.compute_log_probs(words).abs().sum() > 0
