"""Files of what a teacher said: written and read as they are, and refused where they are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roll.trajectories.errors import TaughtRowError
from roll.trajectories.taught import TaughtRow, read_taught, write_taught

GOOD: dict[str, Any] = {
    "input_ids": [5, 6, 7, 8],
    "places": [2, 3],
    "teacher_ids": [[7, 1], [8, 2]],
    "teacher_log_probs": [np.log([0.5, 0.25]).tolist(), np.log([0.9, 0.1]).tolist()],
}


def written(folder: Path, *rows: dict[str, Any]) -> list[Path]:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return [path]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    log_probs = np.log([[0.5, 0.25, 0.25]]).astype(np.float32)
    row = TaughtRow(np.array([4, 5]), np.array([1]), np.array([[5, 9]]), log_probs)
    write_taught(tmp_path / "a" / "b.parquet", [row, row])
    (back, again), digest = read_taught([tmp_path / "a" / "b.parquet"], vocabulary=10, max_length=2)
    for name in ("input_ids", "places", "teacher_ids", "teacher_log_probs"):
        assert np.array_equal(getattr(back, name), getattr(row, name))
        assert np.array_equal(getattr(again, name), getattr(row, name))
    assert len(digest) == 64


def test_what_is_left_over_is_worked_out(tmp_path: Path) -> None:
    (row,), _ = read_taught(written(tmp_path, GOOD), vocabulary=9, max_length=4)
    assert np.exp(row.teacher_log_probs[0]) == pytest.approx([0.5, 0.25, 0.25], rel=1e-6)
    assert np.exp(row.teacher_log_probs[1, 2]) < 1e-7 and np.isfinite(row.teacher_log_probs).all()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"places": []}, "places is empty"),
        ({"places": [0, 3]}, "places must ascend"),
        ({"places": [3, 3]}, "places must ascend"),
        ({"places": [2, 4]}, "places must ascend"),
        ({"teacher_ids": [[7, 1]]}, "k token ids for each"),
        ({"teacher_ids": [[7, 1], [8]]}, "row 2: "),
        ({"teacher_ids": [[7, 7], [8, 2]]}, "names a token twice"),
        ({"input_ids": [5, 6, 7, 9]}, "not below 9"),
        ({"teacher_log_probs": [[0.0], [0.0]]}, "must be 2 or 3 numbers"),
        ({"teacher_log_probs": [[0.0, -1.0], [-1.0, -1.0]]}, "together they are more than 1"),
        ({"input_ids": [5] * 9}, "more than sequence_length 8"),
        ({"teacher_ids": [[7], [8]], "teacher_log_probs": [[-1.0], [-1.0]]}, "k is 1 here and was another before"),
    ],
)
def test_a_row_that_is_not_what_it_says_is_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(TaughtRowError, match=r"rows.parquet, row 2: ") as raised:
        read_taught(written(tmp_path, GOOD, {**GOOD, **changes}), vocabulary=9, max_length=8)
    assert what in str(raised.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaughtRowError, match=r"has no column places, teacher_ids, teacher_log_probs"):
        read_taught(written(tmp_path, {"input_ids": [1]}), vocabulary=9, max_length=8)
    with pytest.raises(TaughtRowError, match="cannot be read"):
        read_taught([tmp_path / "none.parquet"], vocabulary=9, max_length=8)
