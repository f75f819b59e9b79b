import io
import os
import sys
from pathlib import Path

import pytest

from roll.common.standard_streams import show_what_can_be_shown

TEXT = "sokoban → output, 3 × 2 – 1 … ☃ é \udce9"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "sokoban → output, 3 × 2 – 1 … ☃ é ?"),
        ("latin-1", "sokoban -> output, 3 × 2 - 1 ... ? é ?"),
        ("ascii", "sokoban -> output, 3 x 2 - 1 ... ? ? ?"),
        ("cp1252", "sokoban -> output, 3 × 2 – 1 … ? é ?"),
    ],
)
def test_what_an_encoding_lacks_is_written_plainly(monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(UnicodeEncodeError):
        stream.write(TEXT)
    show_what_can_be_shown()
    stream.write(TEXT)
    stream.flush()
    assert stream.buffer.getvalue().decode(encoding) == shown


def test_what_is_no_file_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()  # as a notebook's
    monkeypatch.setattr(sys, "stdout", stream)
    show_what_can_be_shown()
    stream.write(TEXT)
    assert stream.getvalue() == TEXT


def test_a_file_that_became_a_terminal_is_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w", encoding="ascii") as stream:
        reader, writer = os.pipe()
        os.dup2(writer, stream.fileno())
        os.close(writer)
        monkeypatch.setattr(sys, "stdout", stream)
        show_what_can_be_shown()
        stream.write("1 → 2")
    with os.fdopen(reader, "rb") as written:
        assert written.read() == b"1 -> 2"
