"""Chat conversations as tokens: the first prompt, and the tokens that extend it turn by turn.

What a model sampled is never tokenised again. The next prompt is the previous prompt, the sampled tokens as they came,
and a *bridge*: the end of the assistant's turn, the new messages, and the generation prompt. The bridge is cut out of
the model's own chat template, and only used where the template itself would have written the same text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from roll.rendering.encoding import THINKING_TAGS, PromptEncoder
from roll.rendering.errors import ChatTemplateError, ConversationError
from roll.rendering.probes import OBSERVATIONS, REPLIES, REPLY, SYSTEM, USER, histories, new_messages

Message = Mapping[str, str]

# Boards come back, in the other episodes of a group and when an action changes nothing; long texts seldom do.
_CACHED_BRIDGES = 512
_CACHED_LENGTH = 2000


class ChatRenderer:
    """Renders the conversations of one tokenizer and chat template.

    Attributes:
        stop_token_ids: Tokens that end an assistant's turn: the one the template writes there, then the tokenizer's
            end of sequence.
        folds_system: Whether the template takes no system message. What it would say is then put before the first
            message of the user, with an empty line between.
        turn_problem: Why no conversation can have a second turn of the user; ``None`` where it can.
        bridge_problem: Why conversations with this template can never be extended in place; ``None`` where they can
            (a single turn may still need a new rendering, see :meth:`next_ids`).
    """

    text_only = False

    def __init__(
        self,
        tokenizer: Any,
        *,
        enable_thinking: bool | None = None,
        history: Literal["template", "keep"] = "template",
        tools: Sequence[Mapping[str, Any]] = (),
        encoder: PromptEncoder | None = None,
    ) -> None:
        """Derive the bridge from the template and check it on probe conversations (some milliseconds).

        Args:
            tokenizer: A Hugging Face tokenizer with a chat template.
            enable_thinking: Passed to the template when set.
            history: ``"template"``: a turn is extended only where the template would have written the same text.
                ``"keep"``: sampled tokens always stay in the history, also where the template would drop or rewrite
                them (the thinking of earlier turns).
            tools: Descriptions of functions that may be called, for the template.
            encoder: Of the same tokenizer and template, where there is one: what a template writes around messages does
                not depend on tools.

        Raises:
            ChatTemplateError: If the tokenizer has no chat template, or the template cannot show what the user says, or
                writes control tokens into what the assistant says.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise ChatTemplateError(
                f"{type(tokenizer).__name__} has no chat template, so messages cannot become a prompt.",
                "use an instruct model, or name a template: actor_train.data_args.template=user_assistant for a base "
                "model, chatml, qwen2_5, llama3, or a file of your own.",
            )
        self._tokenizer = tokenizer
        self._keep = history == "keep"
        self._kwargs: dict[str, Any] = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        if tools:
            self._kwargs["tools"] = list(tools)
        self._again = functools.partial(type(self), tokenizer, enable_thinking=enable_thinking, history=history)
        self._tool_renderers: dict[str, ChatRenderer | None] = {}
        self.role_problem = functools.cache(self._find_role_problem)
        self.folds_system = False
        self._base = self._probe_base()
        self._base_text = self._render(self._base)
        if USER["content"] not in self._base_text:
            raise _unusable("it never shows what the user says; it may be for messages of text and pictures")
        self.folds_system = not self._shows_system()
        self.turn_problem, after = self._probe_turn()
        self._encoder = encoder or PromptEncoder(tokenizer, after or self._base_text)
        self._close_id = self._find_close(after)
        eos = getattr(tokenizer, "eos_token_id", None)
        stops = [self._close_id, eos]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(stop for stop in stops if stop is not None))
        # What follows a reply, by the roles of the messages; checked when such messages come for the first time.
        self._recent_problem = functools.cache(self._check_turn)
        self._recent_bridge = functools.lru_cache(_CACHED_BRIDGES)(self._bridge_of_items)
        problem = self._check_tokens()
        self.bridge_problem: str | None = self.turn_problem or problem or self._recent_problem(("user",))

    def render_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the whole conversation and the generation prompt as token ids.

        Control tokens spelled out in a message become ordinary text tokens; ``<think>`` tags of assistant messages are
        kept because templates act on them.

        Raises:
            ConversationError: If the template refuses such a conversation, or a message has no tokens.
        """
        return self._encoder.encode(self._render(self._guarded(messages)))

    def initial_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the first prompt of an episode, generation prompt included."""
        return self.render_ids(messages)

    def next_ids(
        self,
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        history: Sequence[Message] | None = None,
    ) -> list[int] | None:
        """Return the tokens to append after the previous prompt and ``completion_ids``.

        Args:
            completion_ids: What was sampled, with or without a stop token at the end.
            new_messages: What follows it; no assistant messages.
            history: The conversation before it. Needed once a turn was rendered anew: what the template kept then
                (thinking between calls of tools) it may still drop later.

        Returns:
            The rest of the assistant's turn (its closing token if it was not sampled), the new messages and the
            generation prompt. ``None`` if the template would have written the assistant's turn in another way (thinking
            stripped, text trimmed), or writes such messages in a way that depends on what came before: render the whole
            conversation anew and start a new training sample.
        """
        if self.bridge_problem is not None:
            return None
        if history is not None and not self._keep:
            return self._bridge(tuple(completion_ids), [dict(message) for message in new_messages], history)
        length = len(completion_ids) + sum(len(message["content"]) for message in new_messages)
        find = self._bridge_of_items if length > _CACHED_LENGTH else self._recent_bridge
        bridge = find(tuple(completion_ids), tuple(tuple(message.items()) for message in new_messages))
        return None if bridge is None else list(bridge)

    def _bridge_of_items(
        self, completion_ids: tuple[int, ...], new_messages: tuple[tuple[tuple[str, str], ...], ...]
    ) -> list[int] | None:
        """Return what :meth:`next_ids` does without a history, of arguments that can be looked up."""
        return self._bridge(completion_ids, [dict(message) for message in new_messages])

    def _bridge(
        self,
        completion_ids: tuple[int, ...],
        new_messages: Sequence[Message],
        history: Sequence[Message] | None = None,
    ) -> list[int] | None:
        """Return what :meth:`next_ids` does."""
        ended = bool(completion_ids) and completion_ids[-1] in self.stop_token_ids
        if ended and completion_ids[-1] != self._close_id and not self._keep:
            return None
        guarded, reply = self._guarded(new_messages), self.decode(completion_ids)
        try:
            if history is not None:
                text = self._text_after(self._guarded(history), reply, guarded)
            elif self._recent_problem(tuple(message["role"] for message in guarded)) is None:
                text = self._bridge_text(reply, guarded)
            else:
                text = None
        except ConversationError:
            return None
        if text is None:
            return None
        ids = self._encoder.encode(text)
        return ids[1:] if ended else ids

    def _guarded(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        """Return messages whose contents cannot become control tokens."""
        return [
            {
                **message,
                "content": self._encoder.guard(
                    message["content"], THINKING_TAGS if message["role"] == "assistant" else frozenset()
                ),
            }
            for message in messages
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled tokens without the stop token at their end."""
        if ids and ids[-1] in self.stop_token_ids:
            ids = ids[:-1]
        return self._encoder.decode(ids)

    def written_ids(self, text: str) -> list[int]:
        """Return the tokens of a text that an answer is made to begin with, control tokens included."""
        return self._encoder.encode(text)

    def render_text(
        self, messages: Sequence[Mapping[str, Any]], *, generate: bool, tools: Sequence[Any] | None = None
    ) -> str:
        """Return the template's text of messages whose texts were guarded (:attr:`encoder`).

        Args:
            messages: A conversation; messages may have further keys that the template reads (``tool_calls``).
            generate: Whether the generation prompt follows.
            tools: Descriptions of functions that may be called.

        Raises:
            ConversationError: If the template refuses the messages, or breaks on them.
        """
        return self._render(messages, generate, tools)

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> ChatRenderer | None:
        """Return a renderer whose prompts describe tools as the template does, ``None`` where it does not.

        Args:
            schemas: JSON schemas of functions in OpenAI's form.
        """
        key = json.dumps(schemas, sort_keys=True)
        if key not in self._tool_renderers:
            self._tool_renderers[key] = self._describing(schemas)
        return self._tool_renderers[key]

    def _describing(self, schemas: Sequence[Mapping[str, Any]]) -> ChatRenderer | None:
        # A server may describe its tools as it likes.
        guarded = json.loads(self._encoder.guard(json.dumps(schemas, ensure_ascii=False)))
        try:
            renderer = self._again(tools=guarded, encoder=self._encoder)
        except ChatTemplateError:
            return None
        text = renderer.render_text(self._base, generate=False)
        return renderer if all(schema["function"]["name"] in text for schema in schemas) else None

    def written_call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the text, without control tokens, in which the template writes the call of a tool, if it does."""
        function = {"name": name, "arguments": dict(arguments)}
        call = {"id": "call12345", "type": "function", "function": function}
        try:
            text = self._render([*self._base, {"role": "assistant", "content": "", "tool_calls": [call]}], False)  # type: ignore[dict-item]
        except ConversationError:
            return None
        begun = text.startswith(self._base_text)
        written = text[len(self._base_text) :] if begun else text.rpartition(USER["content"])[2]
        return self._encoder.without_controls(written).strip()

    def _find_role_problem(self, role: str) -> str | None:
        """Return why a message of ``role`` after a reply is not shown as one, if it is not."""
        said = [*self._base, {"role": "assistant", "content": REPLY}]
        try:
            text = self._render([*said, {"role": role, "content": USER["content"] + "2"}])
        except ConversationError as error:
            return error.message
        if USER["content"] + "2" not in text:
            return "the chat template leaves such messages out"
        try:
            same = text == self._render([*said, {"role": "assistant", "content": USER["content"] + "2"}])
        except ConversationError:
            return None
        return "the chat template writes such messages as the assistant's" if same else None

    @property
    def encoder(self) -> PromptEncoder:
        """What makes tokens of the template's text."""
        return self._encoder

    def _render(self, messages: Sequence[Message], generate: bool = True, tools: Sequence[Any] | None = None) -> str:
        """Return the template's text.

        Raises:
            ConversationError: If the template refuses the messages, or breaks on them.
        """
        if self.folds_system:
            messages = folded(messages)
        with_tools = {} if tools is None else {"tools": list(tools)}
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generate, **{**self._kwargs, **with_tools}
            )
        except Exception as error:  # a template is a program that comes with a model
            raise ConversationError.of(messages, error) from error
        return str(text)

    def _bridge_text(self, reply: str, new_messages: Sequence[Message]) -> str | None:
        """Return the template's text after ``reply``, or ``None`` if it does not leave what came before as it was.

        One short conversation is rendered, whatever the length of the real one; that this is enough is what
        :meth:`_check_turn` establishes.
        """
        if self._keep:
            text = self._render([*self._base, {"role": "assistant", "content": REPLY}, *new_messages])
            start = text.find(REPLY)
            return text[start + len(REPLY) :] if start >= 0 else None
        turn = [*self._base, {"role": "assistant", "content": reply}, *new_messages]
        text = self._render(turn)
        rest = self._rest(text, self._base_text + reply)
        if rest is None:
            # Templates may write today's date at the top; it can change during a run.
            self._base_text = self._render(self._base)
            rest = self._rest(text, self._base_text + reply)
            if rest is None:
                return None
        if "</think>" not in reply and all(message["role"] == "user" for message in new_messages):
            return rest
        # Thinking that stays while results of tools come in may be dropped when the user speaks again.
        later = self._render([*turn, {"role": "assistant", "content": REPLY}, USER])
        return rest if later.startswith(text) else None

    def _text_after(self, history: Sequence[Message], reply: str, new_messages: Sequence[Message]) -> str | None:
        """Return what :meth:`_bridge_text` does, from renderings of the whole conversation."""
        text = self._render([*history, {"role": "assistant", "content": reply}, *new_messages])
        return self._rest(text, self._render(history) + reply)

    def _rest(self, text: str, before: str) -> str | None:
        """Return the end of ``text`` if it begins with ``before`` and goes on with the token that ends a turn."""
        if not text.startswith(before):
            return None
        rest = text[len(before) :]
        # An empty reply may be left out by a template together with its turn.
        return rest if self._encoder.control_at_start(rest) == self._close_id else None

    def _probe_base(self) -> list[dict[str, str]]:
        """Return the shortest conversation that the template accepts."""
        for base in ([USER], [SYSTEM, USER]):
            try:
                self._render(base)
            except ConversationError as error:
                problem = error
            else:
                return base
        raise _unusable(f"it cannot render a message of the user: {problem.message}") from problem

    def _shows_system(self) -> bool:
        try:
            return SYSTEM["content"] in self._render([SYSTEM, USER])
        except ConversationError:
            return False

    def _probe_turn(self) -> tuple[str | None, str | None]:
        """Return why there can be no second turn of the user, and the text of a conversation with one."""
        try:
            return None, self._render([*self._base, {"role": "assistant", "content": REPLY}, USER])
        except ConversationError as error:
            return error.message, None

    def _find_close(self, after: str | None) -> int | None:
        """Return the control token that ends an assistant's turn in ``after``, the probe conversation of two turns.

        Raises:
            ChatTemplateError: If control tokens stand in the assistant's turn before its text: a model writes them
                itself, and messages of plain text cannot carry them.
        """
        if after is None or REPLY not in after:
            return None
        before, _, rest = after.partition(REPLY)
        asked, controls = self._encoder.controls(self._base_text), self._encoder.controls(before)
        if controls[: len(asked)] == asked and len(controls) > len(asked):
            raise _unusable(f"it writes {controls[-1]} inside an assistant's turn, which plain text cannot carry")
        return self._encoder.control_at_start(rest)

    def _check_tokens(self) -> str | None:
        """Return why this tokenizer, or the end of a turn, does not let conversations be extended."""
        turns = [history for head in self._heads() for history in histories(head, ("user",))]
        samples = self._heads() if self.turn_problem is not None else turns
        if not self._encoder.check_piecewise([self._render(messages) for messages in samples]):
            return "the tokenizer encodes a text differently when it is cut at control tokens"
        if self._close_id is None:
            return "the template does not end an assistant's turn with a control token right after its text"
        return None

    def _check_turn(self, roles: tuple[str, ...]) -> str | None:
        """Compare bridges to messages of ``roles`` with whole renderings of probe conversations.

        Other roles than the user's are also followed by turns of the user.

        Returns:
            What is wrong, if anything.
        """
        try:
            for head in self._heads():
                for history in histories(head, roles):
                    for turn in dict.fromkeys((roles, ("user",))):
                        problem = self._compare(history, turn)
                        if problem is not None:
                            return problem
        except ConversationError as error:
            return error.message
        return None

    def _compare(self, history: Sequence[Message], roles: tuple[str, ...]) -> str | None:
        """Return how extending ``history`` by a reply and messages differs from rendering it all, if it does."""
        prompt = self._render(history)
        for reply in (REPLY,) if self._keep else REPLIES:
            for observation in OBSERVATIONS:
                new = new_messages(roles, observation)
                bridge = self._bridge_text(reply, new)
                if bridge is None:
                    if reply == REPLY:
                        return "the template writes an assistant's turn in the history unlike its generation prompt"
                    continue
                whole = self._render([*history, {"role": "assistant", "content": reply}, *new])
                if not (whole.endswith(reply + bridge) if self._keep else whole == prompt + reply + bridge):
                    return f"the template's text for a turn depends on more than that turn ({len(history)} messages)"
        return None

    def _heads(self) -> list[list[dict[str, str]]]:
        """Return what conversations begin with."""
        with_system = self._base == [USER] and not self.folds_system
        return [self._base, [SYSTEM, USER]] if with_system else [self._base]


def folded(messages: Sequence[Message]) -> Sequence[Message]:
    """Return a conversation without its system message, which the first message of the user says instead."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, rest = messages[0]["content"], messages[1:]
    if not rest or rest[0]["role"] != "user":
        return [{"role": "user", "content": system}, *rest]
    return [{**rest[0], "content": f"{system}\n\n{rest[0]['content']}"}, *rest[1:]]


def _unusable(reason: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"the chat template cannot be used: {reason}.",
        "name another one by actor_train.data_args.template: chatml, qwen2_5, llama3, user_assistant, or a file.",
    )
