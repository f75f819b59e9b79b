"""What the model takes in place of new tokens where some rows have pictures."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from roll.generation import GenerationRequest, Picture
from roll.generation.pictures import check_places
from roll.strategies.generation.hf_infer.batch_plan import BatchPlan, IntArray
from roll.strategies.pictures import PictureEncoder, PictureError, rope_positions


class PictureInputs:
    """Embeddings and rotary positions of planned tokens.

    Args:
        encoder: Of the model that runs over slots.
        embed: From token ids to embeddings.
    """

    def __init__(self, encoder: PictureEncoder, embed: nn.Module) -> None:
        self._encoder = encoder
        self._embed = embed

    @classmethod
    def of(cls, original: nn.Module, view: Any, layout: Literal["flat", "padded"]) -> PictureInputs:
        """Return those of a view of a model, after a look at whether a picture gives what the model itself makes of it.

        Raises:
            PictureError: It does not, or the layout has no place for pictures.
        """
        if layout != "flat":
            raise PictureError(
                f"hf_infer shows pictures only to models whose tokens it lays end to end, not to {type(view).__name__}."
            )
        plain: Any = copy.deepcopy(original, {id(parameter): parameter for parameter in original.parameters()})
        PictureEncoder(plain.eval()).check()
        return cls(PictureEncoder(view), view.get_input_embeddings())

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request whose pictures are not where its placeholders are.

        Raises:
            ValueError: They are not.
        """
        where = f"request {request.request_id!r}"
        check_places(where, request.prompt_ids, request.pictures, self._encoder.placeholder)

    def inputs(
        self,
        plan: BatchPlan,
        ids: torch.Tensor,
        starts: IntArray,
        lengths: IntArray,
        pictures: Sequence[Sequence[Picture]],
    ) -> dict[str, torch.Tensor]:
        """Return what the model takes for a forward pass.

        Args:
            plan: The pass.
            ids: ``[tokens]`` in the order of the plan, below 0 where a token stands for a picture.
            starts: ``[rows]`` tokens already in the cache.
            lengths: ``[rows]`` new tokens.
            pictures: Of each row, those in the cache included.
        """
        embeddings = self._embed(ids.clamp(min=0))
        positions = np.tile(plan.positions.cpu().numpy(), (3, 1))
        parts: list[tuple[Picture, int, int]] = []
        offset = 0
        for row in plan.order.tolist():
            start, length = int(starts[row]), int(lengths[row])
            if pictures[row]:
                positions[:, offset : offset + length] = rope_positions(pictures[row], start, start + length)
                for picture in pictures[row]:
                    first, stop = max(picture.start, start), min(picture.stop, start + length)
                    if first < stop:
                        parts.append((picture, first - picture.start, stop - picture.start))
            offset += length
        if parts:
            embeddings[ids < 0] = self._features(parts, ids.device).to(embeddings)
        return {
            "inputs_embeds": embeddings[None],
            "position_ids": torch.from_numpy(positions).to(ids.device)[:, None],
        }

    def _features(self, parts: list[tuple[Picture, int, int]], device: torch.device) -> torch.Tensor:
        """Return the embeddings of stretches of pictures, ``[tokens, hidden]``; each picture is looked at once."""
        different = {picture.mark: picture for picture, _, _ in parts}
        seen = dict(zip(different, self._encoder.features(list(different.values()), device), strict=True))
        return torch.cat([seen[picture.mark][first:stop] for picture, first, stop in parts])


def for_language(model: Any, implementation: str) -> str | dict[str, str]:
    """Return what gives the language part of a model an attention implementation; its vision part keeps its own."""
    if "vision_config" not in model.config.sub_configs:
        return implementation
    return {"text_config": implementation}
