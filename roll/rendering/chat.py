"""Chat conversations as tokens: the first prompt, and the tokens that extend it turn by turn.

What a model sampled is never tokenised again. The next prompt is the previous prompt, the sampled tokens as they came,
and a *bridge*: the end of the assistant's turn, the new messages, and the generation prompt. The bridge is cut out of
the model's own chat template, and only used where the template itself would have written the same text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from jinja2 import TemplateError

from roll.rendering.encoding import THINKING_TAGS, PromptEncoder

Message = Mapping[str, str]

_REPLY = "Aq7reply"
_USER: dict[str, str] = {"role": "user", "content": "Uq7first"}
_SYSTEM: dict[str, str] = {"role": "system", "content": "Sq7rules"}
_OBSERVATIONS = ("#.@ $", "  indented\n\nlines \n", "{x} {{ y }} [INST] <b>&amp; {% z %} <answer>", "")
_REPLIES = (_REPLY, "<think>\nplan\n</think>\n\n<answer>Up</answer>", " padded \n", "")

# Boards come back, in the other episodes of a group and when an action changes nothing; long texts seldom do.
_CACHED_BRIDGES = 512
_CACHED_LENGTH = 2000


class ChatRenderer:
    """Renders the conversations of one tokenizer and chat template.

    Attributes:
        stop_token_ids: Tokens that end an assistant's turn: the one the template writes there, then the tokenizer's
            end of sequence, then those given.
        bridge_problem: Why conversations with this template can never be extended in place; ``None`` where they can
            (a single turn may still need a new rendering, see :meth:`next_ids`).
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        enable_thinking: bool | None = None,
        history: Literal["template", "keep"] = "template",
        template_kwargs: Mapping[str, Any] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """Derive the bridge from the template and check it on probe conversations (some milliseconds).

        Args:
            tokenizer: A Hugging Face tokenizer with a chat template.
            enable_thinking: Passed to the template when set.
            history: ``"template"``: a turn is extended only where the template would have written the same text.
                ``"keep"``: sampled tokens always stay in the history, also where the template would drop or rewrite
                them (the thinking of earlier turns).
            template_kwargs: Further variables of the template.
            stop_token_ids: Further tokens that end a turn.

        Raises:
            ValueError: If the tokenizer has no chat template or the template cannot render a user message.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                f"{type(tokenizer).__name__} has no chat template, so messages cannot become a prompt: use an instruct "
                "model, or set tokenizer.chat_template."
            )
        self._tokenizer = tokenizer
        self._keep = history == "keep"
        self._kwargs = dict(template_kwargs or {})
        if enable_thinking is not None:
            self._kwargs["enable_thinking"] = enable_thinking
        self._base = self._probe_base()
        self._base_text = self._render(self._base)
        scaffolding = self._render([*self._base, {"role": "assistant", "content": _REPLY}, _USER], generate=False)
        self._encoder = PromptEncoder(tokenizer, scaffolding)
        self._close_id = self._find_close()
        eos = getattr(tokenizer, "eos_token_id", None)
        stops = [self._close_id, eos, *stop_token_ids]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(stop for stop in stops if stop is not None))
        self.bridge_problem: str | None = self._verify()
        self._recent_bridge = functools.lru_cache(_CACHED_BRIDGES)(self._bridge)

    def render_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the whole conversation and the generation prompt as token ids.

        Control tokens spelled out in a message become ordinary text tokens; ``<think>`` tags of assistant messages are
        kept because templates act on them.
        """
        guarded = [
            {
                **message,
                "content": self._encoder.guard(
                    message["content"], THINKING_TAGS if message["role"] == "assistant" else frozenset()
                ),
            }
            for message in messages
        ]
        return self._encoder.encode(self._render(guarded))

    def initial_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the first prompt of an episode, generation prompt included."""
        return self.render_ids(messages)

    def next_ids(self, completion_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int] | None:
        """Return the tokens to append after the previous prompt and ``completion_ids``.

        Args:
            completion_ids: What was sampled, with or without a stop token at the end.
            new_messages: What follows it; no assistant messages.

        Returns:
            The rest of the assistant's turn (its closing token if it was not sampled), the new messages and the
            generation prompt. ``None`` if the template would have written the assistant's turn in another way (thinking
            stripped, text trimmed): render the whole conversation anew and start a new training sample.
        """
        if self.bridge_problem is not None:
            return None
        length = len(completion_ids) + sum(len(message["content"]) for message in new_messages)
        find = self._bridge if length > _CACHED_LENGTH else self._recent_bridge
        bridge = find(tuple(completion_ids), tuple(tuple(message.items()) for message in new_messages))
        return None if bridge is None else list(bridge)

    def _bridge(
        self, completion_ids: tuple[int, ...], new_messages: tuple[tuple[tuple[str, str], ...], ...]
    ) -> list[int] | None:
        """Return what :meth:`next_ids` does, of arguments that can be looked up."""
        ended = bool(completion_ids) and completion_ids[-1] in self.stop_token_ids
        if ended and completion_ids[-1] != self._close_id and not self._keep:
            return None
        guarded = [
            {name: self._encoder.guard(value) if name == "content" else value for name, value in message}
            for message in new_messages
        ]
        text = self._bridge_text(self.decode(completion_ids), guarded)
        if text is None:
            return None
        ids = self._encoder.encode(text)
        return ids[1:] if ended else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled tokens without the stop token at their end."""
        if ids and ids[-1] in self.stop_token_ids:
            ids = ids[:-1]
        return self._encoder.decode(ids)

    def _render(self, messages: Sequence[Message], generate: bool = True) -> str:
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generate, **self._kwargs
        )
        return str(text)

    def _bridge_text(self, reply: str, new_messages: Sequence[Message]) -> str | None:
        """Return the template's text after ``reply``, or ``None`` if it does not leave what came before as it was.

        One short conversation is rendered, whatever the length of the real one; that this is enough is what
        :meth:`_verify` establishes.
        """
        if self._keep:
            text = self._render([*self._base, {"role": "assistant", "content": _REPLY}, *new_messages])
            start = text.find(_REPLY)
            return text[start + len(_REPLY) :] if start >= 0 else None
        text = self._render([*self._base, {"role": "assistant", "content": reply}, *new_messages])
        before = self._base_text + reply
        if not text.startswith(before):
            # Templates may write today's date at the top; it can change during a run.
            self._base_text = self._render(self._base)
            before = self._base_text + reply
            if not text.startswith(before):
                return None
        rest = text[len(before) :]
        # An empty reply may be left out by a template together with its turn.
        return rest if self._encoder.control_at_start(rest) == self._close_id else None

    def _probe_base(self) -> list[dict[str, str]]:
        """Return the shortest conversation that the template accepts."""
        try:
            self._render([_USER])
        except TemplateError:
            try:
                self._render([_SYSTEM, _USER])
            except TemplateError as error:
                raise ValueError(f"The chat template cannot render a user message: {error}") from error
            return [_SYSTEM, _USER]
        return [_USER]

    def _find_close(self) -> int | None:
        text = self._render([*self._base, {"role": "assistant", "content": _REPLY}, _USER])
        start = text.find(_REPLY)
        return self._encoder.control_at_start(text[start + len(_REPLY) :]) if start >= 0 else None

    def _verify(self) -> str | None:
        """Check the bridge against whole renderings of probe conversations; return what is wrong, if anything."""
        if self._close_id is None:
            return "the template does not end an assistant's turn with a control token right after its text"
        if not self._encoder.check_piecewise([self._render(history) for history, _ in self._probes()]):
            return "the tokenizer encodes a text differently when it is cut at control tokens"
        for history, replies in self._probes():
            prompt = self._render(history)
            for reply in replies:
                for observation in _OBSERVATIONS:
                    new = {"role": "user", "content": observation}
                    bridge = self._bridge_text(reply, [new])
                    if bridge is None:
                        if reply == _REPLY:
                            return "the template writes an assistant's turn in the history unlike its generation prompt"
                        continue
                    whole = self._render([*history, {"role": "assistant", "content": reply}, new])
                    if not (whole.endswith(reply + bridge) if self._keep else whole == prompt + reply + bridge):
                        return (
                            f"the template's text for a turn depends on more than that turn ({len(history)} messages)"
                        )
        return None

    def _probes(self) -> Iterator[tuple[list[dict[str, str]], tuple[str, ...]]]:
        """Yield conversations of one to three user turns, with and without system message, and replies to try."""
        replies = (_REPLY,) if self._keep else _REPLIES
        heads: list[list[dict[str, str]]] = [self._base]
        if self._base == [_USER] and self._accepts([_SYSTEM, _USER]):
            heads.append([_SYSTEM, _USER])
        for head in heads:
            history = list(head)
            yield history, replies
            for past in (_REPLIES[0], _REPLIES[1]):
                history = [*history, {"role": "assistant", "content": past}, {"role": "user", "content": "next {0}"}]
                yield history, replies

    def _accepts(self, messages: Sequence[Message]) -> bool:
        try:
            self._render(messages)
        except TemplateError:
            return False
        return True
