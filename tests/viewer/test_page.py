"""Review pages: complete, self-contained, and safe whatever a model wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.trajectories.model import Status, Trajectory
from roll.trajectories.store import trajectory_path, write_trajectories
from roll.viewer import trajectory_page_path, write_index, write_pages, write_trajectory_page
from roll.viewer.__main__ import main
from roll.viewer.frames import make_frame

from .pages import BOARDS, HOSTILE, PIXEL, make_trajectory


class Document(HTMLParser):
    """Tags with their attributes, and all text outside style and script."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._inside):
            self.text += data

    def count(self, tag: str, name: str = "", value: str = "") -> int:
        return sum(
            found == tag and (not name or value in (attrs.get(name) or "").split()) for found, attrs in self.tags
        )


def page_source(tmp_path: Path, trajectory: object = None, **options: object) -> str:
    path = write_trajectory_page(
        trajectory or make_trajectory(),  # type: ignore[arg-type]
        tmp_path / "page.html",
        title="my run",
        step=12,
        **options,  # type: ignore[arg-type]
    )
    return path.read_text(encoding="utf-8")


def visible(document: str) -> tuple[str, str, str]:
    """Return what the browser shows: the turn card's number, the frame's, and the position line."""
    shown = [
        re.findall(rf'<{tag} class="[^"]*{kind}" data-turn="(\w+)"(?![^>]*hidden)', document)
        for tag, kind in (("article", "turn"), ("figure", "frame"))
    ]
    assert [len(found) for found in shown] == [1, 1]
    position = re.search(r'id="position"[^>]*>([^<]*)<', document)
    assert position is not None
    return shown[0][0], shown[1][0], position.group(1)


def test_page_tells_all_of_an_episode(tmp_path: Path) -> None:
    document = Document(page_source(tmp_path))
    for expected in (
        "SimpleSokoban",
        "my run · after step 12",
        "solved",
        "completed",
        "10.75",
        "1000",
        "val-0",
        "You push <boxes>.",
        "Go & solve it.",
        "observed again",
        "<answer>Up</answer>",
        HOSTILE,
        "no valid action",
        "9 prompt and 19 sampled tokens",
        "weights 4–5",
        "generate 0.25 s",
    ):
        assert expected in document.text, expected
    assert document.count("figure", "class", "frame") == 3 and document.count("article", "class", "turn") == 3
    assert re.search(r"env\s+\+10\.90\s+format\s+-0\.05\s+=\s+\+10\.85", document.text)


