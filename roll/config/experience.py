"""The keys of experience: what a run does with it, and the store that lies between what samples and what learns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from roll.config.base import ConfigModel
from roll.config.experience_sync import SyncConfig
from roll.config.worker import NonNegative, Positive

Mode = Literal["both", "explore", "train", "bench", "serve"]


def _place(value: Any) -> Any:
    """Return the address of a database as it is, and anything else as a path."""
    return Path(value) if isinstance(value, str) and "://" not in value else value


class ExperienceConfig(ConfigModel):
    """A store of groups, which one program fills and another one learns from."""

    type: Literal["memory", "folder", "sql", "ray"] = Field(
        "folder",
        description="Kind of store: `folder`, on a disk that both programs see; `sql`, in PostgreSQL or SQLite; `ray`, "
        "in a Ray cluster that both programs join (`RAY_ADDRESS`); `memory`, of one program, as without a store "
        "(`mode: both`): a step learns from all that was sampled for it, and nothing is kept for later ones.",
    )
    name: str | None = Field(
        None, min_length=1, description="`type: ray`: what the store is called; programs of one name share it."
    )
    namespace: str = Field("roll", min_length=1, description="`type: ray`: the namespace of Ray that knows its name.")
    path: Annotated[Path | str, BeforeValidator(_place)] | None = Field(
        None,
        description="Its folder, or the address of its database (`postgresql://user@host/database`, `sqlite:///file`); "
        "or, with `mode: train`, the folder of a finished run, to learn from what it sampled. With `mode: both` the "
        "run keeps its own, `replay` in its `output_dir`. With `type: ray`, a folder on the machine of the program "
        "that comes first, where groups outlive a process that is killed; null: they lie in Ray's object store.",
    )
    reader: str = Field("train", min_length=1, description="Who learns from it: each reader gets every group.")
    uses: Positive = Field(1, description="How often each group is learned from.")
    max_age: NonNegative | None = Field(
        None, description="Versions of the weights that a group may be old; older ones are dropped. null: any."
    )
    priority: str = Field(
        "least_used",
        description="Which groups come first: `least_used` (each in turn), `linear_decay`, `staleness`, `advantage`, "
        "`success_balanced`, or one of your own (`@register_priority`).",
    )
    priority_options: dict[str, Any] = Field(default_factory=dict, description="Options of the priority, by name.")
    cooldown: NonNegative = Field(0, description="Steps that lie at least between two that learn from the same group.")
    fresh_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Share of the groups of a step that were never learned from, at least one; the others are "
        "replayed, as far as `uses`, `max_age` and `cooldown` allow. null: as it comes.",
    )
    train_batch_size: Positive | None = Field(
        None,
        description="Trajectories that a step learns from: whole groups, however many a step samples. With `mode: "
        "both` the rest of a larger one is replayed, and what a smaller one leaves is learned from in the next steps, "
        "before more is sampled. null: as many as a step samples.",
    )
    writer: str | None = Field(
        None,
        min_length=1,
        description="`mode: explore`: name put before those of its groups. Several explorers that fill one store need "
        "one each, and seeds of their own; a group whose name is there already is not kept. null: none.",
    )
    follow: Annotated[Path, Field(strict=False)] | None = Field(
        None,
        description="The folder of the run that learns (its `output_dir`). `mode: explore` samples from its newest "
        "checkpoint, and `mode: serve` answers with it; null: the policy stays as it is. `mode: bench` evaluates each "
        "of its checkpoints.",
    )
    sync: SyncConfig | None = Field(
        None,
        description="When `mode: explore` takes the weights of the run that it follows, and `mode: train` writes "
        "checkpoints for it beside those of `save_steps`. null: the newest checkpoint, before each step.",
    )
    checkpoints: list[Annotated[Path, Field(strict=False)]] = Field(
        default_factory=list,
        description="`mode: bench`: folders of checkpoints to evaluate, in this order, instead of those of a run.",
    )
    ahead: Positive | None = Field(
        2, description="`mode: explore`: waits while so many steps of groups have not been learned from. null: never."
    )
    review_timeout: Annotated[float, Field(gt=0)] | None = Field(
        86_400.0,
        description="Seconds that a run waits for groups of the operator `human_review` while nobody decides about "
        "one; then it ends with an error, and may be continued. null: for ever.",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_path_alone_is_a_store(cls, data: Any) -> Any:
        """Read a path alone as that of a store, and an address as that of a database."""
        given = dict(data) if isinstance(data, Mapping) else {"path": data}
        if "type" not in given and "://" in str(given.get("path", "")):
            given["type"] = "sql"
        return given
