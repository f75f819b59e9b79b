"""Environments that wait (for a network, a sandbox, another program) without a thread."""

from __future__ import annotations

from typing import Any

from roll.envs.base import Outcome, TextEnv


class AsyncTextEnv(TextEnv):
    """A text environment that awaits: the same as :class:`TextEnv`, with coroutines for what takes long.

    A subclass writes ``async def start(self) -> str`` and ``async def act(self, action) -> Outcome``. Its episodes
    share one event loop with all others, so thousands can wait at the same time; a call that blocks instead of awaiting
    holds up all of them. ``reset`` and ``step`` are coroutines, otherwise as in Gymnasium; ``close`` may be one.
    """

    async def start(self) -> str:  # type: ignore[override]
        """Begin an episode with randomness from ``self.np_random``; return the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must implement async start() -> str")

    async def act(self, action: str) -> Outcome:  # type: ignore[override]
        """Apply one valid action (a name of ``actions``, or free text) and say what it did."""
        raise NotImplementedError(f"{type(self).__name__} must implement async act(action) -> Outcome")

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a new episode; see :meth:`TextEnv.reset`.

        Raises:
            EnvConfigError: An option is unknown.
        """
        member = self._member(options)
        self._seeded(seed)
        observation = await self.start()
        self._draw_luck(member)
        return self._begun(observation)

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """Take the whole response of the policy; see :meth:`TextEnv.step`."""
        name = self._understood(action)
        return self._taken(name, None if name is None else await self.act(name))