def test_page_loads_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    source = page_source(tmp_path)
    document = Document(source)
    assert document.count("script") == 1 and document.count("img") == 0
    assert document.count("link") == document.count("iframe") == 0
    assert not re.search(r"https?://|@import|url\(", source)
    assert "default-src 'none'" in source


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet=st.sampled_from("<>&\"'/=!-script\n{}%#"), max_size=60))
def test_no_text_becomes_markup(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    def skeleton(content: str) -> list[str]:
        trajectory = make_trajectory(error=f"e{content}", final_frame="text of a frame")
        trajectory.turns[1].response = f"r{content}"
        trajectory.turns[1].action = f"a{content}"
        trajectory.turns[0].reward_parts = {f"n{content}": 0.0}
        trajectory.messages = [{"role": f"r{content}", "content": content}]
        return [tag for tag, _ in Document(page_source(tmp_path_factory.mktemp("page"), trajectory)).tags]

    assert skeleton(text) == skeleton("harmless")


def test_tokens_carry_their_probabilities(tmp_path: Path) -> None:
    document = Document(page_source(tmp_path, token_text=chr))
    tokens = [attributes for tag, attributes in document.tags if attributes.get("class") == "t"]
    assert len(tokens) == 19 + len(HOSTILE)
    assert tokens[0]["title"] == "token 60 · p = 0.905 · log p = -0.100" and tokens[0]["style"] == "--s:0.03"
    assert tokens[18]["title"] == "token 62 · p = 0.0498 · log p = -3.000" and tokens[18]["style"] == "--s:0.75"
    assert HOSTILE in document.text


def test_errors_and_missing_scores_are_said(tmp_path: Path) -> None:
    trajectory = make_trajectory(status=Status.ERROR_ENV, error="ValueError: boom", score=None, metrics={})
    text = Document(page_source(tmp_path, trajectory)).text
    assert "error_env" in text and "ValueError: boom" in text and "not scored" in text


def test_an_episode_without_turns_has_a_page(tmp_path: Path) -> None:
    trajectory = make_trajectory(turns=[], final_frame=None, final_observation="", messages=[])
    document = Document(page_source(tmp_path, trajectory))
    assert document.count("figure") == 1 and "nothing to see" in document.text


def test_images_are_shown_only_from_base64_data() -> None:
    assert make_frame(PIXEL).image == PIXEL
    for address in ("https://example.com/a.png", "data:text/html;base64,AAAA", "data:image/svg+xml;base64,AAAA"):
        frame = make_frame(address)
        assert frame.image is None and frame.text == address


@pytest.mark.parametrize("content", ["#P#\n#_#", "# P #\n# _ #", "#\tP\t#\n#\t_\t#"], ids=["plain", "spaced", "tabs"])
def test_boards_become_tiles_whatever_separates_their_cells(content: str) -> None:
    frame = make_frame(content)
    assert [[tile.glyph for tile in row] for row in frame.tiles] == [["#", "P", "#"], ["#", "_", "#"]]
    assert [tile.kind for tile in frame.tiles[0]] == ["wall", "thing", "wall"] and frame.tiles[1][1].kind == "floor"


def test_the_same_glyph_has_the_same_hue_and_usual_ones_differ() -> None:
    hues = {tile.glyph: tile.hue for row in make_frame("PXO√\nS_GF").tiles for tile in row if tile.kind == "thing"}
    assert {tile.hue for row in make_frame("PP\nPP").tiles for tile in row} == {hues["P"]}
    assert len(set(hues.values())) == 7


@pytest.mark.parametrize("content", ["You are at the door.\nGo north", "one line", "#" * 60 + "\n" + "#" * 60])
def test_prose_and_huge_text_stay_text(content: str) -> None:
    assert make_frame(content).text == content


def test_index_has_a_row_per_level_and_a_column_per_evaluation(tmp_path: Path) -> None:
    for step, solved in ((0, {1}), (10, {1, 2}), (20, {0, 1, 2, 10})):
        levels = [make_trajectory(group, success=group in solved) for group in (0, 1, 2, 10)]
        index = write_pages(levels, tmp_path, title="my run", step=step)
    source = index.read_text(encoding="utf-8")
    links = [attributes["href"] for tag, attributes in Document(source).tags if tag == "a"]
    assert len(links) == 12 and all((tmp_path / unquote(link or "")).is_file() for link in links)
    text = " ".join(Document(source).text.split())
    assert "step 0 25.0% of 4 step 10 50.0% of 4 step 20 100.0% of 4" in text
    rows = re.findall(r"val-\d+", text)
    assert rows == ["val-0", "val-1", "val-2", "val-10"]  # in the order of numbers
    assert "val-0 · seed 1000 step 0-1.0 step 10-1.0 step 20✓ 10.8" in text


def test_index_follows_pages_that_are_deleted(tmp_path: Path) -> None:
    write_pages([make_trajectory(0), make_trajectory(1)], tmp_path, title="r", step=0)
    trajectory_page_path(tmp_path, make_trajectory(1), step=0).unlink()
    assert "val-1" not in write_index(tmp_path, title="r").read_text(encoding="utf-8")


def test_page_names_are_safe_file_names(tmp_path: Path) -> None:
    path = trajectory_page_path(tmp_path, make_trajectory(tag="../a b", group_id="x/y"), step=3)
    assert path.parent == tmp_path / "step=000003" and path.name == "..-a-b-x-y-0.html"


def test_command_makes_pages_from_a_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (0, 10):
        rows = [make_trajectory(group) for group in range(3)]
        write_trajectories(trajectory_path(tmp_path, step, "val"), rows, step=step, phase="val", run="my run")
        write_trajectories(trajectory_path(tmp_path, step, "train"), rows, step=step, phase="train", run="my run")
    assert main([str(tmp_path), "--out", str(tmp_path / "out"), "--limit", "4"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path / "out" / "index.html") and "2 more" in said.err
    pages = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*-*.html")}
    assert pages == {f"step=0000{step}/SimpleSokoban-val-{group}-0.html" for step in ("00", "10") for group in (0, 1)}


def test_command_says_what_it_cannot_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "holds no trajectory files" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", ("1", "1", "before turn 1 of 2")),
        ("#turn=2", ("2", "2", "before turn 2 of 2")),
        ("#end", ("end", "end", "end, after 2 turns")),
        ("#turn=99", ("end", "end", "end, after 2 turns")),
    ],
)
def test_browser_shows_the_turn_in_the_address(
    tmp_path: Path, browse: Callable[[str], str], address: str, expected: tuple[str, str, str]
) -> None:
    path = write_trajectory_page(make_trajectory(), tmp_path / "p.html", title="r", step=1, token_text=chr)
    document = browse(f"{path.as_uri()}{address}")
    assert visible(document) == expected
    assert "<title>SimpleSokoban · step 1 · r</title>" in document  # the hostile response did not run


