"""What the keys of reinforcement learning mean together: workers, contradictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self

from roll.config.checks import rl_cautions, rl_problems
from roll.config.errors import Problem
from roll.config.rl_keys import RLKeys
from roll.config.sampling import SamplingConfig
from roll.config.worker import WorkerConfig

_LARGE_STEP: Final = 4_000_000
"""Tokens of a step from which on they do not go through the program by themselves: some 200 MB in a batch."""


class RLConfig(RLKeys, SamplingConfig):
    """Base of every configuration of reinforcement learning. A kind says what it samples (:meth:`plan`)."""

    def worker_roles(self) -> Iterator[tuple[str, WorkerConfig]]:
        """Yield the roles that have workers of their own, as far as the run uses them."""
        for name, worker in self.roles():
            if name != "reference" and (name != "critic" or self.adv_estimator == "gae"):
                yield name, worker
        if self.needs_reference and not self.is_own_reference:
            # Without keys of its own the reference is the policy before training, scored where the policy trains.
            yield "reference", self.reference or self.actor_train

    @property
    def learns_at_once(self) -> bool:
        """Whether what is sampled is learned from in the same run, without a store in between."""
        return self.mode == "both"

    def text_readers(self) -> Iterator[tuple[str | None, str]]:
        """Yield what of the run reads text alone: experts."""
        yield from super().text_readers()
        if self.expert is not None:
            yield "expert", "what experts wrote is text"

    def opponents_stay(self, pretrain: str) -> Self:
        """Return it with opponents who stay who they are while another policy than ``pretrain`` is measured."""
        return self

    @property
    def learns_elsewhere(self) -> bool:
        """Whether what is sampled goes from workers to a worker, and not through the program itself."""
        if self.data_plane != "auto":
            return self.data_plane == "workers"
        if self.sampled_per_step * self.sequence_length < _LARGE_STEP or next(self._at_the_driver(), None) is not None:
            return False
        # That worker may be on another machine, with other files and other modules: only if asked for.
        return self.actor_train.data_args.custom_cls is None and not self._has_store_of_one_machine

    @property
    def _has_store_of_one_machine(self) -> bool:
        """Whether it has a store that is on the disk of a machine, or in a database that may be."""
        stored = self.mode in ("explore", "train") or self.replays
        return stored and (self.experience is None or self.experience.path is not None or self.replays)

    def _at_the_driver(self) -> Iterator[tuple[str, str]]:
        """Yield why the program itself needs what is sampled: a key, and what it does."""
        if self.cluster != "ray":
            yield "cluster", "everything is in one process"
        if self.mode in ("bench", "serve"):
            yield "mode", "nothing is sampled to be learned from"

    @property
    def groups_per_lease(self) -> int:
        """Groups that a step learns from."""
        members = max(1, self.sampled_per_step // self.groups_per_step)
        return self.groups_per_step if self.leased_per_step is None else self.leased_per_step // members

    @property
    def estimator(self) -> str | None:
        """How scores become advantages."""
        return self.adv_estimator

    @property
    def measured_from(self) -> tuple[str, ...]:
        """The reference, where the divergence from it is that over the whole vocabulary."""
        return ("reference",) if self.needs_reference and self.kl_penalty == "full" else ()

    @property
    def response_limit(self) -> int:
        """Most response tokens of a trajectory."""
        limit = self.response_length or self.sequence_length
        return min(limit, self.actor_infer.generating_args.max_new_tokens)

    def problems(self) -> Iterator[Problem]:
        """Yield every contradiction between keys that are each valid alone."""
        yield from super().problems()
        yield from rl_problems(self)
        if self.data_plane == "workers":
            for key, reason in self._at_the_driver():
                fix = f"leave out data_plane, or {key}." if key != "cluster" else "leave it out, or set cluster: ray."
                yield Problem("data_plane", f"tokens go through the program: {reason} ({key}).", fix, "workers")

    def cautions(self) -> Iterator[str]:
        """Yield what has no effect or probably not the one that was meant."""
        yield from rl_cautions(self)
        yield from super().cautions()
