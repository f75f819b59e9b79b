"""A review in one file: complete, without a network, and harmless whatever a model wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect

from roll.pipelines.reporting.review import write_review
from roll.runs.layout import FANS, branches_of
from roll.trajectories.model import Status, TrajectoryGroup
from roll.viewer.episodes import Episodes
from roll.viewer.export import Exported, export
from roll.viewer.filters import Filter
from roll.viewer.notes import Notes
from roll.viewer.run_folder import RunFolder

from .pages import BOARDS, HOSTILE, answer, make_trajectory
from .test_branches import RECORD
from .test_review_in_a_browser import browser, problems_of
from .test_server import Document, members, store
from .test_text import said

pytestmark = pytest.mark.long  # pages of whole runs

__all__ = ["browser"]


TILES = (["wall"], ["floor"], ["thing"])


def exported(folder: Path, where: str = "", **options: float) -> tuple[Exported, str]:
    episodes = Episodes(RunFolder.find(folder))
    episodes.refresh()
    written = export(episodes, folder / "out.html", Filter.parse(where), **options)  # type: ignore[arg-type]
    episodes.close()
    return written, written.path.read_text(encoding="utf-8")


def part(source: str, name: str) -> str:
    """Return the text of one part of the file."""
    found = re.search(rf'<section class="view" id="{name}">(.*?)(?=<section class="view"|</main>)', source, re.DOTALL)
    assert found is not None, name
    return " ".join(" ".join(Document(found[1]).pieces).split())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store(tmp_path, 1, members(1))
    store(tmp_path, 2, [answer(group, 0, right=group == 7) for group in (7, 8)], "val")
    return tmp_path


def test_a_file_has_overview_table_episodes_tokens_and_groups(run: Path) -> None:
    written, source = exported(run)
    assert (written.episodes, written.left_out) == (8, 0)
    assert "50.0% 0.60" in part(source, "overview") and "8 shown" in part(source, "episodes")
    assert "What is 6 times 7?" in part(source, "episode-0") and "right answer 42" in part(source, "episode-0")
    game = part(source, "episode-2")
    for expected in ("SimpleSokoban", "You push <boxes>.", "Go & solve it.", "observed again", HOSTILE, "weights 4–5"):
        assert expected in game, expected
    assert "env +10.90 format -0.05 = +10.85" in game and "no valid action" in game
    assert "3 attempts from one start" in part(source, "group-2")
    titles = [attributes.get("title") for _, attributes in Document(source).tags]
    assert "token 60 · p = 0.905 · log p = -0.100" in titles
    tiles = [found for found in Document(source).tags if (found[1].get("class") or "").split()[:1] in TILES]
    assert len(tiles) == 6 * sum(len(board.replace("\n", "")) for board in BOARDS)


def test_every_link_of_a_file_leads_to_a_part_of_it(run: Path) -> None:
    for where in ("", "phase=train", "group=g-11&score=1.."):
        tags = Document(exported(run, where)[1]).tags
        parts = {found["id"] for _, found in tags if found.get("id")}
        links = [found["href"] or "" for tag, found in tags if tag == "a"]
        assert links and all(link.startswith("#") and link[1:].partition("?")[0] in parts for link in links)


def test_a_file_holds_what_is_chosen_up_to_a_number_or_a_size_and_says_what_it_left_out(run: Path) -> None:
    written, source = exported(run, "phase=train&sort=-score", most=2)
    assert (written.episodes, written.left_out) == (2, 4)
    assert "This file holds 2 of 6 episodes that were chosen by phase=train&sort=-score" in part(source, "episodes")
    assert "score 2.00" in part(source, "episode-0") and "score 1.00" in part(source, "episode-1")
    assert 'id="episode-2"' not in source and "8 episodes are stored" in part(source, "overview")
    assert "1 more are not shown" in part(source, "group-0") and "advantage +1.00" in part(source, "group-0")
    small = exported(run, megabytes=0.0)
    assert (small[0].episodes, small[0].left_out) == (1, 7) and 'class="after"' not in small[1]


def test_the_same_run_gives_the_same_file(run: Path) -> None:
    assert exported(run)[1] == exported(run)[1]


def test_a_file_loads_nothing_and_runs_only_its_own_script(run: Path) -> None:
    source = exported(run)[1]
    tags = Document(source).tags
    assert [dict(found) for tag, found in tags if tag in ("script", "style")] == [{}, {}]
    assert {"link", "iframe", "img", "object", "base"}.isdisjoint(tag for tag, _ in tags)
    assert not re.search(r"https?://|@import|url\(", source)
    policy = next(found["content"] or "" for tag, found in tags if found.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert not [name for _, found in tags for name in found if name == "style" or name.startswith("on")]


@pytest.mark.exhaustive
@settings(max_examples=15, deadline=None)
@given(st.text(alphabet=st.sampled_from("<>&\"'/=!-script\n{}%#"), max_size=60))
def test_no_text_becomes_markup(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    def skeleton(content: str) -> list[str]:
        trajectory = make_trajectory(error=f"e{content}", final_frame="text of a frame", tag=f"t{content}")
        trajectory.turns[1].response = f"r{content}"
        trajectory.turns[1].action = f"a{content}"
        trajectory.turns[0].reward_parts = {f"n{content}": 0.0}
        trajectory.messages = [{"role": f"r{content}", "content": content}]
        folder = tmp_path_factory.mktemp("run")
        store(folder, 1, [trajectory])
        return [tag for tag, _ in Document(exported(folder)[1]).tags]

    assert skeleton(text) == skeleton("harmless")


def test_long_texts_are_cut_and_the_file_says_so(tmp_path: Path) -> None:
    long = make_trajectory(3)
    long.turns[0].response = "x" * 1_000_000
    long.turns[0].prompt_ids = [7] * 1_500
    store(tmp_path, 1, [long])
    source = exported(tmp_path)[1]
    assert "980,000 characters more are not in this file" in source and "500 tokens before are not in" in source
    assert len(source) < 600_000


def test_an_episode_that_broke_without_a_turn_has_its_place(tmp_path: Path) -> None:
    store(tmp_path, 1, [make_trajectory(turns=[], final_frame=None, final_observation="", messages=[], score=None)])
    text = part(exported(tmp_path)[1], "episode-0")
    assert "nothing to see" in text and "not scored" in text


def test_the_program_writes_a_file_and_says_what_is_not_in_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "new" / "file.html"
    code, out, err = said([str(run), "--export", str(path), "--where", "phase=train", "--most", "2"], capsys)
    assert (code, out.strip()) == (0, str(path)) and "4 episodes that were chosen are not in the file" in err
    assert sorted(path.parent.iterdir()) == [path]
    for wrong in ("step=x", "colour=red", "broken"):
        code, _, err = said([str(run), "--export", str(path), "--where", wrong], capsys)
        assert code == 2 and "outcome=broken&step=8..16" in err


@pytest.mark.exhaustive
def test_a_run_writes_the_review_of_its_first_and_newest_evaluations(tmp_path: Path) -> None:
    from roll.config import RLVRConfig

    config = RLVRConfig.model_construct(output_dir=tmp_path, render_save_dir=None, exp_name="my run")
    for step in (0, 2, 4, 6, 8):
        levels = [make_trajectory(n, group_id=f"val-{n}", success=n < step) for n in range(24)]
        store(tmp_path, step, levels, "val")
        groups = [TrajectoryGroup(each.group_id, each.tag, [each]) for each in levels]
        path = write_review(config, groups, step, chr)
    source = path.read_text(encoding="utf-8")
    steps = [found["data-step"] for tag, found in Document(source).tags if tag == "tr" and found.get("data-step")]
    assert path == tmp_path / "render" / "index.html"
    assert {step: steps.count(step) for step in steps} == {"8": 16, "6": 16, "4": 16, "0": 16}
    assert "33.3%" in part(source, "overview"), "the share of all episodes, not of those that are shown"


def test_a_run_that_stores_nothing_writes_the_review_of_its_newest_evaluation(tmp_path: Path) -> None:
    from roll.config import RLVRConfig

    config = RLVRConfig.model_construct(output_dir=tmp_path, render_save_dir=None, exp_name="my run")
    groups = [TrajectoryGroup("val-0", "SimpleSokoban", [make_trajectory()])]
    source = write_review(config, groups, 3, chr).read_text(encoding="utf-8")
    assert "observed again" in part(source, "episode-0") and not (tmp_path / "trajectories").exists()


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str, list[str]]]:
    """A file that a browser opens, its address, and what the browser complained of or asked for beside it."""
    folder = tmp_path_factory.mktemp("run")
    store(folder, 1, members(1))
    store(folder, 2, [answer(group, 0, right=group == 7) for group in (7, 8)], "val")
    hostile = make_trajectory(3, group_id=HOSTILE, tag=HOSTILE, error=HOSTILE, status=Status.ERROR_ENV)
    hostile.turns[0].response = f"{HOSTILE}\x1b]0;x\x07\u202e<think>{HOSTILE}</think>" + "x" * 1_000_000
    store(folder, 3, [hostile])
    fans = branches_of(folder, "train", 1, "g-11", 0)
    fans.mkdir(parents=True)
    (fans / FANS).write_text(json.dumps(RECORD | {"score": 0.0}))
    episodes = Episodes(RunFolder.find(folder))
    episodes.refresh()
    Notes(episodes.run.notes_file).save(episodes.first(Filter.parse("group=g-12"), 1)[0], ["odd"], "look")
    episodes.close()
    written, _ = exported(folder)
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(60_000)
    page, address, heard = context.new_page(), written.path.as_uri(), list[str]()
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: heard.append(dialog.message))
    page.on("request", lambda request: heard.append(request.url) if not request.url.startswith(address) else None)
    yield page, address, heard
    context.close()


@pytest.mark.exhaustive
@pytest.mark.processes
def test_a_browser_shows_one_part_at_a_time_and_keys_lead_on(opened: tuple[Page, str, list[str]]) -> None:
    page, address, heard = opened
    page.goto(address)
    expect(page.locator(".view:visible")).to_have_id("overview")
    page.get_by_role("link", name="3 × error_env").click()
    expect(page.locator("#results tbody tr:visible")).to_have_count(3)
    expect(page.get_by_label("Status")).to_have_value("error_env")
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("#results .count")).to_have_text("9")
    for outcome, number in (("differing", 3), ("noted", 1), ("solved", 2), ("", 9)):
        page.get_by_label("Outcome").select_option(outcome)
        expect(page.locator("#results tbody tr:visible")).to_have_count(number)
    page.get_by_label("Search").fill("what is 6  TIMES 8")
    expect(page.locator("#results tbody tr:visible")).to_have_count(1)
    page.get_by_label("Search").fill("")
    page.locator("[name=step]").fill("..1")
    expect(page.locator("#results .count")).to_have_text("6")
    page.locator("#results").get_by_role("link", name="Score").click()
    scores = page.locator("#results tbody tr:visible td:nth-child(2)")
    assert scores.all_text_contents() == ["2.00", "1.00", "0.00", "–", "–", "–"]
    page.locator("#results").get_by_role("link", name="Score").click()
    expect(scores.first).to_have_text("0.00")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".position:visible")).to_have_text("before turn 1 of 2")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".turn:visible")).to_contain_text("observed again")
    page.keyboard.press("End")
    expect(page.locator(".position:visible")).to_have_text("end, after 2 turns")
    page.keyboard.press("t")
    page.get_by_label("log-probability").and_(page.locator(":visible")).check()
    page.keyboard.press("]")
    expect(page.locator(".by-logprob:visible")).to_have_count(1)
    page.keyboard.press("u")
    expect(page.locator("#results")).to_be_visible()
    assert heard == []


@pytest.mark.processes
def test_a_hostile_episode_in_a_file_is_only_text(opened: tuple[Page, str, list[str]]) -> None:
    page, address, heard = opened
    for name in ("#episode-0", "#tokens-0", "#group-0", "#episodes"):
        page.goto(f"{address}{name}")
        expect(page.locator(f"section{name}")).to_contain_text(HOSTILE)
        assert "taken" not in page.title() and page.locator("img").count() == 0
    assert page.locator("script").count() == 1 and heard == []


@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.parametrize("look", [(1280, "light"), (390, "dark")])
def test_a_file_fits_and_an_outside_judge_finds_it_accessible(
    opened: tuple[Page, str, list[str]], look: tuple[int, str]
) -> None:
    width, scheme = look
    page, address, _ = opened
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 800})
    for name in ("", "#episodes", "#episode-3", "#episode-1", "#tokens-3", "#group-3"):
        page.goto(f"{address}{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert not problems_of(page), name


def test_trajectories_are_not_changed_by_being_shown(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*.parquet")}
    exported(run)
    assert {path: path.read_bytes() for path in run.rglob("*.parquet")} == before