@pytest.mark.processes
def test_browser_steps_with_keys_buttons_slider_and_play(tmp_path: Path, browse: Callable[[str], str]) -> None:
    path = write_trajectory_page(make_trajectory(), tmp_path / "p.html", title="r", step=1)
    seen = browse_with(
        path,
        browse,
        """
        note(); key("ArrowRight"); note(); key("End"); note(); key("ArrowRight"); note(); key("ArrowLeft"); note();
        key("Home"); note(); click("next"); note(); click("last"); note(); click("back"); note(); click("first");
        note();
        document.querySelectorAll(".timeline button")[1].click(); note();
        const slider = document.getElementById("slider");
        slider.value = "0"; slider.dispatchEvent(new Event("input")); note();
        click("play"); setTimeout(() => { note(); finish(); }, 1800);
        """,
    )
    assert seen == ["1", "2", "end", "end", "2", "1", "2", "end", "2", "1", "2", "1", "end"]


def browse_with(path: Path, browse: Callable[[str], str], script: str) -> list[str]:
    """Run ``script`` in the page after its own; return the numbers of the turns it noted."""
    helpers = """
      const noted = [];
      const note = () => noted.push(document.querySelector(".turn:not([hidden])").dataset.turn);
      const key = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      const click = (id) => document.getElementById(id).click();
      const finish = () => { document.body.dataset.noted = noted.join(" "); };
    """
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace("</body>", f"<script>{helpers}{script}</script></body>"), encoding="utf-8")
    found = re.search(r'data-noted="([^"]*)"', browse(path.as_uri()))
    assert found is not None, "the script did not finish"
    return found.group(1).split()


def test_boards_of_the_page_are_the_frames_of_the_turns(tmp_path: Path) -> None:
    document = Document(page_source(tmp_path))
    tiles = [tag for tag, attributes in document.tags if attributes.get("class") in ("wall", "floor", "thing")]
    assert len(tiles) == sum(len(board.replace("\n", "")) for board in BOARDS)


def answer(group: int, episode: int, *, right: bool) -> Trajectory:
    """Return a graded response to a prompt; a wrong one still earned something for its format."""
    turn = make_trajectory().turns[0]
    turn.action, turn.reward, turn.reward_parts = "", 1.1 if right else 0.1, {"math": float(right), "format": 0.1}
    return make_trajectory(
        group,
        episode=episode,
        tag="arithmetic",
        turns=[turn],
        score=turn.reward,
        metrics={"success": float(right)},
        final_observation="right answer: 42",
        final_frame=None,
        messages=[{"role": "user", "content": f"What is 6 times\n{group}?"}],
    )


def test_an_answer_is_shown_with_prompt_right_answer_and_verdict_and_without_a_player(tmp_path: Path) -> None:
    document = Document(page_source(tmp_path, answer(7, 0, right=False)))
    text = " ".join(document.text.split())
    assert "What is 6 times 7?" in text and "Right answer 42" in text
    assert any(tag == "details" and "open" in attributes for tag, attributes in document.tags)
    assert document.count("dd", "class", "pill") == 1 and document.count("dd", "class", "good") == 0
    assert document.count("figure") == document.count("input") == 0


