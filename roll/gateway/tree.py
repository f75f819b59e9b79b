"""The calls of one episode as a tree: which call goes on from the tokens of which other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roll.gateway.records import ChatMessage
from roll.generation import Completion

Plain = Mapping[str, str]
"""A message as a renderer takes it: role and content, calls written out in the content."""


@dataclass(slots=True, eq=False)
class Call:
    """One sampled answer.

    Attributes:
        number: In the order in which calls came.
        parent: The call whose prompt and completion this one's prompt begins with; ``None`` where the conversation was
            rendered as a whole.
        added_ids: What the prompt has behind them: all of it without a parent.
        completion: What was sampled.
        history: The conversation before this answer.
        said: What of it is new since the parent.
        response: The answer as text.
        action: Functions that it calls.
        seconds: Wall time by phase.
        children: Calls that go on from here, in the order of their numbers.
    """

    number: int
    parent: Call | None
    added_ids: list[int]
    completion: Completion
    history: list[Plain]
    said: list[Plain]
    response: str
    action: str
    seconds: dict[str, float] = field(default_factory=dict)
    children: list[Call] = field(default_factory=list)

    @property
    def prompt_ids(self) -> list[int]:
        """The whole prompt."""
        before = [] if self.parent is None else self.parent.all_ids
        return [*before, *self.added_ids]

    @property
    def all_ids(self) -> list[int]:
        """The whole prompt and what was sampled behind it."""
        parts: list[Sequence[int]] = []
        call: Call | None = self
        while call is not None:
            parts += [call.completion.token_ids, call.added_ids]
            call = call.parent
        return [token for part in reversed(parts) for token in part]

    @property
    def is_continued(self) -> bool:
        """Whether all before it was sampled here or said to it: nothing was written in the policy's name."""
        call = self
        while call.parent is not None:
            call = call.parent
        return all(message["role"] != "assistant" for message in call.history)


@dataclass(frozen=True, slots=True)
class Match:
    """Where a conversation stands in the tree.

    Attributes:
        call: The call whose answer is the last of the policy's that it has; ``None`` where none was recorded so.
        length: Messages up to that answer.
        digest: Stands for the whole conversation.
    """

    call: Call | None
    length: int
    digest: bytes


class ConversationTree:
    """Finds by their content which recorded call a conversation goes on from. Knows no tokens and no templates."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._ends: dict[bytes, list[Call]] = {}
        self._texts: dict[bytes, str] = {}

    def match(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> Match:
        """Return the longest beginning of a conversation that ends with a recorded answer.

        Everything before the answer must be as it was when it was sampled, tools included: an answer whose
        history was changed was sampled behind other tokens. Of equal answers to the same conversation the first is
        taken that nothing goes on from yet.
        """
        digest = _root(tools)
        found, length = None, 0
        for number, message in enumerate(messages, 1):
            digest = message.digest(digest)
            if message.role == "assistant" and digest in self._ends:
                found, length = self._ends[digest], number
        if found is None:
            return Match(None, 0, digest)
        return Match(next((call for call in found if not call.children), found[0]), length, digest)

    def add(self, call: Call, asked: Match, answer: ChatMessage) -> None:
        """Record a call.

        Args:
            call: With everything that is known of it.
            asked: Where its conversation stood.
            answer: As the client gets it, and sends it back.
        """
        self.calls.append(call)
        if call.parent is not None:
            call.parent.children.append(call)
            call.parent.children.sort(key=lambda child: child.number)
        self._ends.setdefault(answer.digest(asked.digest), []).append(call)
        self._texts[answer.digest(b"")] = call.response

    def text_of(self, message: ChatMessage) -> str | None:
        """Return how an answer was written that was recorded, wherever it stands now."""
        return self._texts.get(message.digest(b""))

    def branches(self) -> Iterator[list[Call]]:
        """Yield calls that go on from one another, every call once; the branch with the last call comes last.

        Where several calls go on from the same one, the first of them continues its branch, and each other one begins
        a branch of its own.
        """
        begun = [call for call in self.calls if call.parent is None or call.parent.children[0] is not call]
        branches = []
        for call in begun:
            branch = [call]
            while branch[-1].children:
                branch.append(branch[-1].children[0])
            branches.append(branch)
        yield from sorted(branches, key=lambda branch: branch[-1].number)


def _root(tools: Sequence[Mapping[str, Any]]) -> bytes:
    written = json.dumps(list(tools), sort_keys=True)
    return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).digest()
