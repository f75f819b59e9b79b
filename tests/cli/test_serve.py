"""``roll serve``: a policy behind an endpoint, asked by the official clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pydantic
import pytest

from roll.cli.app import main

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    words = [sys.executable, "-m", "roll", "serve", "toy", "--key", "my-key", "--name", "player", "--max-length", "256"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as served:
        assert served.stdout is not None
        first = served.stdout.readline()
        found = re.search(r"^player answers at (http://127\.0\.0\.1:\d+); Ctrl-C ends it\.$", first)
        assert found, first
        yield found[1]
        served.send_signal(signal.SIGINT)
        assert served.wait(30) == 0


def test_a_policy_answers_openais_client(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="my-key", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["player"]
        said = [{"role": "user", "content": "Hello"}]
        asked = {"model": "player", "messages": said, "seed": 3, "n": 4, "max_tokens": 6, "logprobs": True}
        first, again = (client.chat.completions.create(**asked) for _ in range(2))  # type: ignore[call-overload]
        assert [choice.message for choice in first.choices] == [choice.message for choice in again.choices]
        free = [client.chat.completions.create(**{**asked, "seed": None, "n": 16}) for _ in range(2)]  # type: ignore[call-overload]
        texts = [[choice.message.content for choice in answer.choices] for answer in free]
        assert texts[0] != texts[1] and len(set(texts[0])) > 1
        greedy = client.chat.completions.create(model="player", messages=said, temperature=0, n=3)  # type: ignore[arg-type]
        assert len({choice.message.content for choice in greedy.choices}) == 1
        long = [{"role": "user", "content": "word " * 500}]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens"):
            client.chat.completions.create(model="player", messages=long)  # type: ignore[arg-type]
        with pytest.raises(openai.NotFoundError, match="does not exist: this server has 'player'"):
            client.chat.completions.create(model="gpt-5", messages=said)  # type: ignore[arg-type]


class Move(pydantic.BaseModel):
    """What an answer is."""

    move: Literal["up", "down"]
    sure: bool


SCHEMA = {**Move.model_json_schema(), "additionalProperties": False}
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def test_an_answer_has_the_form_that_a_client_asks_for(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="my-key", max_retries=0) as client:
        said: Any = [{"role": "user", "content": "Which way?"}]
        asked: Any = {"model": "player", "messages": said, "seed": 1}
        parsed = client.chat.completions.parse(**asked, response_format=Move, n=4)
        assert all(isinstance(choice.message.parsed, Move) for choice in parsed.choices)
        form: Any = {"type": "json_schema", "json_schema": {"name": "move", "schema": SCHEMA}}
        tools: Any = [{"type": "function", "function": ADD}]
        for choice in client.chat.completions.create(**asked, response_format=form, tools=tools, n=8).choices:
            text = str(choice.message.content)
            is_call = bool(choice.message.tool_calls) or text.startswith('<tool_call>\n{"name": "')
            assert is_call or Move.model_validate_json(text)
        answered = client.responses.parse(model="player", input="Which way?", text_format=Move)
        assert isinstance(answered.output_parsed, Move)
        any_object = client.chat.completions.create(**asked, response_format={"type": "json_object"}, max_tokens=90)
        assert str(any_object.choices[0].message.content).startswith("{")
        wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strong"}}}
        with pytest.raises(openai.BadRequestError, match="Invalid schema for 'response_format': .*strong"):
            client.chat.completions.create(**asked, response_format=wrong)
    with anthropic.Anthropic(base_url=address, api_key="my-key", max_retries=0) as claude:
        message = claude.messages.create(
            model="player",
            max_tokens=60,
            messages=[{"role": "user", "content": "Which way?"}],
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        )
        Move.model_validate_json(message.content[0].text)  # type: ignore[union-attr]


def test_a_policy_answers_anthropics_client(address: str) -> None:
    with anthropic.Anthropic(base_url=address, api_key="my-key", max_retries=0) as client:
        answer = client.messages.create(model="player", max_tokens=3, messages=[{"role": "user", "content": "Hello"}])
        assert answer.usage.output_tokens <= 3
    with anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            stranger.messages.create(model="player", max_tokens=3, messages=[{"role": "user", "content": "Hello"}])


def test_what_is_no_policy_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", str(tmp_path / "absent")])
    assert left.value.code == 2 and "absent" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["poet", "=folder", "poet="])
def test_adapters_want_a_name_and_a_folder(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "toy", "--adapter", written])
    assert left.value.code == 2 and "NAME=FOLDER" in capsys.readouterr().err


def test_a_folder_without_adapters_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "toy", "--adapter", f"poet={tmp_path}"])
    assert left.value.code == 2 and "no LoRA adapters" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_policy_is_trained_by_tinkers_client(tmp_path: Path) -> None:
    import tinker

    words = [sys.executable, "-m", "roll", "serve", "toy", "--train", "--key", "tml-key", "--weights", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as served:
        assert served.stdout is not None
        found = re.search(
            r"^toy can be trained at (http://127\.0\.0\.1:\d+); Ctrl-C ends it\.$", served.stdout.readline()
        )
        assert found
        service = tinker.ServiceClient(base_url=found[1], api_key="tml-key")
        training = service.create_lora_training_client(base_model="toy", rank=2).result()
        datum = tinker.Datum(tinker.ModelInput.from_ints([5, 6, 7]), {"target_tokens": [6, 7, 8], "weights": [1.0] * 3})
        assert training.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"] > 0
        path = training.save_state("first").result().path
        assert list(tmp_path.rglob("adapter_model.safetensors")) and path.endswith("/weights/first")
        service.close("success").result(timeout=30)
        served.send_signal(signal.SIGINT)
        assert served.wait(30) == 0
