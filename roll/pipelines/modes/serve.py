"""``mode: serve``: it answers whoever asks, with the newest weights of the run that it follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from roll.gateway.policy_endpoint import PolicyEndpoint
from roll.gateway.served import ServedPolicy
from roll.pipelines.experience.following import newer_than
from roll.pipelines.modes.mode import Mode
from roll.pipelines.modes.weights import take_weights
from roll.pipelines.run.interrupts import to_its_end
from roll.pipelines.sampling.stream import Groups


class Serve(Mode):
    """Answers for its policy until the run is ended."""

    learns = False
    _endpoint: PolicyEndpoint

    def groups(self, sampled: Callable[[], Groups], per_step: int) -> Groups:
        """Return what samples, which nothing asks for groups."""
        core, serve = self.run.core, self.config.serve
        policy = ServedPolicy.in_use(core.renderer, core.generation.generate, self.config.sequence_length)
        name = serve.name or self.config.exp_name
        self._endpoint = PolicyEndpoint(policy, name=name, host=serve.host, port=serve.port, key=serve.key)
        return sampled()

    async def before_rollout(self, step: int) -> bool:
        """Answer until the run is ended, and take newer weights as they appear."""
        keys, engines = self.config.experience, self.run.core.engines
        await self._endpoint.begin()
        while True:
            found = await newer_than(engines.version, None if keys is None else keys.follow)
            async with self._endpoint.at_rest():
                if await to_its_end(asyncio.create_task(take_weights(self.run, *found))):
                    words = f"it answers with the weights of step {found[0]} from now on"
                    self.run.progress.warning(words)

    def evaluates(self, step: int, due: bool) -> bool:
        """Return false: it only answers."""
        return False

    def close(self) -> None:
        """Answer nobody any longer."""
        self._endpoint.close()

    def remarks(self) -> Iterator[str]:
        """Say what a person needs to ask."""
        yield from (f"  {line}" for line in self._endpoint.lines())

    def headline(self, policy: str, step: str) -> str:
        """Return what it does."""
        return f"{policy}, answers"
