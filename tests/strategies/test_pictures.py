"""The arithmetic of pictures among tokens, against the model's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForImageTextToText, LlavaConfig, Qwen3VLConfig

from roll.generation.pictures import Picture, marked
from roll.models.loading import load_model
from roll.strategies.pictures import PictureEncoder, PictureError, rope_positions
from tests.models.tiny_vision import make_tiny_vision
from tests.pictures import png

PARTS = st.lists(st.one_of(st.integers(1, 9), st.tuples(st.integers(1, 4), st.integers(1, 5))), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    return load_model(str(make_tiny_vision(tmp_path_factory.mktemp("vision"))))


def laid_out(parts) -> tuple[int, list[Picture]]:
    length, pictures = 0, []
    for part in parts:
        if isinstance(part, int):
            length += part
        else:
            pictures.append(Picture(length, *part, b""))
            # A word between pictures, as every chat template writes one.
            length += part[0] * part[1] + 1
    return length, pictures


@settings(deadline=None, max_examples=60)
@given(parts=PARTS, cut=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_positions_are_those_of_the_model(model, parts, cut) -> None:
    length, pictures = laid_out(parts)
    kinds = torch.zeros(1, length, dtype=torch.int64)
    for picture in pictures:
        kinds[0, picture.start : picture.stop] = 1
    merge = model.config.vision_config.spatial_merge_size
    grid = torch.tensor([[1, picture.rows * merge, picture.columns * merge] for picture in pictures])
    own, _ = model.model.get_rope_index(torch.zeros_like(kinds), kinds, grid)
    start, stop = sorted(min(place, length) for place in cut)
    ours = rope_positions(pictures, 0, length)
    np.testing.assert_array_equal(ours, own[:, 0].numpy())
    # Any stretch of a sequence has the positions that it has in the whole.
    np.testing.assert_array_equal(rope_positions(pictures, start, stop), ours[:, start:stop])


def test_marks_are_equal_where_the_same_is_shown() -> None:
    tokens = [1, 2, 9, 9, 9, 9, 3]
    first, second = Picture(2, 2, 2, b"a"), Picture(2, 2, 2, b"b")
    assert marked(tokens, []) == tokens
    assert marked(tokens, [first]) == marked(tokens, [Picture(2, 2, 2, b"a")])
    assert marked(tokens, [first]) != marked(tokens, [second]) != marked(tokens, [Picture(2, 1, 4, b"b")])
    shown = marked(tokens, [first])
    assert shown[:2] == [1, 2] and shown[6:] == [3] and all(-(2**63) <= token < 0 for token in shown[2:6])


def test_a_picture_of_another_grid_is_refused(model) -> None:
    with pytest.raises(ValueError, match="written into the prompt as 3 x 3 tokens, and the image processor"):
        PictureEncoder(model).features([Picture(0, 3, 3, png(2, 3))], torch.device("cpu"))


def test_a_model_that_places_pictures_otherwise_is_refused(model, monkeypatch: pytest.MonkeyPatch) -> None:
    PictureEncoder(model).check()
    from roll.strategies import pictures

    monkeypatch.setattr(pictures, "rope_positions", lambda own, start, stop: np.tile(np.arange(start, stop), (3, 1)))
    with pytest.raises(PictureError, match="differ from the model's own"):
        PictureEncoder(model).check()


@pytest.mark.parametrize("kind", [Qwen3VLConfig, LlavaConfig])
def test_models_that_place_pictures_in_another_way_are_refused_by_name(kind) -> None:
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(kind())
    with pytest.raises(PictureError, match=f"{type(model).__name__} places pictures among tokens unlike"):
        PictureEncoder(model)


def test_a_folder_without_image_processor_is_told(tmp_path: Path) -> None:
    folder = make_tiny_vision(tmp_path / "vision")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(PictureError, match="has no image processor"):
        PictureEncoder(load_model(str(folder)))
