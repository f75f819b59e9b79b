"""Take the pictures of a run's review that the documentation shows, in headless Chromium, from ``roll view`` itself.

Example::

    python scripts/review_pictures.py output/sokoban docs/images
    python scripts/review_pictures.py output/sokoban /tmp/look --width 390 --dark --whole

The pages are those of one episode: a solved one of a group whose members scored differently, of the newest training
step. ``--episode train/6/7/train-0000325`` (phase, step, member, group) names another one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

from roll.viewer.episodes import Episodes
from roll.viewer.run_folder import RunFolder

_CHOSEN = """
select phase, step, episode, group_id from episodes where phase = 'train' and success and group_spread > 0
order by step desc, turns desc, group_id, episode limit 1
"""


def main() -> None:
    """Parse the command line and write ``review_<page>.png`` files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--episode", help="phase/step/member/group of the episode (default: one that was solved)")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=860)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--whole", action="store_true", help="whole pages, however long")
    arguments = parser.parse_args()
    browser_program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with served(arguments.run) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser_program, args=["--no-sandbox"])
        page = chromium.new_page(
            viewport={"width": arguments.width, "height": arguments.height},
            color_scheme="dark" if arguments.dark else "light",
            reduced_motion="reduce",
        )
        page.goto(address)
        home = "{0}//{2}".format(*page.url.split("/"))
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, path in pages(arguments.episode or chosen(arguments.run)).items():
            page.goto(f"{home}{path}")
            show(page, name)
            page.screenshot(path=arguments.out / f"review_{name}.png", full_page=arguments.whole)
            for part in page.locator("section.branch").all():
                part.screenshot(path=arguments.out / "review_branch.png")
        chromium.close()


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Start the review as a person does, and give the address that opens it."""
    words = [sys.executable, "-m", "roll", "view", str(run), "--no-browser"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    try:
        yield next(found[1] for line in server.stdout if (found := re.search(r"Open (http\S+)", line)))
    finally:
        server.terminate()
        server.wait()


def chosen(run: Path) -> str:
    """Return the address of the episode whose pages are shown, without the kind of page."""
    episodes = Episodes(RunFolder.find(run))
    episodes.refresh()
    [(phase, step, member, group)] = episodes.query(_CHOSEN)
    episodes.close()
    return f"{phase}/{step}/{member}/{group}"


def pages(episode: str) -> dict[str, str]:
    """Return the address of each page by its name."""
    phase, step, _, group = episode.split("/", 3)
    return {
        "overview": "/",
        "episodes": f"/episodes?phase={phase}&step={step}",
        "episode": f"/episode/{quote(episode)}",
        "tokens": f"/tokens/{quote(episode)}",
        "group": f"/group/{phase}/{step}/{quote(group)}",
    }


def show(page: Page, name: str) -> None:
    """Bring a page to what its picture is about."""
    if name == "episode":
        page.keyboard.press("ArrowRight")
    if name == "tokens":
        page.get_by_label("advantage").check()


if __name__ == "__main__":
    main()
