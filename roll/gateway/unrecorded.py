"""Answers calls without keeping anything of them: a policy that is used, and not trained."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import replace

from roll.gateway.recorder import Recorder
from roll.gateway.records import Answers, Asked
from roll.gateway.served import Name, ServedPolicy
from roll.generation import Completion, GenerationRequest


class Unrecorded:
    """Answers every call by itself; a call with a seed is answered the same every time.

    Args:
        policy: Whose answers they are.
    """

    def __init__(self, policy: ServedPolicy) -> None:
        self._policy = policy
        self._numbers = itertools.count()

    async def ask(self, asked: Asked) -> Answers:
        """Answer a call; see :class:`roll.gateway.records.Ask`."""
        number = next(self._numbers)

        async def generate(request: GenerationRequest) -> Completion:
            named = replace(request, request_id=f"call-{number}/{request.request_id}", session=None)
            return await self._policy.generate(named)

        noise = 0 if asked.seed is not None else secrets.randbits(63)
        return await Recorder(replace(self._policy, generate=generate), Name(noise, "call")).ask(asked)
