"""Messages to tokens and back: the one place that knows a chat template.

:class:`~roll.rendering.chat.ChatRenderer` turns messages into prompt ids and extends a conversation without ever
re-tokenising what a model sampled.
"""

from roll.rendering.chat import ChatRenderer
from roll.rendering.encoding import PromptEncoder
from roll.rendering.errors import ChatTemplateError, ConversationError
from roll.rendering.message_renderer import MessageRenderer
from roll.rendering.pictures import PICTURE, PictureRenderer, without_pictures
from roll.rendering.protocols import Decoder, Renderer, as_users, spoken
from roll.rendering.templates import with_template

__all__ = [
    "PICTURE",
    "ChatRenderer",
    "ChatTemplateError",
    "ConversationError",
    "Decoder",
    "MessageRenderer",
    "PictureRenderer",
    "PromptEncoder",
    "Renderer",
    "as_users",
    "spoken",
    "with_template",
    "without_pictures",
]
