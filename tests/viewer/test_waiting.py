"""Groups that wait in a store, decided about from pages of the review and from a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from roll.cli.decide import app as decide_app
from roll.config import ConfigError
from roll.experience.base import StoreCounts
from roll.experience.folder import FolderStore
from roll.trajectories.model import Trajectory, TrajectoryGroup
from roll.viewer.episodes import Episodes
from roll.viewer.run_folder import RunFolder
from roll.viewer.server import Review, make_app

from .pages import HOSTILE, make_trajectory
from .test_server import HOME, PORT, words

pytestmark = pytest.mark.long  # pages of whole runs
HERE = {"origin": HOME}
NAMES = ("a/train-1", "a/train-2", "b/<b>")


def group(name: str) -> TrajectoryGroup:
    members: list[Trajectory] = [make_trajectory(episode=n, group_id=name, score=n / 3) for n in range(3)]
    return TrajectoryGroup(name, "SimpleSokoban", members, waits=True)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FolderStore]:
    """A store with groups that wait."""
    found = FolderStore(tmp_path / "store")
    found.append([group(name) for name in NAMES], 4)
    yield found
    found.close()


def look_at(folder: Path) -> Iterator[TestClient]:
    addresses: list[str] = []
    episodes = Episodes(RunFolder.find(folder))
    _, gate = make_app(Review(episodes), PORT, addresses.append)
    gate.new_key()
    with TestClient(gate, base_url=HOME, follow_redirects=False) as found:
        assert found.get(addresses[0]).status_code == 303
        yield found
    episodes.close()


@pytest.fixture
def client(filled: FolderStore) -> Iterator[TestClient]:
    yield from look_at(filled.path)


def say(client: TestClient, page: str, decision: str) -> int:
    """Send what a form of a page sends, and return the answer."""
    text = client.get(page).text
    token = re.search(r'name="token" value="([^"]+)"', text)
    action = re.search(r'action="(/decide/[^"]+)"', text)
    assert token is not None and action is not None
    return client.post(action[1], data={"token": token[1], "decision": decision}, headers=HERE).status_code


def test_a_person_finds_looks_and_decides(filled: FolderStore, client: TestClient) -> None:
    assert "Waiting" in words(client, "/")
    listed = client.get("/waiting").text
    pages = re.findall(r'href="(/waiting/[^"]+)"', listed)
    assert len(pages) == 3 and "<b>" not in listed.replace("&lt;b&gt;", "")
    assert HOSTILE in words(client, pages[0]) and "Push" not in pages[0]
    assert 'value="0, 0.333333333333, 0.666666666667"' in client.get(pages[0]).text
    assert [say(client, page, each) for page, each in zip(pages, ("approve", "-,1,-", "reject"), strict=True)] == [
        303
    ] * 3
    assert "No group waits" in words(client, "/waiting")
    assert filled.counts() == StoreCounts(3, 2, 2, 0, 0, 0, waiting=0, rejected=1)
    lease = filled.lease(2, 1)
    assert lease is not None
    scores = [[member.score for member in each.trajectories] for each in lease.groups]
    assert scores == [[0, 1 / 3, 2 / 3], [0, 1, 2 / 3]]
    assert say(client, pages[0], "reject") == 409, "it was given out"


def test_a_decision_is_taken_from_a_page_of_the_review_and_must_say_something(
    filled: FolderStore, client: TestClient
) -> None:
    for given, headers in (({"decision": "approve"}, HERE), ({"decision": "approve", "token": "guess"}, HERE)):
        assert client.post("/decide/a/train-1", data=given, headers=headers).status_code == 403
    assert client.post("/decide/a/train-1", data={"decision": "approve"}).status_code == 403
    assert say(client, "/waiting/a%2Ftrain-1", "1,2") == 409 and say(client, "/waiting/a%2Ftrain-1", "perhaps") == 409
    assert client.get("/waiting/none").status_code == 404
    assert len(filled.waiting()) == 3


def test_the_run_that_explores_leads_to_its_store_and_others_have_none(filled: FolderStore, tmp_path: Path) -> None:
    config = {"mode": "explore", "experience": {"path": str(filled.path)}}
    for name, found in (("explorer", config), ("both", {"mode": "both", "experience": None})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"name": name, "config": found}), encoding="utf-8")
    for client in look_at(tmp_path / "explorer"):
        assert say(client, "/waiting/a%2Ftrain-1", "approve") == 303
    assert len(filled.waiting()) == 2
    for client in look_at(tmp_path / "both"):
        assert "Waiting" not in words(client, "/") and client.get("/waiting").status_code == 404


def test_a_store_that_is_not_there_yet_is_said_on_the_page(tmp_path: Path) -> None:
    config = {"mode": "explore", "experience": {"path": str(tmp_path / "none")}}
    (tmp_path / "run.json").write_text(json.dumps({"name": "run", "config": config}), encoding="utf-8")
    for client in look_at(tmp_path):
        assert "is no experience store (yet)" in words(client, "/waiting")
    assert not (tmp_path / "none").exists()


def test_a_terminal_lists_and_decides(filled: FolderStore) -> None:
    def call(*words: str) -> str:
        result = CliRunner().invoke(decide_app, [str(filled.path), *words], catch_exceptions=False)
        assert result.exit_code == 0
        return str(result.output)

    assert [line.split()[0] for line in call().splitlines()] == list(NAMES)
    assert json.loads(call("--json").splitlines()[0])["mean_score"] == pytest.approx(1 / 3)
    assert "2 more wait" in call(NAMES[0], "0.5")
    call(NAMES[1], "reject")
    call(NAMES[2], "approve")
    assert call() == "no group waits\n" and filled.counts().available == 2
    lease = filled.lease(2, 1)
    assert lease is not None and [member.score for member in lease.groups[0].trajectories] == [0.5] * 3
    for given in ((NAMES[0],), ("none", "approve"), (NAMES[0], "perhaps"), (NAMES[0], "approve")):
        with pytest.raises(ConfigError, match="nothing is said|no group 'none'|is no decision|given out"):
            call(*given)
