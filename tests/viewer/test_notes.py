"""Notes on episodes: kept beside the run, taken from its own pages only, and exported for others."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

from roll.config import ConfigError
from roll.viewer.episodes import Episodes
from roll.viewer.notes import Notes, apply
from roll.viewer.run_folder import RunFolder

from .pages import HOSTILE, make_trajectory
from .test_review_in_a_browser import browser, page
from .test_server import HOME, client, members, opened, run, store, words
from .test_text import said

pytestmark = pytest.mark.long  # pages of whole runs

__all__ = ["browser", "client", "opened", "page", "run"]
HERE = {"origin": HOME}
PLACE = "train/1/0/g-11"


def token(client: TestClient) -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get(f"/episode/{PLACE}").text)
    assert found is not None
    return found[1]


def keep(client: TestClient, labels: str, comment: str = "", place: str = PLACE) -> None:
    given = {"token": token(client), "labels": labels, "comment": comment}
    assert client.post(f"/note/{place}", data=given, headers=HERE).status_code == 303


def stored(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.rglob("*.parquet")}


def test_a_note_is_kept_beside_the_run_and_shown_in_table_and_filter(run: Path, client: TestClient) -> None:
    before = stored(run)
    keep(client, " lost , look again, lost", f"why left?\r\n{HOSTILE}")
    assert "lost look again why left?" in words(client, "/episodes") and HOSTILE in words(client, "/episodes")
    assert "1 episode " in words(client, "/episodes?label=lost") and "0 episodes" in words(client, "/episodes?label=x")
    assert "1 episode " in words(client, "/episodes?outcome=noted")
    assert 'value="lost, look again"' in client.get(f"/episode/{PLACE}").text
    assert stored(run) == before and {path.name for path in run.iterdir()} == {"trajectories", "notes.json"}
    assert Notes(run / "notes.json").read()["train", 1, "g-11", 0].comment == f"why left?\n{HOSTILE}"
    keep(client, "", " ")
    assert "0 episodes" in words(client, "/episodes?outcome=noted")


def test_a_note_is_taken_from_a_page_of_the_review_only(run: Path, client: TestClient) -> None:
    given = {"token": token(client), "labels": "x"}
    refused = [
        client.post(f"/note/{PLACE}", data=given, headers={"origin": "http://evil.example"}),
        client.post(f"/note/{PLACE}", data=given, headers={"origin": "null"}),
        client.post(f"/note/{PLACE}", data=given),
        client.post(f"/note/{PLACE}", data=given | {"token": "guess"}, headers=HERE),
        client.post(f"/note/{PLACE}", data={"labels": "x"}, headers=HERE),
    ]
    assert [response.status_code for response in refused] == [403] * 5
    assert client.get(f"/note/{PLACE}").status_code == 405
    assert client.post("/note/train/1/9/g-11", data=given, headers=HERE).status_code == 404
    assert client.post(f"/note/{PLACE}", data=given | {"comment": "x" * 300_000}, headers=HERE).status_code == 413
    client.cookies.clear()
    assert client.post(f"/note/{PLACE}", data=given, headers=HERE).status_code == 403
    assert not (run / "notes.json").exists()


def test_a_note_on_an_episode_that_another_run_replaced_is_not_taken_for_one_on_the_new(run: Path) -> None:
    episodes, notes = Episodes(RunFolder.find(run)), Notes(run / "notes.json")
    episodes.refresh()
    notes.save(episodes.members("train", 1, "g-11")[0], ["lost"], "")
    assert [note.labels for _, note in apply(notes, episodes)] == [("lost",)]
    store(run, 1, [make_trajectory(1, group_id="g-11", score=3.5)])
    episodes.refresh()
    assert apply(notes, episodes) == [] and len(notes.read()) == 1
    episodes.close()


def test_a_file_that_cannot_be_read_is_left_as_it_is_and_named(run: Path, client: TestClient) -> None:
    path = run / "notes.json"
    for content in ("{", "[]", '{"format": 2, "notes": []}', '{"format": 1, "notes": [{"labels": 3}]}'):
        path.write_text(content, encoding="utf-8")
        assert "holds no notes that can be read" in words(client, "/episodes")
        response = client.post(f"/note/{PLACE}", data={"token": token(client), "labels": "x"}, headers=HERE)
        assert response.status_code == 409 and "was not kept" in response.text
        assert path.read_text(encoding="utf-8") == content


def test_two_who_write_at_once_lose_nothing(run: Path) -> None:
    episodes = Episodes(RunFolder.find(run))
    episodes.refresh()
    rows = [row for group in ("g-11", "g-12") for row in episodes.members("train", 1, group)]

    def write(row: int) -> None:
        mine = Notes(run / "notes.json")  # as another program has it
        for number in range(10):
            mine.save(rows[row], [f"label {number}"], "")

    threads = [threading.Thread(target=write, args=(row,)) for row in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = Notes(run / "notes.json").read()
    assert len(kept) == 6 and {note.labels for note in kept.values()} == {("label 9",)}
    episodes.close()


def test_a_note_whose_folder_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    store(tmp_path, 1, members(1))
    episodes = Episodes(RunFolder.find(tmp_path))
    episodes.refresh()
    row = episodes.members("train", 1, "g-11")[0]
    (tmp_path / "notes.json").mkdir()
    with pytest.raises((OSError, ConfigError)):
        Notes(tmp_path / "notes.json").save(row, ["x"], "")
    episodes.close()


def test_notes_and_preference_pairs_are_exported_for_other_programs(
    run: Path, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_trajectory(1, episode=7, group_id="g-91")  # the same level in another step
    other.turns[0].response = "<answer>Left</answer>"
    store(run, 9, [other])
    episodes, notes = Episodes(RunFolder.find(run)), Notes(run / "notes.json")
    episodes.refresh()
    for row, label in (
        (episodes.members("train", 1, "g-11")[0], "chosen"),
        (episodes.members("train", 9, "g-91")[0], "rejected"),
        (episodes.members("val", 2, "val-7")[0], "chosen"),
        (episodes.members("val", 2, "val-8")[0], "rejected"),  # another prompt
    ):
        notes.save(row, [label, "seen"], "")
    episodes.close()
    code, out, _ = said([str(run), "--export-notes", str(run / "n.json")], capsys)
    assert (code, out.strip()) == (0, f"4 notes in {run / 'n.json'}")
    assert json.loads((run / "n.json").read_text())["notes"][0]["labels"] == ["chosen", "seen"]
    code, out, _ = said([str(run), "--export-preferences", str(run / "p.jsonl")], capsys)
    assert (code, out.strip()) == (0, f"1 pairs in {run / 'p.jsonl'}")
    datasets = pytest.importorskip("datasets")
    (pair,) = datasets.load_dataset("json", data_files=str(run / "p.jsonl"), split="train", cache_dir=str(run / "c"))
    assert pair["prompt"] == make_trajectory().messages
    assert [message["role"] for message in pair["chosen"]] == ["assistant", "user", "assistant"]
    assert pair["chosen"][0]["content"] == "<answer>Up</answer>" and pair["chosen"][2]["content"] == HOSTILE
    assert pair["rejected"][0]["content"] == "<answer>Left</answer>" and pair["rejected_episode"] == "train/9/g-91/7"
    trl = pytest.importorskip("trl.data_utils")
    assert trl.is_conversational(pair) and trl.maybe_extract_prompt(pair) == pair
    code, out, _ = said([str(run), "--text", "--where", "label=rejected"], capsys)
    assert code == 0 and "2 episodes are chosen" in out


@pytest.mark.exhaustive
@pytest.mark.processes
def test_a_browser_keeps_a_note_and_filters_by_its_label(page: Page) -> None:
    page.goto("/episode/train/1/0/g-11")
    page.keyboard.press("n")
    page.keyboard.type("odd, chosen")
    page.get_by_label("Comment").fill("pushes the box\ninto the corner")
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_label("Labels")).to_have_value("odd, chosen")
    page.locator(".to-table").click()
    expect(page.locator("#results")).to_contain_text("pushes the box")
    page.get_by_text("More filters").click()
    page.locator("select[name=label]").select_option("odd")
    expect(page.locator("#results .count")).to_have_text("1")
    page.reload()
    expect(page.locator("#results .count")).to_have_text("1")
    page.locator("#results .row").click()
    page.get_by_label("Labels").fill("")
    page.get_by_label("Comment").fill("")
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_label("Labels")).to_have_value("")
