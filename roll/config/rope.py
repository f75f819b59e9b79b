"""How positions turn queries and keys (rotary embeddings), where it is not as the model's own config.json says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from roll.config.base import ConfigModel
from roll.config.errors import Problem

Above = Annotated[float, Field(gt=0)]


def _one(value: object) -> object:
    if isinstance(value, dict) and "type" in value:
        rest = {key: item for key, item in value.items() if key != "type"}
        return {"rope_type": value["type"], **rest}
    return value


class RopeScaling(ConfigModel):
    """Waves of another length than those that the model was trained with, in the words of ``transformers``.

    Those that change with the length of a sequence (``dynamic``, ``longrope``) are not among them: trainer and engine
    would then have other positions for the same tokens.
    """

    rope_type: Literal["linear", "yarn", "llama3"] = Field(
        description="`linear`, `yarn` (Peng et al. 2023) or `llama3`; `type` is another name of this key."
    )
    factor: Annotated[float, Field(ge=1)] = Field(description="How many times longer sequences become.")
    original_max_position_embeddings: Annotated[int, Field(ge=1)] | None = Field(
        None, description="`yarn`, `llama3`: positions before that. null: those of the model."
    )
    attention_factor: Above | None = Field(
        None, description="`yarn`: what scales queries and keys. null: from `factor` and `mscale`."
    )
    mscale: Above | None = Field(None, description="`yarn`: slope of that scale.")
    mscale_all_dim: Above | None = Field(None, description="`yarn`: slope of what it is divided by.")
    beta_fast: Above | None = Field(None, description="`yarn`: turns above which waves stay as they are. null: 32.")
    beta_slow: Above | None = Field(None, description="`yarn`: turns below which they are stretched whole. null: 1.")
    low_freq_factor: Above | None = Field(None, description="`llama3`: waves longer than positions over this: whole.")
    high_freq_factor: Above | None = Field(None, description="`llama3`: waves shorter than positions over this: not.")

    def parameters(self) -> dict[str, Any]:
        """Return what was said, as a ``config.json`` has it."""
        # Read one by one, and not dumped, so that a rehearsal sees that they are read.
        values = {key: getattr(self, key) for key in type(self).model_fields}
        return {key: value for key, value in values.items() if value is not None}

    def problems(self, path: str) -> Iterator[Problem]:
        """Yield what a kind of scaling needs and lacks, or what another kind reads."""
        own = _READS[self.rope_type]
        for key in sorted(set(self.parameters()) - {"rope_type", "factor", *own}):
            whose = next(kind for kind, keys in _READS.items() if key in keys)
            message = f"rope_type {self.rope_type} does not read it; {whose} does."
            yield Problem(f"{path}.{key}", message, "leave it out.", getattr(self, key))
        for key in ("low_freq_factor", "high_freq_factor"):
            if self.rope_type == "llama3" and getattr(self, key) is None:
                yield Problem(f"{path}.{key}", "rope_type llama3 needs it.", "set it: Llama 3.1 has 1 and 4.")


_POSITIONS = "original_max_position_embeddings"
_READS = {
    "yarn": {_POSITIONS, "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow"},
    "llama3": {_POSITIONS, "low_freq_factor", "high_freq_factor"},
    "linear": set[str](),
}
"""What each kind reads beside its factor."""

ScalesRope = Annotated[RopeScaling, BeforeValidator(_one)]
"""A scaling, of which ``type`` names the kind as well."""
