"""What a language model makes of pictures: the embeddings and the positions of the tokens that stand for them."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoImageProcessor

from roll.generation.pictures import Picture

IntArray = npt.NDArray[np.int64]

_TOLERANCE = 1e-3
_TOLERANCE_HALF = 5e-2


class PictureError(ValueError):
    """A model cannot be shown pictures; the message says why."""


def rope_positions(pictures: Sequence[Picture], start: int, stop: int) -> IntArray:
    """Return the positions of tokens ``start`` to ``stop`` in time, height and width, ``[3, stop - start]``.

    The rotary positions of Qwen2-VL (Wang et al. 2024, section 2.1): the tokens of a picture have one time, and their
    own row and column; what follows it goes on after the larger of its sides.

    Args:
        pictures: Of the sequence, in the order of their places.
        start: The first token.
        stop: The token after the last.
    """
    positions = np.tile(np.arange(start, stop), (3, 1))
    shift = 0
    for picture in pictures:
        if picture.start >= stop:
            break
        inside = np.arange(max(picture.start, start), min(picture.stop, stop))
        if len(inside):
            row, column = np.divmod(inside - picture.start, picture.columns)
            positions[:, inside - start] = picture.start + shift + np.stack((np.zeros_like(row), row, column))
        shift += max(picture.rows, picture.columns) - picture.tokens
        behind = max(picture.stop, start)
        positions[:, behind - start :] = np.arange(behind, max(stop, behind)) + shift
    return positions


class ShownTokens(NamedTuple):
    """What a decoder takes in place of the tokens of sequences with pictures.

    Attributes:
        embeddings: ``[batch, sequence, hidden]``.
        positions: ``[4, batch, sequence]``: place in the sequence, then time, height and width.
        marked_ids: ``[batch, sequence]``: tokens, and marks of pictures (:func:`marked_rows`).
    """

    embeddings: Tensor
    positions: Tensor
    marked_ids: Tensor

    def padded(self) -> dict[str, Tensor]:
        """Return what a decoder is called with for the rows as they are."""
        return {"inputs_embeds": self.embeddings, "position_ids": self.positions[1:]}

    def packed(self, places: Tensor, inside: Tensor, tokens: int) -> dict[str, Tensor]:
        """Return the same for rows of which every token has a place in one row; several may have the same.

        Args:
            places: ``[batch, sequence]``.
            inside: ``[batch, sequence]``: which tokens are not padding.
            tokens: How many places there are.
        """
        rows = inside.flatten().nonzero().squeeze(1)
        # Of tokens in one place the first stands for all: the gradient reaches what is shown once.
        sources = rows.new_full((tokens,), inside.numel()).scatter_reduce(0, places[inside], rows, "amin")
        return {
            "inputs_embeds": self.embeddings.flatten(0, 1).index_select(0, sources).unsqueeze(0),
            "position_ids": self.positions.flatten(1).index_select(1, sources).unsqueeze(1),
        }


def marked_rows(input_ids: Tensor, pictures: Sequence[Sequence[Picture]]) -> Tensor:
    """Return tokens ``[batch, sequence]`` with marks below 0 for those of pictures: equal where the same is shown."""
    marked = input_ids.clone()
    for row, own in enumerate(pictures):
        for picture in own:
            marked[row, picture.start : picture.stop] = picture.mark
    return marked


class PictureEncoder:
    """The vision part of a model, and how its pictures are prepared.

    Args:
        model: A model of the kind of Qwen2-VL, loaded from a folder with its image processor.

    Raises:
        PictureError: It has no vision part, or one of another kind.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        config: Any = model.config
        name = type(model).__name__
        placeholder = getattr(config, "image_token_id", None)
        if placeholder is None or not hasattr(model, "get_image_features"):
            raise PictureError(f"{name} reads text alone: use a vision-language model like Qwen2-VL.")
        if getattr(config.vision_config, "deepstack_visual_indexes", None) or not _has_three_axes(config):
            raise PictureError(f"{name} places pictures among tokens unlike Qwen2-VL and Qwen2.5-VL: use one of these.")
        self.placeholder = int(placeholder)
        self._merged = int(config.vision_config.spatial_merge_size)
        self._processor = load_image_processor(str(getattr(model, "name_or_path", "")))

    def features(self, pictures: Sequence[Picture], device: torch.device) -> tuple[Tensor, ...]:
        """Return the embeddings of pictures, ``[tokens, hidden]`` each; gradients are kept.

        Args:
            pictures: One or more.
            device: Where the model computes.

        Raises:
            ValueError: A picture has another grid than its placeholders were written for.
        """
        prepared = self._prepared(pictures)
        grid = prepared["image_grid_thw"]
        for picture, (_, height, width) in zip(pictures, grid.tolist(), strict=True):
            found = (height // self._merged, width // self._merged)
            if found != (picture.rows, picture.columns):
                raise ValueError(
                    f"a picture was written into the prompt as {picture.rows} x {picture.columns} tokens, and the "
                    f"image processor of {self._model.name_or_path} makes {found[0]} x {found[1]} of it; render "
                    "prompts with the processor of the model that reads them"
                )
        pixels = prepared["pixel_values"].to(device)
        output = self._model.get_image_features(pixels, grid.to(device), return_dict=True)
        return tuple(output.pooler_output)

    def shown(self, input_ids: Tensor, pictures: Sequence[Sequence[Picture]], *, join_in: bool = False) -> ShownTokens:
        """Return what the decoder takes in place of ``input_ids`` ``[batch, sequence]``.

        Args:
            input_ids: Padded on the right.
            pictures: Of each row.
            join_in: Run the vision part also where no row has a picture: ranks that share a model gather its weights
                together, and one without pictures must go through its layers with the others.
        """
        rows, width = input_ids.shape
        embeddings = self._model.get_input_embeddings()(input_ids)
        flat = [picture for row in pictures for picture in row]
        if flat:
            runs = [picture.moved(row * width) for row, own in enumerate(pictures) for picture in own]
            places = torch.cat([torch.arange(run.start, run.stop) for run in runs]).to(input_ids.device)
            different = {picture.mark: picture for picture in flat}
            seen = dict(zip(different, self.features(list(different.values()), input_ids.device), strict=True))
            features = torch.cat([seen[picture.mark] for picture in flat]).to(embeddings)
            embeddings = embeddings.flatten(0, 1).index_copy(0, places, features).view_as(embeddings)
        elif join_in:
            embeddings = embeddings + 0.0 * self.features([self._blank()], input_ids.device)[0].to(embeddings).sum()
        positions = np.tile(np.arange(width), (4, rows, 1))
        for row, own in enumerate(pictures):
            positions[1:, row] = rope_positions(own, 0, width)
        return ShownTokens(
            embeddings, torch.from_numpy(positions).to(input_ids.device), marked_rows(input_ids, pictures)
        )

    def check(self) -> None:
        """Compare what it makes of a prompt with a picture with the model's own forward pass.

        Raises:
            PictureError: They differ.
        """
        model, blank = self._model, self._blank()
        words = torch.arange(12, device=next(model.parameters()).device) % model.config.get_text_config().vocab_size
        pictures = [blank.moved(5), blank.moved(7 + blank.tokens)]
        shown = torch.full((blank.tokens,), self.placeholder, device=words.device)
        ids = torch.cat((words[:5], shown, words[5:7], shown, words[7:])).unsqueeze(0)
        prepared = self._prepared(pictures).to(ids.device)
        with torch.no_grad():
            tokens = self.shown(ids, [pictures])
            own = model(input_ids=ids, mm_token_type_ids=(ids == self.placeholder).int(), use_cache=False, **prepared)
            ours = model(inputs_embeds=tokens.embeddings, position_ids=tokens.positions, use_cache=False)
        expected = own.logits.float()
        worst = float((ours.logits.float() - expected).abs().max()) / max(float(expected.abs().max()), 1e-6)
        if worst > (_TOLERANCE if ours.logits.dtype in (torch.float32, torch.float64) else _TOLERANCE_HALF):
            raise PictureError(
                f"{type(model).__name__}: logits after a picture differ from the model's own by {worst:.2g} "
                "(relative). Use Qwen2-VL or Qwen2.5-VL."
            )

    def _prepared(self, pictures: Sequence[Picture]) -> Any:
        """Return what the model's own forward pass takes of pictures beside tokens."""
        images = [Image.open(io.BytesIO(picture.data)).convert("RGB") for picture in pictures]
        return self._processor(images=images, return_tensors="pt")

    def _blank(self) -> Picture:
        """Return a picture of gray that widens to the right, so that its sides are not taken for each other."""
        buffer = io.BytesIO()
        Image.linear_gradient("L").resize((96, 48)).save(buffer, format="PNG")
        data = buffer.getvalue()
        rows, columns = PictureGrid(self._processor)(data)
        return Picture(0, rows, columns, data)


class PictureGrid:
    """How many tokens stand for a picture, by its size alone.

    Args:
        processor: An image processor of the kind of Qwen2-VL's.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._of_size = functools.cache(self._measured)

    def __call__(self, data: bytes) -> tuple[int, int]:
        """Return rows and columns of the grid for an encoded picture.

        Raises:
            ValueError: It is no picture, or one that is far too long and narrow.
        """
        try:
            size = Image.open(io.BytesIO(data)).size
        except OSError as error:
            raise ValueError(f"{len(data)} bytes are no picture: {error}") from error
        return self._of_size(size)

    def _measured(self, size: tuple[int, int]) -> tuple[int, int]:
        grid = self._processor(images=[Image.new("RGB", size)], return_tensors="np")["image_grid_thw"]
        _, height, width = grid[0].tolist()
        return height // self._processor.merge_size, width // self._processor.merge_size


def load_image_processor(folder: str) -> Any:
    """Load the image processor of a model.

    Raises:
        PictureError: The folder has none.
    """
    try:
        return AutoImageProcessor.from_pretrained(folder)
    except (OSError, ValueError, ImportError) as error:
        raise PictureError(f"{folder!r} has no image processor (preprocessor_config.json): {error}") from error


def _has_three_axes(config: Any) -> bool:
    return "mrope_section" in (getattr(config.get_text_config(), "rope_parameters", None) or {})
