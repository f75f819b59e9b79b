"""The site of the documentation: built as `make docs` builds it, complete, and read without a network."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from docs_support import ROOT
from playwright.sync_api import Page, sync_playwright

import roll

pytestmark = pytest.mark.exhaustive

NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2].partition("\nnot_in_nav")[0]
FETCHED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""What a browser fetches without being asked, and the attribute that says from where."""


class Fetched(HTMLParser):
    """Collects the addresses that a page makes a browser fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(FETCHED.get(tag, ""))
        if address:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link, an anchor or a page without a place is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    without_network = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    said = subprocess.run(command, cwd=ROOT, env=os.environ | without_network, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return folder


@pytest.fixture(scope="module")
def opened(site: Path) -> Iterator[tuple[Page, list[str]]]:
    """A browser with the first page as a file, and the addresses that it asked for."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on this machine")
    asked: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error: {error}"))
        page.goto((site / "index.html").as_uri())
        yield page, asked
        chromium.close()


@pytest.mark.processes
def test_no_page_makes_a_browser_fetch_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        html = page.read_text(encoding="utf-8")
        fetched = Fetched(html).addresses
        assert len(fetched) > 3, page
        assert not [address for address in fetched if re.match(r"(https?:)?//", address)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text(encoding="utf-8")), style


@pytest.mark.processes
def test_the_search_answers_where_the_site_is_a_folder_of_files(opened: tuple[Page, list[str]]) -> None:
    page, asked = opened
    page.locator("label[for=__search]").first.click()
    page.locator("[data-md-component=search-query]").type("dual_clip_loss")
    page.locator(".md-search-result__item a").first.wait_for()
    found = page.locator(".md-search-result__item a").evaluate_all("links => links.map(link => link.href)")
    assert any("/configuration.html" in address for address in found)
    assert not [address for address in asked if not address.startswith(("file:", "blob:", "data:"))]


@pytest.mark.processes
def test_every_page_fits_a_telephone(site: Path, opened: tuple[Page, list[str]]) -> None:
    page, _ = opened
    for name in ("index", "program", "configuration", "dialects", "reference"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


@pytest.mark.processes
def test_the_reference_has_the_signature_of_every_public_name(site: Path) -> None:
    html = (site / "reference.html").read_text(encoding="utf-8")
    explained = set(re.findall(r'id="roll\.(\w+)"', html))
    assert explained == set(roll._FROM)
    assert not re.search(r":(?:func|class|meth):", html)


@pytest.mark.processes
def test_markdown_is_shown_and_not_its_signs(site: Path) -> None:
    for page in site.rglob("*.html"):
        [article] = re.findall(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL) or [""]
        assert not re.search(r"<code>[^<]*\\\|", article), page
        text = re.sub(r"<(pre|code).*?</\1>", "", article, flags=re.DOTALL)
        assert not re.search(r"\*\*|```|\]\(|<p>\||<p>:::|<p>[^<]*\n[*-] ", text), page


def test_the_first_page_leads_to_what_the_navigation_has() -> None:
    navigation = yaml.safe_load(NAVIGATION)
    sections = {title: pages for entry in navigation for title, pages in entry.items() if isinstance(pages, list)}
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", index, re.MULTILINE) == list(sections)
    outside = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))["OUTSIDE"]
    linked = [outside.get(path.removeprefix("../"), path) for path in re.findall(r"\]\(([^)]+)\)", index)]
    named = [path for pages in sections.values() for page in pages for path in page.values()]
    assert linked == named
