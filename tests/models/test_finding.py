"""What ``pretrain`` may have meant, and a hub that cannot be reached."""

from __future__ import annotations

import json
import socket
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from roll.models import finding
from roll.models.errors import ModelNotFoundError
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_tokenizer


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def refusal(pretrain: str) -> ModelNotFoundError:
    with pytest.raises(ModelNotFoundError) as raised:
        resolve_pretrain(pretrain)
    return raised.value


@pytest.fixture
def silent_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A hub that takes connections and never answers, and an empty cache."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(finding, "PATIENCE", 0.5)
        yield endpoint
        # Asked once: the hub's own client would ask again and again, for a minute.
        server.settimeout(10)
        server.accept()[0].close()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("written", "meant"), [("smolm2", "smollm2"), ("toy-math", "toy_math"), ("Toy", "toy"), ("smollm-2", "smollm2")]
)
def test_a_mistyped_built_in_name_is_recognised(written: str, meant: str) -> None:
    assert refusal(written).fix.startswith(f"did you mean {meant}?")


def test_a_mistyped_path_names_the_model_folder_that_looks_like_it(tmp_path: Path) -> None:
    hf = model_folder(tmp_path / "sokoban" / "checkpoints" / "step=000060" / "hf")
    for written in (
        tmp_path / "sokobn" / "checkpoints" / "step=000060" / "hf",
        tmp_path / "sokoban" / "checkpoints" / "step=000061",
        tmp_path / "sokoban" / "checkpoints" / "step=000060" / "HF ",
    ):
        error = refusal(str(written))
        assert error.fix.startswith(f"did you mean {hf}?") and "there is no such folder" in error.message


def test_a_folder_above_the_model_names_the_newest_model_below(tmp_path: Path) -> None:
    for step in (20, 40):
        model_folder(tmp_path / "checkpoints" / f"step=0000{step}" / "hf")
    error = refusal(str(tmp_path))
    assert error.fix.startswith(f"did you mean {tmp_path}/checkpoints/step=000040/hf?")
    assert "no config.json" in error.message


def test_a_relative_path_below_a_folder_that_is_here_is_no_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder(tmp_path / "output" / "policy")
    monkeypatch.chdir(tmp_path)
    assert refusal("output/polcy").fix.startswith("did you mean output/policy?")


def test_adapters_alone_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    error = refusal(str(tmp_path))
    assert "adapters only" in error.message and "roll.models.convert" in error.fix


def test_offline_mode_is_named_as_the_reason_and_the_cache_as_the_place() -> None:
    error = refusal("Qwen/Qwen2.5-0.5B-Instruct")
    assert "HF_HUB_OFFLINE is set" in error.message and huggingface_hub.constants.HF_HUB_CACHE in error.message


def test_a_hub_that_does_not_answer_is_asked_once_and_given_up(silent_hub: str) -> None:
    error = refusal("Qwen/Qwen2.5-0.5B-Instruct")
    assert f"({silent_hub}) did not answer within" in error.message


def test_a_model_of_the_cache_is_used_where_the_hub_does_not_answer(silent_hub: str) -> None:
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--Qwen--Qwen2.5-0.5B-Instruct"
    snapshot = model_folder(cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    assert resolve_pretrain("Qwen/Qwen2.5-0.5B-Instruct") == str(snapshot)


class Hub(threading.Thread):
    """Answers every request as the hub answers for a model that it does not have, or shares with some people only."""

    def __init__(self, code: str) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        body = json.dumps({"error": code}).encode()
        status = b"404 Not Found" if code == "RepoNotFound" else b"403 Forbidden"
        head = (
            b"HTTP/1.1 %b\r\nX-Error-Code: %b\r\nX-Error-Message: no\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        )
        self.answer = head % (status, code.encode(), len(body))
        self.body = body

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection:
                asked = connection.recv(65536)
                connection.sendall(self.answer + (b"" if asked.startswith(b"HEAD") else self.body))


@pytest.mark.parametrize(
    ("code", "expected"),
    [("RepoNotFound", "the Hugging Face hub has no such model"), ("GatedRepo", "its owner shares it")],
)
def test_what_the_hub_says_of_a_model_is_told_in_our_words(
    code: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = Hub(code)
    hub.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ModelNotFoundError) as raised:
        load_tokenizer("nobody/no-such-model")
    hub.server.close()
    assert expected in raised.value.message


def test_a_name_is_one_of_modelscope_where_the_environment_asks_for_it(monkeypatch, tmp_path) -> None:
    asked: list[str] = []

    def fake_download(name: str) -> str:
        asked.append(name)
        if name == "no/such":
            raise RuntimeError("404: no such model\nand more")
        return str(tmp_path)

    fake = types.ModuleType("modelscope")
    fake.snapshot_download = fake_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modelscope", fake)
    monkeypatch.setenv("USE_MODELSCOPE", "1")
    assert resolve_pretrain("Qwen/some-model") == str(tmp_path)
    assert asked == ["Qwen/some-model"]
    with pytest.raises(ModelNotFoundError, match="ModelScope does not give it: 404: no such model use"):
        resolve_pretrain("no/such")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ModelNotFoundError, match="modelscope cannot be imported"):
        resolve_pretrain("Qwen/some-model")
