"""Addresses that need no key, for some time."""

from __future__ import annotations

import time
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.datastructures import URL

from roll.service.links import SignedLinks

THERE = URL("http://127.0.0.1:8000/api/v1/training_runs/a/checkpoints/weights/b/archive")


def parts(address: str) -> tuple[URL, str, str]:
    given = parse_qs(urlsplit(address).query)
    return URL(address), given["until"][0], given["signature"][0]


def test_an_address_is_good_for_what_it_names_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    links = SignedLinks("key")
    address, until = links.to(THERE)
    url, end, signature = parts(address)
    assert links.allow(url, end, signature) and SignedLinks("key").allow(url, end, signature)
    assert until.timestamp() == int(end) > time.time()
    assert not SignedLinks("another").allow(url, end, signature)
    assert not links.allow(url.replace(path=url.path.replace("/b/", "/c/")), end, signature)
    assert not links.allow(url, str(int(end) + 60), signature)
    assert not links.allow(url, "", "") and not links.allow(url, "soon", signature)
    monkeypatch.setattr(time, "time", lambda: float(end) + 1)
    assert not links.allow(url, end, signature)
