"""Messages with pictures become the tokens that a vision-language model's own processor makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer

from roll.generation.pictures import check_places
from roll.rendering import PICTURE, ChatTemplateError, ConversationError, PictureRenderer, without_pictures
from roll.strategies.pictures import PictureGrid, load_image_processor
from tests.models.tiny_vision import CHAT_TEMPLATE, make_tiny_vision
from tests.pictures import png


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision(tmp_path_factory.mktemp("vision"))


def renderer_of(folder: Path, template: str | None = None, **options) -> PictureRenderer:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if template is not None:
        tokenizer.chat_template = template
    placeholder = AutoConfig.from_pretrained(folder).image_token_id
    return PictureRenderer(
        tokenizer, placeholder=placeholder, grid=PictureGrid(load_image_processor(str(folder))), **options
    )


@pytest.fixture(scope="module")
def renderer(folder: Path) -> PictureRenderer:
    return renderer_of(folder)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_prompts_are_those_of_the_template_with_a_placeholder_for_each_cell(folder: Path, renderer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Play."}, user(f"a {PICTURE} and {PICTURE}")]
    ids, pictures = renderer.expanded(renderer.render_ids(messages), [png(2, 3), png(4, 1)])
    parts = [
        {"type": "text", "text": "a "},
        {"type": "image"},
        {"type": "text", "text": " and "},
        {"type": "image"},
    ]
    written = tokenizer.apply_chat_template(
        [messages[0], {"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    first, second, third = written.split("<|image_pad|>")
    own = tokenizer(
        first + 6 * "<|image_pad|>" + second + 4 * "<|image_pad|>" + third, add_special_tokens=False
    ).input_ids
    assert ids == own
    assert [(picture.rows, picture.columns) for picture in pictures] == [(2, 3), (4, 1)]
    check_places("here", ids, pictures, renderer.placeholder)


def test_a_turn_goes_on_with_its_picture(renderer) -> None:
    history = [user(PICTURE)]
    first, _ = renderer.expanded(renderer.render_ids(history), [png(2, 2)])
    said = [*renderer.written_ids("left"), renderer.stop_token_ids[0]]
    bridge = renderer.next_ids(said, [user(f"now {PICTURE}")])
    more, pictures = renderer.expanded(bridge, [png(3, 2)])
    whole = renderer.render_ids([*history, {"role": "assistant", "content": "left"}, user(f"now {PICTURE}")])
    assert [*first, *said, *more] == renderer.expanded(whole, [png(2, 2), png(3, 2)])[0]
    assert [picture.tokens for picture in pictures] == [6]


def test_renderers_that_describe_tools_show_pictures_too(folder: Path) -> None:
    template = "{% if tools %}{{ tools }}{% endif %}" + CHAT_TEMPLATE
    schema = {"type": "function", "function": {"name": "look", "parameters": {}}}
    told = renderer_of(folder, template).with_tools([schema])
    assert isinstance(told, PictureRenderer)
    ids, pictures = told.expanded(told.render_ids([user(PICTURE)]), [png(1, 2)])
    assert ids.count(told.placeholder) == 2 and pictures[0].tokens == 2


@given(words=st.lists(st.sampled_from(["a", PICTURE, "<|image_pad|>", "<|vision_start|>", " "]), max_size=6))
def test_text_never_becomes_a_picture(renderer, words: list[str]) -> None:
    text = "".join(words)
    for message in (user(without_pictures(text)), {"role": "assistant", "content": text}):
        ids = renderer.render_ids([user("Play."), message])
        assert renderer.placeholder not in ids


@pytest.mark.parametrize("shown", [0, 2])
def test_there_must_be_as_many_pictures_as_places(renderer, shown: int) -> None:
    with pytest.raises(ConversationError, match=f"places for 1 pictures, and {shown} are shown"):
        renderer.expanded(renderer.render_ids([user(PICTURE)]), [png(1, 1)] * shown)


def test_what_is_no_picture_is_told(renderer) -> None:
    with pytest.raises(ConversationError, match="a picture cannot be shown: 5 bytes are no picture"):
        renderer.expanded(renderer.render_ids([user(PICTURE)]), [b"words"])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (CHAT_TEMPLATE.replace("<|image_pad|>", "a picture"), r"writes no <\|image_pad\|> where"),
        (CHAT_TEMPLATE.replace("{%- else -%}", "{%- else -%}Look: "), "unlike a message of text"),
    ],
)
def test_templates_without_pictures_are_refused(folder: Path, template: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        renderer_of(folder, template)
