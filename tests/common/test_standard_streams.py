import io
import sys

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
