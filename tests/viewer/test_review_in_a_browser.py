"""The review in a real browser: keys, clicks, filters, and what people who do not see or who see few colours get."""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from roll.experience.folder import FolderStore
from roll.viewer.episodes import Episodes
from roll.viewer.run_folder import RunFolder
from roll.viewer.server import Review, make_app
from tests.rings import exhaustive_but

from .pages import HOSTILE, answer, make_trajectory
from .test_server import learn, members, store
from .test_waiting import NAMES, group

pytestmark = pytest.mark.processes

ADDRESSES = (
    *("/", "/episodes?step=1", "/episode/train/1/0/g-11", "/episode/val/2/0/val-7"),
    *("/tokens/train/1/0/g-11", "/group/train/1/g-11"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on this machine")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page that was let in, of a run with games, answers, errors, and a model that wrote what it should not."""
    folder = tmp_path_factory.mktemp("run")
    store(folder, 1, members(1))
    learn(folder)
    store(folder, 2, [answer(group, 0, right=group == 7) for group in (7, 8)], "val")
    hostile = make_trajectory(3, group_id=HOSTILE, tag=HOSTILE, error=HOSTILE)
    hostile.turns[0].response = f"{HOSTILE}\x1b]0;x\x07\u202e<think>{HOSTILE}</think>" + "x" * 1_000_000
    store(folder, 3, [hostile])
    with let_in(browser, folder) as opened:
        yield opened


@contextmanager
def let_in(browser: Browser, folder: Path) -> Iterator[Page]:
    """A page of the review of a folder, opened with the address that the terminal shows."""
    listener = socket.create_server(("127.0.0.1", 0))
    port, addresses = listener.getsockname()[1], list[str]()
    episodes = Episodes(RunFolder.find(folder))
    _, gate = make_app(Review(episodes), port, addresses.append)
    gate.new_key()
    server = uvicorn.Server(uvicorn.Config(gate, log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    context = browser.new_context(base_url=f"http://127.0.0.1:{port}", reduced_motion="reduce")
    context.set_default_timeout(60_000)
    opened = context.new_page()
    opened.goto(addresses[0])
    yield opened
    context.close()
    server.should_exit = True
    thread.join()
    episodes.close()


def test_the_table_follows_its_filters_and_the_address_follows_the_table(page: Page) -> None:
    page.goto("/episodes")
    page.get_by_label("Outcome").select_option("broken")
    expect(page.locator("#results")).to_contain_text("3 episodes")
    assert page.url.endswith("/episodes?outcome=broken")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("no such words")
    expect(page.locator("#results")).to_contain_text("No episode is like that.")
    expect(page).to_have_url(re.compile(r"no.{1,3}such.{1,3}words"))  # on a busy machine it is asked while one types
    page.reload()
    expect(page.get_by_label("Search")).to_have_value("no such words")


def test_keys_lead_from_the_table_through_episodes_and_turns(page: Page) -> None:
    page.goto("/episodes?phase=train&step=1&sort=-score")
    for key in "jjk":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    expect(page).to_have_url(
        f"{page.url.partition('/episode')[0]}/episode/train/1/2/g-11?phase=train&step=1&sort=-score"
    )
    expect(page.locator(".position")).to_have_text("before turn 1 of 2")
    page.wait_for_load_state()  # a page that is seen need not hear yet
    page.keyboard.press("ArrowRight")
    expect(page.locator(".turn:visible")).to_contain_text("observed again")
    page.keyboard.press("End")
    expect(page.locator(".position")).to_have_text("end, after 2 turns")
    page.keyboard.press("a")
    expect(page.locator(".turn:visible")).to_have_count(3)
    page.keyboard.press("]")
    expect(page.locator(".where")).to_contain_text("2 of 6 chosen")
    page.wait_for_load_state()
    page.keyboard.press("t")
    page.get_by_label("log-probability").check()
    expect(page.locator(".by-logprob")).to_be_visible()
    colours = page.locator(".sampled.s7, .sampled.s0").evaluate_all(
        "all => all.map(e => getComputedStyle(e).backgroundColor)"
    )
    assert len(set(colours)) > 1
    page.keyboard.press("u")
    expect(page.locator(".episodes")).to_be_visible()


def test_tokens_are_shaded_by_what_the_learner_made_of_them_and_a_legend_says_how(page: Page) -> None:
    page.goto("/tokens/train/1/0/g-11")
    for name, seen in (("trainer/sampler ratio", ".r0, .rp4, .rm2"), ("advantage", ".ap2, .am4")):
        page.get_by_label(name).check()
        expect(page.locator(".legend:visible")).to_have_count(1)
        colours = page.locator(f".tokens :is({seen})").evaluate_all(
            "all => all.map(e => getComputedStyle(e).backgroundColor)"
        )
        assert len(set(colours)) == seen.count(".")
        assert not problems_of(page), name


def test_a_hostile_episode_is_only_text(page: Page) -> None:
    said: list[str] = []
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto("/episodes?step=3")
    page.locator(".row").click()
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    for address in (
        page.url,
        page.url.replace("/episode/", "/tokens/"),
        page.url.replace("/episode/train/3/0", "/group/train/3"),
    ):
        page.goto(address)
        assert "taken" not in page.title().replace(HOSTILE, "") and page.locator("main img").count() == 0
        assert page.locator("script").count() == 1
    assert not said


def test_a_person_finds_a_group_that_waits_and_says_what_it_is_worth(browser: Browser, tmp_path: Path) -> None:
    experience = FolderStore(tmp_path / "store")
    experience.append([group(name) for name in NAMES], 4)
    with let_in(browser, experience.path) as page:
        page.get_by_role("link", name="Waiting").click()
        expect(page.locator("tbody tr")).to_have_count(3)
        assert not problems_of(page)
        page.get_by_role("link", name=NAMES[1]).click()
        expect(page.locator("main")).to_contain_text(HOSTILE)
        assert not problems_of(page)
        page.get_by_label("Scores").fill("0, 1, -")
        page.get_by_role("button", name="Approve with these scores").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(page.locator("main")).not_to_contain_text(NAMES[1])
        assert [each.group_id for each in experience.waiting()] == [NAMES[0], NAMES[2]]
        page.get_by_role("link", name=NAMES[2]).click()
        page.get_by_role("button", name="Reject").click()
        page.get_by_role("link", name=NAMES[0]).click()
        page.get_by_role("button", name="Approve", exact=True).click()
        expect(page.locator("main")).to_contain_text("No group waits.")
    lease = experience.lease(2, 1)
    assert lease is not None
    scores = {each.group_id: [member.score for member in each.trajectories] for each in lease.groups}
    assert scores == {NAMES[0]: [0, 1 / 3, 2 / 3], NAMES[1]: [0, 1, 2 / 3]}
    experience.close()


@pytest.mark.parametrize(
    "look", exhaustive_but([(w, s) for w in (1280, 390) for s in ("light", "dark")], (1280, "light"))
)
def test_pages_fit_and_an_outside_judge_finds_them_accessible(page: Page, look: tuple[int, str]) -> None:
    width, scheme = look
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 800})
    for address in ADDRESSES:
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        assert not problems_of(page), address


def problems_of(page: Page) -> list[tuple[str, list[str]]]:
    """Return what an outside judge of accessibility finds."""
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [(each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in violations]
