"""Where a text ends a completion, in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roll.generation import GenerationRequest

Decode = Callable[[list[int]], str]
"""Returns the text of tokens, special ones written out."""

_SPARE_TOKENS = 4
"""How many more tokens are read than a text can have: the first ones may lose a space, or half a character."""


class StopStrings:
    """Finds the token that completes a text. Engines are given tokens, so texts are looked for here, for all alike.

    Args:
        decode: Of the policy's tokenizer; ``None`` if nobody asks for texts.
    """

    def __init__(self, decode: Decode | None) -> None:
        self._decode = decode

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request whose texts cannot be looked for.

        Raises:
            ValueError: A text is empty, or there is no tokenizer.
        """
        texts = request.sampling.stop_strings
        if texts and self._decode is None:
            raise ValueError(
                f"request {request.request_id!r} ends at texts {list(texts)}, and the engine was given no tokenizer: "
                "make it with decode=..., or use stop_token_ids"
            )
        if "" in texts:
            raise ValueError(f"request {request.request_id!r}: an empty text cannot end a completion")

    def end(self, tokens: Sequence[int], texts: tuple[str, ...], known: int = 0) -> int | None:
        """Return how many tokens there are when one of ``texts`` is complete; ``None`` while none is.

        Args:
            tokens: The completion so far.
            texts: What ends it.
            known: So many tokens were looked at before, and complete no text.
        """
        if not texts or self._decode is None:
            return None
        # Of a byte or more each, so many tokens hold any of the texts.
        most = max(len(text.encode()) for text in texts) + _SPARE_TOKENS
        for count in range(known + 1, len(tokens) + 1):
            written = self._decode(list(tokens[max(count - most, 0) : count]))
            if any(text in written for text in texts):
                return count
        return None
