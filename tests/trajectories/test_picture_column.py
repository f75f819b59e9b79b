from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from roll.generation import Picture
from roll.trajectories.batch import collate
from roll.trajectories.model import Trajectory, Turn
from roll.trajectories.picture_column import PICTURES, picture_column, pictures_of
from roll.trajectories.samples import samples_from

PICTURE = st.builds(
    Picture,
    start=st.integers(0, 2**31 - 1),
    rows=st.integers(1, 999),
    columns=st.integers(1, 999),
    data=st.binary(max_size=30),
)
ROWS = st.lists(st.lists(PICTURE, max_size=3), min_size=1, max_size=5)


@given(rows=ROWS, order=st.randoms())
def test_pictures_come_back_whatever_rows_are_taken(rows, order) -> None:
    batch = TensorDict({PICTURES: picture_column(rows)}, batch_size=[len(rows)])
    assert pictures_of(batch) == rows
    taken = list(range(len(rows)))
    order.shuffle(taken)
    assert pictures_of(batch[torch.tensor(taken)]) == [rows[row] for row in taken]


def test_a_batch_of_words_has_no_pictures() -> None:
    trajectory = Trajectory("tag", "g", 0, 0, turns=[Turn([1, 2], [3], [0.0])])
    batch = collate(samples_from(trajectory), pad_token_id=0)
    assert PICTURES not in batch.keys() and pictures_of(batch) is None  # noqa: SIM118  (it iterates over rows)


def test_pictures_lie_in_a_sample_where_they_lay_in_its_turns() -> None:
    turns = [
        Turn([1, 9, 9, 2], [5, 6], [0.0, 0.0], pictures=[Picture(1, 1, 2, b"a")]),
        Turn([3, 9, 4], [7], [0.0], pictures=[Picture(1, 1, 1, b"b")]),
        Turn([8, 9], [5], [0.0], pictures=[Picture(1, 1, 1, b"c")], starts_sample=True),
    ]
    trajectory = Trajectory("tag", "g", 0, 0, turns=turns)
    for mode, expected in (
        ("trajectory", [[(1, b"a"), (7, b"b")], [(1, b"c")]]),
        ("step", [[(1, b"a")], [(1, b"a"), (7, b"b")], [(1, b"c")]]),
    ):
        samples = samples_from(trajectory, mode)
        assert [[(picture.start, picture.data) for picture in sample.pictures] for sample in samples] == expected
        for sample in samples:
            assert all(sample.token_ids[picture.start] == 9 for picture in sample.pictures)
