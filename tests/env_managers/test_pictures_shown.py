"""Episodes whose policy is shown what the environment draws."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from manager_fakes import CountEnv, manager, spec, turn_of
from transformers import AutoConfig, AutoTokenizer

from roll.env_managers import EnvManagerLimits, Templates
from roll.generation import Completion, GenerationRequest
from roll.generation.pictures import check_places, frame_picture
from roll.rendering import PICTURE, PictureRenderer
from roll.strategies.pictures import PictureGrid, load_image_processor
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import samples_from
from tests.models.tiny_vision import CHAT_TEMPLATE, make_tiny_vision
from tests.pictures import SIDE

LIMITS = EnvManagerLimits(max_steps=5, sequence_length=2000, max_new_tokens=20)


class DrawnEnv(CountEnv):
    """Draws a picture that grows with the count; its text has what could be taken for one."""

    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.full((SIDE * 2, SIDE * (2 + self.count), 3), 40 * self.count, dtype=np.uint8)

    def step(self, response: str) -> Any:
        _, *rest = super().step(response)
        return f"at {self.count} {PICTURE}", *rest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_vision(tmp_path_factory.mktemp("vision"))


def renderer_of(folder: Path, template: str = CHAT_TEMPLATE) -> PictureRenderer:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    placeholder = AutoConfig.from_pretrained(folder).image_token_id
    return PictureRenderer(tokenizer, placeholder=placeholder, grid=PictureGrid(load_image_processor(str(folder))))


def played(
    renderer: PictureRenderer, show: str, env: Any, replies: tuple[str, ...] = ("up",)
) -> tuple[Trajectory, list[GenerationRequest]]:
    calls: list[GenerationRequest] = []

    async def generate(call: GenerationRequest) -> Completion:
        calls.append(call)
        check_places(call.request_id, call.prompt_ids, call.pictures, renderer.placeholder)
        ids = [*renderer.written_ids(replies[min(turn_of(call), len(replies) - 1)]), renderer.stop_token_ids[0]]
        return Completion(ids, [-0.5] * len(ids), "stop", (0, 0))

    templates = Templates("{instruction}", "{turn_idx}: {observation}", show=show)  # type: ignore[arg-type]
    playing = manager(generate, renderer=renderer, templates=templates, limits=LIMITS)
    return asyncio.run(playing.run(spec(), lambda: env)), calls


@pytest.mark.parametrize("show", ["picture", "both"])
def test_every_turn_shows_what_the_environment_draws(folder: Path, show: str) -> None:
    renderer = renderer_of(folder)
    trajectory, calls = played(renderer, show, DrawnEnv())
    assert trajectory.status is Status.COMPLETED and trajectory.error is None
    for number, (turn, call) in enumerate(zip(trajectory.turns, calls, strict=True)):
        (picture,) = turn.pictures
        assert (picture.rows, picture.columns) == (2, 2 + number)
        assert picture.data == frame_picture(turn.frame)
        assert turn.prompt_ids[picture.start : picture.stop] == [renderer.placeholder] * picture.tokens
        shown = [each.pictures[0].data for each in trajectory.turns[: number + 1]]
        assert [each.data for each in call.pictures] == shown
        text = renderer.decode(turn.prompt_ids)
        assert ("at" in text or "seed" in text) == (show == "both")
    (sample,) = samples_from(trajectory)
    assert sample.pictures == calls[-1].pictures
    check_places("sample", sample.token_ids, sample.pictures, renderer.placeholder)


def test_a_conversation_that_is_rendered_anew_shows_every_picture_again(folder: Path) -> None:
    trimming = CHAT_TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'] | trim }}")
    trajectory, calls = played(renderer_of(folder, trimming), "picture", DrawnEnv(), ("up ",))
    assert [turn.starts_sample for turn in trajectory.turns] == [False, True, True]
    assert [len(turn.pictures) for turn in trajectory.turns] == [1, 2, 3]
    assert [list(call.pictures) for call in calls] == [turn.pictures for turn in trajectory.turns]


def test_text_of_an_environment_is_never_a_picture(folder: Path) -> None:
    trajectory, calls = played(renderer_of(folder), "text", DrawnEnv())
    assert trajectory.status is Status.COMPLETED
    assert not any(call.pictures for call in calls)
    assert renderer_of(folder).placeholder not in calls[-1].prompt_ids


def test_messages_of_an_environment_are_words(folder: Path) -> None:
    class Speaking(DrawnEnv):
        def step(self, response: str) -> Any:
            observation, reward, ended, cut, info = super().step(response)
            return observation, reward, ended, cut, {**info, "messages": [{"role": "user", "content": observation}]}

    trajectory, calls = played(renderer_of(folder), "picture", Speaking())
    assert trajectory.status is Status.COMPLETED
    assert [len(call.pictures) for call in calls] == [1, 1, 1]


@pytest.mark.parametrize(("mode", "drawn"), [("ansi", "text"), (None, "nothing")])
def test_an_environment_that_draws_nothing_ends_with_what_to_set(folder: Path, mode: str | None, drawn: str) -> None:
    env = CountEnv()
    env.render_mode = mode
    trajectory, _ = played(renderer_of(folder), "picture", env)
    assert trajectory.status is Status.ERROR_ENV
    assert f"render() gave {drawn}: set env_config.render_mode to rgb_array" in str(trajectory.error)
