"""A call as the engine takes it: where its conversation goes on from, the prompt, and how its answers are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roll.gateway.answer_form import grammar_of
from roll.gateway.errors import invalid
from roll.gateway.records import Answer, Asked, ChatMessage, Finish
from roll.gateway.served import ServedPolicy
from roll.gateway.speech import Speech
from roll.gateway.tree import Call, ConversationTree, Match, Plain
from roll.generation import Completion, SamplingParams
from roll.rendering import ConversationError, spoken


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call as the engine takes it.

    Attributes:
        speech: Describes and reads the calls of functions.
        match: Where the conversation stands among those that were recorded.
        parent: The call whose tokens the prompt goes on from; ``None`` where it was rendered as a whole.
        prompt_ids: The whole prompt.
        added_ids: What of it is new since the parent.
        plain: The conversation as a renderer takes it.
        said: What of it is new since the parent.
        sampling: How answers are drawn.
        asked: The call.
        begun: What every answer begins with, which is not sampled.
    """

    speech: Speech
    match: Match
    parent: Call | None
    prompt_ids: list[int]
    added_ids: list[int]
    plain: list[Plain]
    said: list[Plain]
    sampling: SamplingParams
    asked: Asked
    begun: str

    @classmethod
    def of(cls, asked: Asked, policy: ServedPolicy, tree: ConversationTree) -> Prepared:
        """Find where a conversation goes on from, and make its prompt.

        Raises:
            ApiError: The chat template refuses it, or it is too long.
        """
        if not asked.messages:
            raise invalid("A conversation has at least one message.", "messages")
        speech = Speech.of(policy.renderer, asked.tools)
        match = tree.match(asked.messages, asked.tools)
        plain = speech.plain(asked.messages, tree)
        try:
            bridge, said = _bridge(speech, match, asked.messages, plain)
            added = speech.renderer.render_ids(plain) if bridge is None else bridge
            begun = speech.begun(asked.must_call)
            added = [*added, *speech.renderer.written_ids(begun)]
        except ConversationError as error:
            raise invalid(str(error), "messages") from error
        parent = None if bridge is None else match.call
        prompt = list(added) if parent is None else [*parent.all_ids, *added]
        sampling = replace(_sampling(asked, policy, len(prompt)), grammar=_grammar(asked, speech))
        return cls(speech, match, parent, prompt, added, plain, said if parent else plain, sampling, asked, begun)

    def answer(self, completion: Completion) -> tuple[Answer, str]:
        """Return a completion as a client gets it, and its whole text."""
        renderer = self.speech.renderer
        # A call that the answer was made to begin with is part of what it says, and not of what was sampled.
        response = self.begun + spoken(completion, renderer)
        stops = [(place, stop) for stop in self.asked.stop if (place := response.find(stop)) >= 0]
        place, stopped_by = min(stops, default=(len(response), None))
        text, calls = self.speech.read(response[:place])
        calls = calls[: self.asked.most_calls]
        finish: Finish = "length" if completion.finish_reason == "length" else "tool_calls" if calls else "stop"
        tokens = [renderer.decode([token]) for token in completion.token_ids] if self.asked.logprobs else ()
        return Answer(ChatMessage("assistant", text, calls), finish, completion, stopped_by, tokens), response

    def call(self, number: int, answer: Answer, response: str, seconds: dict[str, float]) -> Call:
        """Return what is recorded of an answer."""
        action = ", ".join(call.name for call in answer.message.calls)
        return Call(
            number, self.parent, self.added_ids, answer.completion, self.plain, self.said, response, action, seconds
        )


def _bridge(
    speech: Speech, match: Match, messages: Sequence[ChatMessage], plain: list[Plain]
) -> tuple[list[int] | None, list[Plain]]:
    """Return the tokens between a recorded answer and what follows it, and what that is; no tokens where they end."""
    parent, rest = match.call, messages[match.length :]
    if parent is None or not rest or any(message.role == "assistant" for message in rest):
        return None, plain
    said: list[Plain] = [{"role": message.role, "content": message.text} for message in rest]
    said = list(speech.shown(said))
    if any(speech.renderer.role_problem(role) for role in {message["role"] for message in said} - {"user", "tool"}):
        return None, plain
    history = None if parent.is_continued else parent.history
    return speech.renderer.next_ids(parent.completion.token_ids, said, history), said


def _grammar(asked: Asked, speech: Speech) -> str:
    """Return what answers are held to, empty where they may be any text.

    Raises:
        ApiError: Nothing can be held to it.
    """
    # An answer that has to call a function is begun as that call, and not in the form of other answers.
    if asked.schema is None or asked.must_call is not None:
        return ""
    return grammar_of(asked.schema, speech.marks, asked.schema_param)


def _sampling(asked: Asked, policy: ServedPolicy, prompt: int) -> SamplingParams:
    """Return how the answers of a call are drawn.

    Raises:
        ApiError: There is no room for an answer.
    """
    room = policy.sequence_length - prompt
    if room < 1:
        raise invalid(
            f"This model's maximum context length is {policy.sequence_length} tokens. However, your messages resulted "
            f"in {prompt} tokens. Please reduce the length of the messages, or raise sequence_length.",
            "messages",
            "context_length_exceeded",
        )
    base = policy.sampling
    longest = min(room, base.max_new_tokens, asked.max_tokens or base.max_new_tokens)
    drawn = {} if policy.overrules else {
        name: value
        for name in ("temperature", "top_p", "top_k")
        if (value := getattr(asked, name)) is not None
    }  # fmt: skip
    stops = tuple(dict.fromkeys((*base.stop_strings, *asked.stop)))
    sampling = replace(base, stop_strings=stops, **drawn)
    return sampling.within(longest, policy.renderer.stop_token_ids)
