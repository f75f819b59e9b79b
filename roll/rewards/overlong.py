"""Soft punishment of responses that come near their limit (DAPO, section 3.4)."""

from __future__ import annotations

from roll.rewards.base import RewardRequest, Verdict
from roll.rewards.registry import register_verifier


@register_verifier("overlong")
class Overlong:
    """Scores 0 up to ``max_length - buffer`` tokens, then falls linearly to ``-penalty`` at ``max_length``.

    With L tokens, limit M and buffer B: ``clip((M - B - L) / B, -1, 0) * penalty``.

    Args:
        buffer: Width of the slope in tokens; ``None`` takes a fifth of the limit.
        penalty: Size of the punishment at the limit.
        max_length: The limit in tokens; ``None`` takes the one the response was sampled under.
    """

    def __init__(self, buffer: int | None = None, penalty: float = 1.0, max_length: int | None = None) -> None:
        if buffer is not None and buffer < 1:
            raise ValueError(f"buffer={buffer}: must be at least 1 token")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length={max_length}: must be at least 1 token")
        if buffer is not None and max_length is not None and buffer > max_length:
            raise ValueError(f"buffer={buffer} is longer than max_length={max_length}")
        if penalty < 0:
            raise ValueError(f"penalty={penalty}: must not be negative, it is subtracted")
        self._buffer = buffer
        self._penalty = penalty
        self._max_length = max_length

    async def __call__(self, request: RewardRequest) -> Verdict:
        """Grade the length alone."""
        limit = self._max_length if self._max_length is not None else request.max_response_tokens
        if limit < 1:
            return Verdict(None, error="overlong needs max_response_tokens, or its option max_length")
        buffer = self._buffer if self._buffer is not None else max(1, limit // 5)
        if buffer > limit:
            return Verdict(None, error=f"overlong: the buffer of {buffer} tokens is longer than the limit of {limit}")
        share = min(0.0, max(-1.0, (limit - buffer - request.response_tokens) / buffer))
        return Verdict(self._penalty * share, {"overlong": float(share < 0)})