def test_the_index_shows_prompts_and_judges_answers_by_being_right(tmp_path: Path) -> None:
    index = write_pages([answer(7, 0, right=False), answer(8, 0, right=True)], tmp_path, title="r", step=0)
    document = Document(index.read_text(encoding="utf-8"))
    text = " ".join(document.text.split())
    assert "One row per prompt" in text and "What is 6 times 7?" in text
    assert document.count("a", "class", "good") == 1


def test_the_index_gives_the_figures_of_all_episodes_where_only_some_have_pages(tmp_path: Path) -> None:
    everything = [make_trajectory(group, success=group < 3) for group in range(8)]
    index = write_pages(everything[:2], tmp_path, title="r", step=4, of=everything)
    assert "37.5% of 8, 2 shown" in index.read_text(encoding="utf-8")
    again = write_index(tmp_path, title="r").read_text(encoding="utf-8")
    assert "37.5% of 8, 2 shown" in again


def test_pages_lead_to_their_neighbours_and_to_their_group(tmp_path: Path) -> None:
    members = [answer(group, episode, right=episode == 1) for group in (7, 8) for episode in (0, 1)]
    write_pages(members, tmp_path, title="r", step=0)

    def links(path: Path) -> dict[str, str]:
        tags = Document(path.read_text(encoding="utf-8")).tags
        found = {a["id"]: unquote(a["href"] or "") for tag, a in tags if tag == "a" and a.get("id")}
        assert all((path.parent / address).is_file() for address in found.values())
        return {name or "": address for name, address in found.items()}

    first, second, third = (trajectory_page_path(tmp_path, member, step=0) for member in members[:3])
    assert "previous-page" not in links(first) and links(first)["following-page"] == second.name
    assert links(second)["previous-page"] == first.name and links(second)["following-page"] == third.name
    group = first.parent / links(first)["group"]
    assert group == second.parent / links(second)["group"] != third.parent / links(third)["group"]
    side_by_side = Document(group.read_text(encoding="utf-8"))
    assert side_by_side.count("section", "class", "card") == 2 and "2 answers to one prompt" in side_by_side.text
    assert HOSTILE not in group.read_text(encoding="utf-8")


@pytest.mark.parametrize(("limit", "expected"), [(1, [0, 0, 1]), (4, [1, 1, 2]), (7, [2, 2, 3]), (0, [3, 3, 3])])
def test_limit_counts_pages_in_all_and_prefers_the_newest(tmp_path: Path, limit: int, expected: list[int]) -> None:
    for step in (0, 10, 20):
        rows = [make_trajectory(group) for group in range(3)]
        write_trajectories(trajectory_path(tmp_path, step, "train"), rows, step=step, phase="train", run="r")
    assert main([str(tmp_path), "--phase", "train", "--out", str(tmp_path / "out"), "--limit", str(limit)]) == 0
    counts = [len(list((tmp_path / "out" / f"step=0000{step:02d}").glob("*-0.html"))) for step in (0, 10, 20)]
    assert sorted(counts) == expected and sum(counts) == (limit or 9)


@pytest.mark.processes
def test_browser_filters_the_index_and_shows_the_whole_conversation(
    tmp_path: Path, browse: Callable[[str], str]
) -> None:
    index = write_pages([answer(7, 0, right=False), answer(8, 0, right=True)], tmp_path, title="r", step=0)
    script = """<script>
      const box = document.getElementById("search"); box.value = "times 8"; box.dispatchEvent(new Event("input"));
    </script></body>"""
    index.write_text(index.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    document = browse(index.as_uri())
    assert "1 of 2 rows" in document and len(re.findall(r"<tr[^>]* hidden", document)) == 1
    page = write_trajectory_page(make_trajectory(), tmp_path / "p.html", title="r", step=1)
    seen = browse_with(
        page,
        browse,
        """
        const visible = () => noted.push([...document.querySelectorAll(".turn")].filter((e) => e.offsetParent).length);
        visible(); key("a"); visible(); click("all"); visible(); finish();
        """,
    )
    assert seen == ["1", "3", "1"]
