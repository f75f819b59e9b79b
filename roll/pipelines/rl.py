"""Reinforcement learning from what a run samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from roll.config import RLConfig
from roll.data.supervised import load_demonstrations
from roll.experience.errors import StoreError
from roll.gateway.policy_endpoint import PolicyEndpoint
from roll.gateway.served import ServedPolicy
from roll.pipelines.experience.exploring import Explorer
from roll.pipelines.experience.following import FollowedRun, ListedCheckpoints, newer_than
from roll.pipelines.experience.opening import open_replay, open_store
from roll.pipelines.experience.people import WaitingForPeople, command_for, shown_place
from roll.pipelines.experience.replaying import ReplayedGroups
from roll.pipelines.experience.stored_groups import StoredGroups
from roll.pipelines.experience.syncing import SyncRequests
from roll.pipelines.learning.algorithm_options import needs_baselines
from roll.pipelines.learning.batches import TrainingBatch
from roll.pipelines.learning.token_record import store_learned
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.sampled import SampledRun
from roll.pipelines.sampling.data_sections import data_faults_at
from roll.pipelines.sampling.demonstrations import describe, encode
from roll.pipelines.sampling.expert_answers import ExpertAnswers
from roll.pipelines.sampling.experts import ExpertRows
from roll.pipelines.sampling.stream import Groups, Source
from roll.trajectories.model import TrajectoryGroup
from roll.workers.loading import Text

Config = TypeVar("Config", bound=RLConfig)


class RLPipeline(SampledRun[Config]):
    """A run that learns from the scores of what it samples. A pipeline says what (``stream``) and what is evaluated.

    With ``experience`` it learns again from what it sampled before. With ``mode: explore`` it fills a store instead of
    learning, with ``mode: train`` it learns from one, with ``mode: bench`` it evaluates checkpoints of another run,
    with ``mode: serve`` it answers for its policy.
    """

    fails_with = (*SampledRun.fails_with, StoreError)

    explorer: Explorer | None = None
    stored: StoredGroups | None = None
    replayed: ReplayedGroups | None = None
    followed: FollowedRun | ListedCheckpoints | None = None
    requests: SyncRequests | None = None
    endpoint: PolicyEndpoint | None = None
    _found: bool = True

    experts: ExpertRows | None = None
    answers: ExpertAnswers | None = None
    _written: Sequence[str] = ()

    def read_data(self, text: Text) -> None:
        """Read what experts wrote, if anything, before a model loads.

        Raises:
            ConfigError: If it cannot be used.
        """
        expert = self.config.expert
        if expert is None:
            return
        with data_faults_at("expert.data_args"):
            table = load_demonstrations(expert.data_args, expert, self.config.sequence_length, partial(encode, text))
        self._written = describe("expert", table)
        if expert.join == "groups":
            self.answers = ExpertAnswers(table, None if expert.score == "graded" else expert.score)
        else:
            self.experts = ExpertRows.of(self.config, table, int(text.tokenizer.pad_token_id or 0))

    def give_groups(self, sources: Sequence[Source]) -> None:
        """Set up what gives each step its groups; where some are replayed, fewer are sampled."""
        keys = self.config.experience
        if keys is None or not self.config.replays:
            super().give_groups(sources)
            return
        # Where more is learned from than sampled, all of what is sampled is fresh.
        share = 1.0 if self.config.leased_per_step else keys.fresh_share or 1.0
        super().give_groups([replace(each, groups_per_step=max(1, round(share * each.groups_per_step)))
                             for each in sources])  # fmt: skip

    def make_stream(self, sources: Sequence[Source]) -> Groups:
        """Return what gives each step its groups: what is sampled, or a store."""
        keys = self.config.experience
        if self.config.mode == "bench":
            assert keys is not None and (keys.follow or keys.checkpoints), "bench without them is refused"
            self.followed = FollowedRun(keys.follow) if keys.follow else ListedCheckpoints(keys.checkpoints)
        if self.config.mode == "serve":
            self.endpoint = self._endpoint()
        if keys is None or self.followed is not None or self.endpoint is not None:
            return super().make_stream(sources)
        count = self.config.groups_per_lease
        if self.config.replays:
            fresh = sum(source.groups_per_step for source in sources)
            opened = partial(open_replay, keys, self.config.output_dir, fresh / count)
            self.replayed = ReplayedGroups(super().make_stream(sources), opened, count)
            return self.replayed
        learns = self.config.learns_from_store
        store = open_store(keys, learns=learns, needs_baselines=needs_baselines(self.config))
        people = WaitingForPeople(keys.review_timeout, command_for(keys), self.progress.warning)
        if learns:
            self.requests = None if keys.sync is None else SyncRequests(self.config.output_dir)
            self.stored = StoredGroups(store, count, self.domains(), people, self.answer_requests)
            return self.stored
        self.explorer = Explorer(store, keys, count, people)
        return super().make_stream(sources)

    def _endpoint(self) -> PolicyEndpoint:
        core = self.core
        policy = ServedPolicy.in_use(core.renderer, core.generation.generate, self.config.sequence_length)
        serve = self.config.serve
        name = serve.name or self.config.exp_name
        return PolicyEndpoint(policy, name=name, host=serve.host, port=serve.port, key=serve.key)

    async def answer_calls(self, endpoint: PolicyEndpoint) -> None:
        """Answer until the run is ended, and take newer weights as they appear."""
        keys = self.config.experience
        await endpoint.begin()
        while True:
            found = await newer_than(self.core.engines.version, None if keys is None else keys.follow)
            async with endpoint.at_rest():
                if await to_its_end(asyncio.create_task(self.take_weights(*found))):
                    self.progress.warning(f"it answers with the weights of step {found[0]} from now on")

    @property
    def learns(self) -> bool:
        """Whether this run changes weights."""
        return self.explorer is None and self.followed is None and self.endpoint is None

    def domains(self) -> dict[str, str]:
        """Return the domain of each tag of prompts."""
        return {}

    def version_before(self, step: int) -> int:
        """Return the version of the weights that a step begins with."""
        return super().version_before(step) if self.explorer is None else self.core.engines.version

    def evaluates(self, step: int) -> bool:
        """Whether there is an evaluation after a step: where checkpoints are evaluated, after each that there is."""
        if self.endpoint is not None:
            return False
        return super().evaluates(step) if self.followed is None or not step else self._found

    def saves(self, step: int) -> bool:
        """Whether there is a checkpoint after a step."""
        if self.followed is not None:
            return self._found
        sync = None if self.stored is None or self.config.experience is None else self.config.experience.sync
        by_pace = sync is not None and sync.style != "dynamic_by_explorer" and step % sync.interval == 0
        return super().saves(step) or by_pace or bool(self.requests and self.requests.pending())

    async def save(self, step: int) -> None:
        """Write a checkpoint, and tell explorers that asked for one."""
        asked = self.requests.pending() if self.requests is not None else []
        await super().save(step)
        if self.requests is not None:
            self.requests.answer(asked)

    async def answer_requests(self) -> None:
        """While nothing is there to learn from, give explorers that ask for them the weights of now."""
        asked = self.requests.pending() if self.requests is not None else []
        if asked and self.unsaved is not None:
            await to_its_end(asyncio.create_task(self.save(self.unsaved)))
        elif asked and self.requests is not None:
            self.requests.answer(asked)

    async def before_rollout(self, step: int) -> bool:
        """Where this run explores, wait until the store has room, and take the newest weights.

        Where it follows another run, wait for the checkpoint of this step instead, and take it, if there is one.
        """
        if self.endpoint is not None:
            await self.answer_calls(self.endpoint)
        if self.followed is not None:
            with self.progress.stage("wait"):
                folder = await self.followed.checkpoint(step)
            self._found = folder is not None
            with self.changing(step):
                if folder is not None:
                    self._found = await to_its_end(asyncio.create_task(self.take_weights(step, folder)))
            return False
        if self.explorer is not None:
            with self.progress.stage("wait"):
                await self.explorer.wait_for_room()
                found = await self.explorer.weights_for(step, self.core.engines.version)
            if found is not None:
                await to_its_end(asyncio.create_task(self.take_weights(*found)))
        return True

    def stored_file(self, step: int) -> Path | None:
        """Return the file that has exactly what a step was given, as that step's, where there is one already."""
        return None if self.stored is None else self.stored.file(step)

    def pass_on(self, groups: Sequence[TrajectoryGroup], step: int, file: Path | None) -> dict[str, float] | None:
        """Put the groups into the store, where this run explores; the step is complete then."""
        if self.explorer is None:
            return None
        with self.changing(step):
            kept = self.explorer.keep(groups, self.core.engines.version, file)
            self.stream.trained()
        if not kept["experience/new_groups"]:
            self.progress.warning(f"step {step}: the store has these groups already; another seed samples others")
        return {**kept, "experience/version": float(self.core.engines.version)}

    async def take_weights(self, version: int, folder: Path) -> bool:
        """Sample from a checkpoint from now on; returns whether it is still there."""
        devices = self.core.devices
        async with self.core.engines.weights_at_rest:
            await devices.begin_update()
            is_there = True
            try:
                await self.core.trainer.load(folder)
            except FileNotFoundError:
                is_there = False  # there is a newer one by now, for the next step
            await devices.begin_weight_sync()
            if is_there:
                with self.progress.stage("weight_sync"):
                    await self.publish(version)
            await devices.end_weight_sync()
        return is_there

    async def ready(self, first: int, resumed: bool) -> None:
        """Give the engines weights, and begin with the store."""
        if self.stored is not None and not resumed:
            self.stored.begin_at(0)
        if self.replayed is not None and not resumed:
            self.replayed.begin_at(0)
        await super().ready(first if self.learns else 0, resumed)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Say in the end that nothing more will come, where others learn from it."""
        try:
            async with super().working():
                yield
            if self.explorer is not None:
                self.explorer.finish()
        finally:
            if self.explorer is not None:
                self.explorer.close()
            if self.endpoint is not None:
                self.endpoint.close()

    async def save_state(self, folder: Path) -> None:
        """Write what was learned, if anything was."""
        if not self.learns:
            return
        await super().save_state(folder)
        if self.stored is not None:
            self.stored.saved()
        if self.replayed is not None:
            self.replayed.saved()

    async def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Load a checkpoint."""
        if self.learns:
            await super().restore(folder, state)
        else:
            self.resume(state)

    def remarks(self) -> Iterator[str]:
        """Say what was read."""
        yield from super().remarks()
        if self.endpoint is not None:
            yield from (f"  {line}" for line in self.endpoint.lines())
        if self.stored is not None and self.stored.is_empty and self.config.experience is not None:
            place = shown_place(self.config.experience)
            yield f"  store     {place} is empty: this run waits for one with mode=explore"
        yield from (f"  {line}" for line in self._written)

    def keep(self, batch: TrainingBatch, step: int) -> None:
        """Store advantages and log-probs of the sampled tokens."""
        store_learned(self.config, batch, step)

    def headline(self) -> str:
        """Return policy, algorithm and batch in a few words."""
        policy, step = Path(self.config.model_path("actor_train")).name, self.config.plan().train.short()
        if self.explorer is not None:
            return f"{policy}, explores, {step}"
        if self.endpoint is not None:
            return f"{policy}, answers"
        if self.followed is not None:
            return f"{policy}, evaluates the checkpoints of another run"
        return f"{policy}, {self.config.adv_estimator}, {step}{' from a store' if self.stored is not None else ''}"
