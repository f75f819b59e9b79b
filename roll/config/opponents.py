"""The keys of models that have seats of games and are not trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.errors import Problem
from roll.config.worker import GeneratingArgs, Positive, WorkerConfig

OPPONENTS = "opponents"


class LeagueConfig(ConfigModel):
    """Past checkpoints of the policy as opponents."""

    every: Positive = Field(8, description="Steps of training after which the policy joins the league as it is then.")
    keep: Positive = Field(
        4, description="Members of the league, an engine each: the newest, and `model_args` until there are so many."
    )


class OpponentConfig(WorkerConfig):
    """A model that has seats and is not trained."""

    league: LeagueConfig | None = Field(
        None, description="Past checkpoints of the policy; each group plays against one of them. null: always itself."
    )

    def sampling(self, policy: GeneratingArgs) -> GeneratingArgs:
        """Return how it samples: as the policy does in training, unless it says otherwise."""
        own = self.generating_args.model_dump(exclude_unset=True)
        return policy.model_copy(update=own)

    @property
    def workers(self) -> int:
        """Number of engines: one, or one for each member of the league."""
        return super().workers if self.league is None else self.league.keep


def staying(opponents: Mapping[str, OpponentConfig], pretrain: str) -> dict[str, OpponentConfig]:
    """Return opponents who stay who they are while another policy than ``pretrain`` is measured against them."""
    kept = {}
    for name, opponent in opponents.items():
        args = opponent.model_args
        named = args.model_name_or_path or pretrain
        kept[name] = opponent.model_copy(update={"model_args": args.model_copy(update={"model_name_or_path": named})})
    return kept


def opponent_problems(opponents: Mapping[str, OpponentConfig], devices: Mapping[str, set[int]]) -> Iterator[Problem]:
    """Yield what opponents cannot be.

    Args:
        opponents: By name.
        devices: Those of the other roles.
    """
    for name, opponent in opponents.items():
        path = f"{OPPONENTS}.{name}"
        if name == "policy" or name == "random" or ":" in name:
            message = "seats that are given to this name are not an opponent's."
            yield Problem(path, message, "give it another name, such as start.", name)
        mine = set(opponent.device_mapping or ())
        shared = sorted(role for role, theirs in devices.items() if mine & theirs)
        if shared:
            message = f"{', '.join(shared)} has some of its devices, and an opponent gives them to nobody."
            yield Problem(f"{path}.device_mapping", message, "give it devices of its own, or null for the CPU.")
        if opponent.strategy_args.about.answers_text:
            message = "its engine answers text, and conversations of opponents are made of tokens."
            fix = "name the endpoint as the seat itself: seats: [policy, {url: …, model: …}]."
            yield Problem(f"{path}.strategy_args.strategy_name", message, fix, opponent.strategy_args.strategy_name)
        if opponent.league is not None and (opponent.world_size or opponent.device_mapping):
            key = "world_size" if opponent.world_size else "device_mapping"
            message = "a league has an engine for each member, on the CPU."
            yield Problem(f"{path}.{key}", message, "leave it out; league.keep says how many.")
