"""The review as a web application: what it shows, to whom, and whatever a model wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from roll.trajectories.learned import Learned, learned_path, write_learned
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.store import trajectory_path, write_trajectories
from roll.viewer.episodes import Episodes
from roll.viewer.filters import Filter
from roll.viewer.run_folder import RunFolder
from roll.viewer.server import Review, make_app
from roll.viewer.text import as_text

from .pages import HOSTILE, answer, make_trajectory

pytestmark = pytest.mark.long  # pages of whole runs

PORT = 8765
HOME = f"http://127.0.0.1:{PORT}"


def store(folder: Path, step: int, trajectories: list[Trajectory], phase: str = "train") -> None:
    path = trajectory_path(folder, step, phase)  # type: ignore[arg-type]
    write_trajectories(path, trajectories, step=step, phase=phase, run="my run", token_text=chr)  # type: ignore[arg-type]


def members(step: int) -> list[Trajectory]:
    """Two groups of three: one whose scores differ, one of which all break."""
    levels = [make_trajectory(1, episode=n, success=n == 0, score=float(n), group_id=f"g-{step}1") for n in range(3)]
    broken = {"status": Status.ERROR_ENV, "error": "ValueError: no <player>", "score": None}
    return levels + [make_trajectory(2, episode=n, success=False, group_id=f"g-{step}2", **broken) for n in range(3)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store(tmp_path, 1, members(1))
    store(tmp_path, 2, [answer(7, 0, right=True), answer(8, 0, right=False)], "val")
    return tmp_path


@pytest.fixture
def opened(run: Path) -> Iterator[tuple[TestClient, list[str]]]:
    """A client that has not been let in yet, and the addresses that the terminal shows."""
    addresses: list[str] = []
    episodes = Episodes(RunFolder.find(run))
    _, gate = make_app(Review(episodes), PORT, addresses.append)
    gate.new_key()
    with TestClient(gate, base_url=HOME, follow_redirects=False) as client:
        yield client, addresses
    episodes.close()


@pytest.fixture
def client(opened: tuple[TestClient, list[str]]) -> TestClient:
    found, addresses = opened
    assert found.get(addresses[0]).status_code == 303
    return found


def words(client: TestClient, address: str) -> str:
    """Return the text of a page, less its markup."""
    response = client.get(address)
    assert response.status_code == 200, response.text
    return " ".join(" ".join(Document(response.text).pieces).split())


class Document(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(source)
        self.text = "".join(self.pieces)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    def links(self, kind: str) -> list[str]:
        return [str(found["href"]) for tag, found in self.tags if tag == "a" and kind in (found.get("class") or "")]


def test_a_key_opens_the_review_once_for_one_browser(opened: tuple[TestClient, list[str]]) -> None:
    client, addresses = opened
    assert client.get("/episodes").status_code == 403
    assert client.get("/open?key=guess").status_code == 403
    response = client.get(addresses[0])
    assert response.status_code == 303 and response.headers["location"] == "/"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/episodes").status_code == 200
    client.cookies.clear()
    assert client.get(addresses[0]).status_code == 403 and client.get("/episodes").status_code == 403
    assert len(addresses) == 2 and client.get(addresses[1]).status_code == 303


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1:80", "127.0.0.1", ""])
def test_a_request_that_names_another_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/episodes", headers={"host": host}).status_code == 421


def test_every_answer_forbids_what_a_page_must_not_do(client: TestClient) -> None:
    for address in ("/episodes", "/static/review.js", "/nowhere", "/state"):
        headers = client.get(address).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    tags = Document(client.get("/episode/train/1/0/g-11").text).tags
    assert {tag for tag, _ in tags}.isdisjoint({"style", "iframe", "base", "object"})
    assert [found["src"] for tag, found in tags if tag == "script"] == ["/static/review.js"]
    assert not [name for _, found in tags for name in found if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("name", ["../access.py", "%2e%2e/access.py", "review.css.bak"])
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("", 8),
        ("?phase=val", 2),
        ("?tag=arithmetic", 2),
        ("?outcome=solved", 2),
        ("?outcome=broken", 3),
        ("?outcome=differing", 3),
        ("?status=error_env&phase=train", 3),
        ("?error=NO+%3CPLAYER", 3),
        ("?step=2..", 2),
        ("?score=1..2&phase=train", 2),
        ("?turns=1", 2),
        ("?text=what+is+6+times+8", 1),
        ("?text=100%25_'", 0),
        ("?group=g-12", 3),
        ("?step=x", 8),
    ],
)
def test_the_table_has_what_the_filter_says(client: TestClient, query: str, number: int) -> None:
    page = client.get(f"/episodes{query}").text
    assert len(Document(page).links("row")) == number
    assert ("is neither a number nor a range" in page) == (query == "?step=x")


def test_the_table_sorts_and_shows_prompts_of_answers(client: TestClient) -> None:
    rows = Document(client.get("/episodes?phase=train&sort=-score").text).links("row")
    assert [re.findall(r"/train/1/(\d)/", row)[0] for row in rows[:3]] == ["2", "1", "0"]
    assert "What is 6 times 7?" in words(client, "/episodes?phase=val")
    assert "50.0% solved" in words(client, "/episodes?phase=val")


def test_an_episode_leads_to_its_neighbours_among_those_that_are_chosen(client: TestClient) -> None:
    address = Document(client.get("/episodes?outcome=broken").text).links("row")[1]
    source = client.get(address).text
    beside = [str(found["href"]) for tag, found in Document(source).tags if found.get("class") in ("before", "after")]
    assert beside == ["/episode/train/1/0/g-12?outcome=broken", "/episode/train/1/2/g-12?outcome=broken"]
    assert "2 of 3 chosen" in words(client, address)


def test_a_game_is_shown_with_board_turns_and_rewards(client: TestClient) -> None:
    text = words(client, "/episode/train/1/0/g-11")
    for expected in ("SimpleSokoban", "You push <boxes>.", "observed again", HOSTILE, "no valid action", "weights 4–5"):
        assert expected in text, expected
    assert "env +10.90 format -0.05 = +10.85" in text and "weights changed meanwhile: 4 to 5" in text
    source = client.get("/episode/train/1/0/g-11").text
    assert source.count('<svg class="board"') == 3 and 'type="range"' in source


def test_an_answer_is_shown_beside_the_right_one_and_without_a_player(client: TestClient) -> None:
    text = words(client, "/episode/val/2/0/val-7")
    assert "What is 6 times 7?" in text and "right answer 42" in text
    assert 'type="range"' not in client.get("/episode/val/2/0/val-7").text


def test_tokens_say_whether_they_were_trained_on_and_how_likely_they_were(client: TestClient) -> None:
    source = client.get("/tokens/train/1/0/g-11").text
    tokens = [found for tag, found in Document(source).tags if (found.get("title") or "").startswith("token ")]
    sampled = [found for found in tokens if "sampled" in (found["class"] or "")]
    assert len(tokens) - len(sampled) == 14 and len(sampled) == 19 + len(HOSTILE)
    assert sampled[0]["title"] == "token 60 · p = 0.905 · log p = -0.100"
    assert [sampled[n]["class"] for n in (0, 18)] == ["t sampled s0", "t sampled s7"]
    assert "Sampled tokens were trained on" in source and HOSTILE in Document(source).text
    assert "Nothing of this episode was trained on: it broke." in client.get("/tokens/train/1/0/g-12").text
    assert "Nothing of this episode was trained on: it is an evaluation." in client.get("/tokens/val/2/0/val-7").text


def learn(folder: Path, step: int = 1) -> None:
    """Store what the learner made of the first episode of :func:`members`."""
    second = len(HOSTILE)
    turns = [
        Learned([True] * 18 + [False], [1.0] * 19, [-0.1] * 18 + [-2.0], [0.0] * 17 + [1.0, math.nan]),
        Learned([True] * second, [-2.5] * second, [-0.75] * second),
    ]
    path = learned_path(trajectory_path(folder, step, "train"))
    write_learned(path, [(f"g-{step}1", 0, number, each) for number, each in enumerate(turns)])


def test_tokens_show_what_the_learner_made_of_them(run: Path, client: TestClient) -> None:
    assert "no ratio and no advantage" in words(client, "/tokens/train/1/0/g-11")
    learn(run)
    source = client.get("/tokens/train/1/0/g-11").text
    sampled = [found for _, found in Document(source).tags if "trainer/sampler" in (found.get("title") or "")]
    assert [sampled[n]["class"] for n in (0, 18, 19)] == [
        *("t sampled s0 r0 ap2 e0", "t sampled s7 rp4 ap2 untrained", "t sampled s1 rm2 am4"),
    ]
    assert (sampled[18]["title"] or "").endswith("trainer/sampler = 2.718 · advantage +1 · left out of the loss")
    assert (sampled[19]["title"] or "").endswith("trainer/sampler = 0.7788 · advantage -2.5")
    assert sampled[17]["class"] == "t sampled s0 r0 ap2 e4" and "entropy 1.000" in (sampled[17]["title"] or "")
    assert "sampled, left out of the loss" in source and 'value="advantage"' in source
    assert 'value="advantage"' not in client.get("/tokens/train/1/1/g-11").text
    path = learned_path(trajectory_path(run, 1, "train"))
    write_learned(path, [("g-11", 0, 0, Learned([True] * 19, [1.0] * 19, None))])
    source = client.get("/tokens/train/1/0/g-11").text
    assert 'value="entropy"' not in source
    assert "as they were, so there is no ratio" in source and 'value="ratio"' not in source
    write_learned(path, [("g-11", 0, 0, Learned([True], [1.0], None))])  # of another episode
    assert "advantage +1" not in client.get("/tokens/train/1/0/g-11").text


def test_an_episode_says_where_its_time_went(client: TestClient) -> None:
    text = words(client, "/episode/train/1/0/g-11")
    assert "Where its time went" in text and "The times of turn 2 were not recorded." in text
    assert "weights 4 to 5 while turn 1 was generated" in text


def test_a_group_is_aligned_by_turn_and_says_where_it_parts(run: Path, client: TestClient) -> None:
    odd = members(3)[:3]
    odd[1].turns[1].response = "<answer>Left</answer>"
    store(run, 3, odd)
    wait_for(client, 2)
    text = words(client, "/group/train/3/g-31")
    assert "3 attempts from one start" in text and "They part at turn 2." in text
    assert "score 0.00 advantage -1.00" in text and "score 2.00 advantage +1.00" in text
    assert "They part" not in words(client, "/group/train/1/g-11")


def wait_for(client: TestClient, version: int) -> None:
    """Wait until the review has seen what was written since."""
    import time

    end = time.monotonic() + 60
    while client.get("/state").json()["version"] < version and time.monotonic() < end:
        time.sleep(0.05)


def test_what_a_run_writes_meanwhile_appears_and_what_it_replaces_goes(run: Path, client: TestClient) -> None:
    store(run, 2, [answer(9, 0, right=True)], "val")
    trajectory_path(run, 1, "train").unlink()
    (run / "trajectories" / "step=000007.parquet").write_bytes(b"not parquet")
    wait_for(client, 2)
    text = words(client, "/episodes")
    assert "1 episode " in text and "What is 6 times 9?" in text and "step=000007.parquet cannot be read" in text


@pytest.mark.parametrize("address", ["/episode/train/1/9/g-11", "/group/train/9/g-11", "/tokens/val/1/0/x", "/nowhere"])
def test_what_is_not_there_is_not_found(client: TestClient, address: str) -> None:
    assert client.get(address).status_code == 404


def test_texts_that_would_hide_something_are_made_visible(run: Path, client: TestClient) -> None:
    odd = make_trajectory(3, group_id="odd/../g?x=1#y", tag="\x1b[31mred\u202e")
    odd.turns[0].response = "\x1b]0;title\x07 \u202egnp.exe \x00" + "x" * 1_000_000
    store(run, 4, [odd])
    wait_for(client, 2)
    address = Document(client.get("/episodes?step=4").text).links("row")[0]
    for source in (client.get("/episodes").text, client.get(address).text):
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", Document(source).text)
    text = words(client, address)
    assert "␛]0;title␇ ⟨U+202E⟩gnp.exe ␀" in text and "show all 1,0" in text and len(text) < 100_000
    assert len(words(client, f"{address}&all=1")) > 1_000_000


def test_the_overview_counts_all_episodes_and_leads_to_what_failed(client: TestClient) -> None:
    text = words(client, "/")
    assert "8 episodes are stored" in text
    assert re.search(r"After step Tag Episodes Solved Score Tokens Broken 2 arithmetic 2 50\.0% 0\.60", text)
    source = client.get("/").text
    failed = [
        str(a["href"]) for tag, a in Document(source).tags if tag == "a" and "status=error_env" in (a["href"] or "")
    ]
    assert len(failed) == 1 and "3 episodes" in words(client, failed[0])
    drawn = [str(found["aria-label"]) for tag, found in Document(source).tags if tag == "svg"]
    assert any(label.startswith("solved over steps 1 to 2: ") for label in drawn)
    assert any("score, training step 1: 3 episodes from 0 to 2" in label for label in drawn)
    assert any("groups whose scores are all equal" in label and "0.0%" in label for label in drawn)


def test_the_overview_compares_the_configuration_with_that_of_a_run_beside_it(run: Path, client: TestClient) -> None:
    for folder, rate in ((run, 1), (run.parent / "other", 2)):
        folder.mkdir(exist_ok=True)
        config = {"training_args": {"learning_rate": rate}, "seed": 3}
        (folder / "run.json").write_text(json.dumps({"name": "x", "config": config}), encoding="utf-8")
    text = words(client, "/?against=other")
    assert text.endswith("training_args.learning_rate 1 2"), "only what differs"
    assert "training_args" not in words(client, "/?against=../other")


def test_an_episode_whose_file_has_just_gone_is_not_found(run: Path, client: TestClient) -> None:
    trajectory_path(run, 1, "train").unlink()
    assert client.get("/episode/train/1/0/g-11").status_code == 404


def test_a_run_that_samples_nothing_shows_its_losses_and_no_empty_parts(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"config": {}, "name": "imitation"}))
    (tmp_path / "logs").mkdir()
    rows = [{"step": 0, "val/loss": 2.5}, {"step": 1, "train/loss": 2.25, "train/grad_norm": 0.5}]
    (tmp_path / "logs" / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with closing(Episodes(RunFolder.find(tmp_path))) as episodes:
        addresses: list[str] = []
        _, gate = make_app(Review(episodes), PORT, addresses.append)
        gate.new_key()
        with TestClient(gate, base_url=HOME, follow_redirects=False) as client:
            client.get(addresses[0])
            page = words(client, "/")
            assert "loss" in page and "training 2.25" in page and "held out 2.5" in page and "gradient norm" in page
            assert "stored no episodes" in page and "What failed" not in page and "is spread" not in page
            assert "0 episodes" in words(client, "/episodes") or "No episode" in words(client, "/episodes")
        said = list(as_text(episodes, Filter()))
        assert said[-3:] == ["    2.25  loss, training", "     2.5  loss, held out", "     0.5  gradient norm"]
