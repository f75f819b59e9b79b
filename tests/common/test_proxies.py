"""Behind a proxy: clients that others wrote ask it for all that is not left out, and it reaches nothing here."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import httpx
import openai
import pytest
import requests

from roll.common.proxies import ask_this_machine_itself, past_proxies
from tests.ports import free_port

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(params=["http", "socks5"])
def behind_a_proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a proxy that is told of in the usual variables, and where nobody listens."""
    # urllib reads the variables once, for all of a process: neither what it read before counts, nor this afterwards.
    monkeypatch.setattr(urllib.request, "_opener", None)
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
        monkeypatch.setenv(name.upper(), "")
        monkeypatch.delenv(name.upper())
    proxy = f"{request.param}://127.0.0.1:{free_port()}"
    # As tools for SOCKS say it: of all, or with HTTP's own beside it.
    for name in ("ALL_PROXY",) if request.param == "socks5" else ("http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    return proxy


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = b'{"object": "list", "data": [{"id": "here", "object": "model", "created": 0, "owned_by": "us"}]}'
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def by_openai(url: str) -> bool:
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
        return [model.id for model in client.models.list()] == ["here"]


def by_anthropic(url: str) -> bool:
    with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="k", max_retries=0) as client:
        return [model.id for model in client.models.list()] == ["here"]


CLIENTS: dict[str, Callable[[str], bool]] = {
    "httpx": lambda url: httpx.get(f"{url}/models").is_success,
    "requests": lambda url: requests.get(f"{url}/models", timeout=20).ok,
    "urllib": lambda url: urllib.request.urlopen(f"{url}/models").status == 200,
    "openai": by_openai,
    "anthropic": by_anthropic,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_reach_a_server_on_this_machine(client: str, behind_a_proxy: str, served: str) -> None:
    ask_this_machine_itself()
    assert CLIENTS[client](served)
    assert CLIENTS[client](served.replace("127.0.0.1", "localhost"))


@pytest.mark.parametrize("client", ["httpx", "openai"])
def test_they_would_ask_the_proxy_for_it_and_do_for_other_machines(
    client: str, behind_a_proxy: str, served: str
) -> None:
    with pytest.raises((httpx.TransportError, openai.APIConnectionError)):
        CLIENTS[client](served)
    ask_this_machine_itself()
    with pytest.raises((httpx.TransportError, openai.APIConnectionError)):
        CLIENTS[client]("http://192.0.2.1/v1")  # nobody's (RFC 5737): refused by the proxy, at once


@pytest.mark.parametrize(
    ("lower", "upper", "both"),
    [
        (None, None, ["localhost,127.0.0.1,0.0.0.0,::1"] * 2),
        ("10.0.0.1, localhost", None, ["10.0.0.1,localhost,127.0.0.1,0.0.0.0,::1"] * 2),
        ("a.org", "b.org", ["a.org,localhost,127.0.0.1,0.0.0.0,::1", "b.org,localhost,127.0.0.1,0.0.0.0,::1"]),
        ("*", None, ["*"] * 2),
    ],
)
def test_what_was_left_out_already_stays(
    lower: str | None, upper: str | None, both: list[str], behind_a_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("no_proxy", lower), ("NO_PROXY", upper)):
        if value is not None:
            monkeypatch.setenv(name, value)
    ask_this_machine_itself()
    assert [os.environ["no_proxy"], os.environ["NO_PROXY"]] == both
    assert list(past_proxies().values()) == both, "and once more changes nothing"


def test_without_a_proxy_nothing_is_set(behind_a_proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, *map(str.upper, NAMES)):
        monkeypatch.delenv(name, raising=False)
    ask_this_machine_itself()
    assert not {"no_proxy", "NO_PROXY"} & set(os.environ)
