"""Pictures in prompts: the engine against the model's own forward pass and `generate`."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roll.generation import Completion, GenerationRequest, Picture, SamplingParams
from roll.models.loading import load_model
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy
from tests.models.tiny_vision import make_tiny_vision, own_inputs
from tests.pictures import png
from tests.strategies.generation.hf_infer.hf_infer_support import engine_for, qwen, run_all

GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0)
WORDS = 500  # the toy's, without tokens of pictures


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision(tmp_path_factory.mktemp("vision"), family=request.param)


@pytest.fixture(scope="module")
def model(folder: Path):
    return load_model(str(folder))


def prompt(model, *parts: int | tuple[int, int, int], seed: int = 0) -> tuple[list[int], list[Picture]]:
    """Tokens from numbers of words and (rows, columns, seed) of pictures."""
    rng = random.Random(seed)
    tokens: list[int] = []
    pictures = []
    for part in parts:
        if isinstance(part, int):
            tokens += [rng.randrange(20, WORDS) for _ in range(part)]
            continue
        rows, columns, look = part
        pictures.append(Picture(len(tokens), rows, columns, png(rows, columns, look)))
        tokens += [model.config.image_token_id] * (rows * columns)
    return tokens, pictures


def request(name: str, made: tuple[list[int], list[Picture]], **options) -> GenerationRequest:
    tokens, pictures = made
    return GenerationRequest(name, tokens, **({"sampling": GREEDY} | options), pictures=pictures)


def full_log_probs(model, folder: Path, asked: GenerationRequest, completion: Completion) -> torch.Tensor:
    """``[completion, vocabulary]`` from one plain forward pass of the model itself."""
    inputs = own_inputs(
        folder, [*asked.prompt_ids, *completion.token_ids], [picture.data for picture in asked.pictures]
    )
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0]
    return logits[len(asked.prompt_ids) - 1 : -1].log_softmax(-1)


def assert_as_model_says(model, folder: Path, asked: GenerationRequest, completion: Completion) -> None:
    expected = full_log_probs(model, folder, asked, completion)
    if asked.sampling.temperature == 0:
        assert completion.token_ids == expected.argmax(-1).tolist()
    ids = torch.tensor(completion.token_ids)
    chosen = expected[torch.arange(len(ids)), ids]
    torch.testing.assert_close(torch.tensor(completion.logprobs), chosen, atol=1e-4, rtol=0)


MIXED = [(9,), (3, (2, 3, 1), 4), ((3, 3, 2), 5, (1, 4, 3), 1), (40, (4, 2, 1), 2), (1, (2, 2, 5), 1, (2, 2, 6), 3)]


@pytest.mark.parametrize("prefill", [64, 7])
def test_mixed_batches_say_what_the_model_says(model, folder: Path, prefill: int) -> None:
    # Seven tokens at a time cut pictures in two.
    engine = engine_for(model, max_prefill_tokens=prefill)
    asked = [request(str(number), prompt(model, *parts, seed=number)) for number, parts in enumerate(MIXED)]
    for one, completion in zip(asked, run_all(engine, asked), strict=True):
        assert_as_model_says(model, folder, one, completion)


def test_greedy_completions_are_those_of_generate(model, folder: Path) -> None:
    asked = request("one", prompt(model, 4, (2, 3, 1), 6, (3, 2, 2), 2))
    completion = run_all(engine_for(model), [asked])[0]
    inputs = own_inputs(folder, asked.prompt_ids, [picture.data for picture in asked.pictures])
    own = model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)[0, len(asked.prompt_ids) :]
    assert completion.token_ids == own.tolist()


def test_samples_have_the_log_probs_of_the_distribution(model, folder: Path) -> None:
    sampling = SamplingParams(max_new_tokens=12)
    asked = [
        request(str(number), prompt(model, *parts, seed=number), sampling=sampling, seed=number)
        for number, parts in enumerate(MIXED)
    ]
    for one, completion in zip(asked, run_all(engine_for(model), asked), strict=True):
        assert_as_model_says(model, folder, one, completion)


def test_equal_placeholders_of_different_pictures_are_different_prefixes(model, folder: Path) -> None:
    beginnings = [prompt(model, 3, (6, 7, look), 30) for look in (1, 2, 1)]
    assert beginnings[0][0] == beginnings[1][0]
    engine = engine_for(model)
    asked = [request(str(number), made) for number, made in enumerate(beginnings)]
    done = run_all(engine, asked)
    for one, completion in zip(asked, done, strict=True):
        assert_as_model_says(model, folder, one, completion)
    assert done[0].logprobs != done[1].logprobs
    # The third begins as the first does, picture included; the second shares no more than the words before it.
    assert done[2].cached_tokens > 42 and done[1].cached_tokens <= 3


def test_a_session_keeps_what_it_computed_and_takes_further_pictures(model, folder: Path) -> None:
    engine = engine_for(model)

    async def play() -> list[tuple[GenerationRequest, Completion]]:
        tokens, pictures = prompt(model, 5, (3, 4, 1), 6)
        seen = []
        for turn in range(3):
            asked = GenerationRequest(f"turn {turn}", list(tokens), GREEDY, session="s", pictures=tuple(pictures))
            seen.append((asked, await engine.generate(asked)))
            tokens += seen[-1][1].token_ids
            more, shown = prompt(model, 2, (2, 2, 7 + turn), 1, seed=turn)
            pictures += [picture.moved(len(tokens)) for picture in shown]
            tokens += more
        return seen

    seen = asyncio.run(play())
    for asked, completion in seen:
        assert_as_model_says(model, folder, asked, completion)
    for (before, said), (after, continued) in zip(seen, seen[1:], strict=False):
        assert continued.cached_tokens == len(before.prompt_ids) + len(said.token_ids) - 1
        assert continued.cached_tokens < len(after.prompt_ids)


def test_a_session_that_shows_another_picture_in_the_same_place_computes_it_anew(model, folder: Path) -> None:
    engine = engine_for(model)
    first, second = (request(str(look), prompt(model, 5, (3, 4, look), 6), session="s") for look in (1, 2))

    async def both() -> Completion:
        await engine.generate(first)
        return await engine.generate(second)

    completion = asyncio.run(both())
    assert completion.cached_tokens == 5
    assert_as_model_says(model, folder, second, completion)


def test_a_placeholder_that_the_policy_says_itself_is_a_word(model, folder: Path) -> None:
    tokens, pictures = prompt(model, 4, (2, 2, 1), 3)
    said = [*tokens, model.config.image_token_id, 30, 31]
    completion = run_all(engine_for(model), [request("said", (said, pictures))])[0]
    inputs = {"inputs_embeds": model.get_input_embeddings()(torch.tensor([said])).detach()}
    own = own_inputs(folder, tokens, [picture.data for picture in pictures])
    with torch.no_grad():
        features = torch.cat(model.get_image_features(own["pixel_values"], own["image_grid_thw"]).pooler_output)
        inputs["inputs_embeds"][0, 4:8] = features
        positions, delta = model.model.get_rope_index(own["input_ids"], own["mm_token_type_ids"], own["image_grid_thw"])
        rest = torch.arange(len(tokens), len(said)).expand(3, 1, -1) + delta
        logits = model(**inputs, position_ids=torch.cat((positions, rest), -1)).logits[0, -1].log_softmax(-1)
    assert completion.token_ids[0] == int(logits.argmax())
    assert completion.logprobs[0] == pytest.approx(float(logits.max()), abs=1e-4)


def test_a_repetition_penalty_counts_placeholders_as_words(model) -> None:
    sampling = SamplingParams(max_new_tokens=3, repetition_penalty=1.3)
    assert len(run_all(engine_for(model), [request("one", prompt(model, 3, (2, 2, 1), 2), sampling=sampling)])) == 1


def test_new_weights_are_seen_through(folder: Path) -> None:
    model = load_model(str(folder))
    engine = engine_for(model)
    asked = request("one", prompt(model, 3, (2, 3, 1), 2))
    before = run_all(engine, [asked])[0]
    with torch.no_grad():
        model.model.visual.merger.mlp[2].weight.mul_(-1.0)  # trained in place, as a trainer in the same process does
    after = run_all(engine, [replace(asked, request_id="two")])[0]
    assert before.logprobs != after.logprobs
    assert_as_model_says(model, folder, asked, after)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: [p[0].moved(1)], "not all of them are the placeholder"),
        (lambda p: [p[0], p[0]], "must be at least one and lie between 7 and 9"),
        (lambda p: [p[0].moved(4)], "lie between 0 and 9"),
    ],
)
def test_pictures_out_of_place_are_refused(model, change, message: str) -> None:
    tokens, pictures = prompt(model, 3, (2, 2, 1), 2)
    with pytest.raises(ValueError, match=message):
        run_all(engine_for(model), [request("one", (tokens, change(pictures)))])


def test_models_of_text_refuse_pictures() -> None:
    picture = Picture(1, 1, 1, png(1, 1))
    with pytest.raises(ValueError, match="reads text alone: use a vision-language model"):
        run_all(engine_for(qwen()), [GenerationRequest("one", [1, 2, 3], GREEDY, pictures=[picture])])


def test_padded_rows_have_no_place_for_pictures(model) -> None:
    engine: HfInferStrategy = engine_for(model, layout="padded")
    with pytest.raises(ValueError, match="only to models whose tokens it lays end to end"):
        run_all(engine, [request("one", prompt(model, 3, (2, 2, 1), 2))])
