"""What a frame is drawn as."""

from __future__ import annotations

import pytest

from roll.viewer.frames import make_frame

from .pages import PIXEL


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
