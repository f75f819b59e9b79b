"""Trajectories survive the disk exactly, and other tools read the file as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.generation.pictures import Picture, picture_frame
from roll.trajectories import store
from roll.trajectories.model import Status, Trajectory, Turn

_numbers = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3)
_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
_text = st.text(max_size=8)
_pictures = st.builds(
    Picture,
    start=st.integers(0, 2**31 - 1),
    rows=st.integers(1, 99),
    columns=st.integers(1, 99),
    data=st.sampled_from([b"drawn", b"", b"another"]),
)
_turns = st.builds(
    Turn,
    prompt_ids=_ids,
    completion_ids=_ids,
    logprobs=st.lists(st.floats(allow_nan=False), max_size=5),
    policy_version=st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
    observation=_text,
    response=_text,
    action=st.none() | _text,
    reward=st.floats(allow_nan=False),
    reward_parts=_numbers,
    metrics=_numbers,
    frame=st.none() | _text | st.sampled_from([picture_frame(b"drawn"), "data:image/png;base64,?"]),
    seconds=_numbers,
    starts_sample=st.booleans(),
    pictures=st.lists(_pictures, max_size=2),
)
_trajectories = st.builds(
    Trajectory,
    tag=_text,
    group_id=_text,
    episode=st.integers(0, 2**40),
    seed=st.integers(0, 2**64 - 1),
    initial_hash=_text,
    turns=st.lists(_turns, max_size=3),
    status=st.sampled_from(Status),
    score=st.none() | st.floats(allow_nan=False),
    error=st.none() | _text,
    retries=st.integers(0, 9),
    final_observation=_text,
    final_frame=st.none() | _text,
    metrics=_numbers,
    messages=st.lists(st.dictionaries(st.sampled_from(["role", "content", "name"]), _text, max_size=3), max_size=2),
)


def make_trajectory(episode: int = 0, **changes: object) -> Trajectory:
    turn = Turn([1, 2], [3, 4], [-0.1, -2.5], (7, 8), "#P#", "<answer>Up</answer>", "Up", -0.1, {"env": -0.1})
    trajectory = Trajectory("SimpleSokoban", "g0", episode, 17, turns=[turn], status=Status.COMPLETED, score=-0.1)
    for name, value in changes.items():
        setattr(trajectory, name, value)
    return trajectory


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.lists(_trajectories, max_size=3))
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, trajectories) -> None:
    path = tmp_path_factory.mktemp("store") / "a.parquet"
    store.write_trajectories(path, trajectories, step=3, phase="train", run="r")
    assert store.read_trajectories(path) == trajectories


def test_a_picture_that_is_the_frame_is_written_once(tmp_path: Path) -> None:
    drawn = os.urandom(50_000)
    sizes = []
    for pictures in ([], [Picture(0, 2, 2, drawn)]):
        trajectory = make_trajectory()
        trajectory.turns[0].frame, trajectory.turns[0].pictures = picture_frame(drawn), pictures
        path = tmp_path / f"{len(pictures)}.parquet"
        store.write_trajectories(path, [trajectory], step=0, phase="val", run="r")
        assert store.read_trajectories(path) == [trajectory]
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] < 2_000


def test_none_and_zero_scores_stay_different(tmp_path: Path) -> None:
    rows = [make_trajectory(score=None), make_trajectory(score=0.0)]
    path = store.write_trajectories(tmp_path / "a.parquet", rows, step=0, phase="val", run="r")
    assert [trajectory.score for trajectory in store.read_trajectories(path)] == [None, 0.0]


def test_nan_logprobs_are_kept(tmp_path: Path) -> None:
    trajectory = make_trajectory()
    trajectory.turns[0].logprobs = [float("nan"), float("-inf")]
    path = store.write_trajectories(tmp_path / "a.parquet", [trajectory], step=0, phase="val", run="r")
    first, second = store.read_trajectories(path)[0].turns[0].logprobs
    assert first != first and second == float("-inf")


def test_half_a_surrogate_pair_does_not_lose_the_file(tmp_path: Path) -> None:
    trajectory = make_trajectory(final_observation="a\ud83db")
    path = store.write_trajectories(tmp_path / "a.parquet", [trajectory], step=0, phase="val", run="r")
    assert store.read_trajectories(path)[0].final_observation == "a\ufffdb"


def test_path_names_phase_and_step(tmp_path: Path) -> None:
    assert store.trajectory_path(tmp_path, 12, "train") == tmp_path / "trajectories" / "step=000012.parquet"
    assert store.trajectory_path(tmp_path, 12, "val") == tmp_path / "trajectories" / "val_step=000012.parquet"
    with pytest.raises(ValueError, match="'train' or 'val'"):
        store.trajectory_path(tmp_path, 12, "test")  # type: ignore[arg-type]


def test_origin_is_read_from_the_file(tmp_path: Path) -> None:
    path = store.write_trajectories(tmp_path / "a.parquet", [], step=12, phase="val", run="sokoban")
    assert store.read_origin(path) == store.Origin(step=12, phase="val", run="sokoban")


def test_a_failed_write_leaves_the_earlier_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    store.write_trajectories(path, [make_trajectory()], step=1, phase="train", run="r")

    def fail_half_way(table: pa.Table, where: Path, **_: object) -> None:
        Path(where).write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr(store.pq, "write_table", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        store.write_trajectories(path, [], step=1, phase="train", run="r")
    assert os.listdir(tmp_path) == ["a.parquet"]
    assert store.read_trajectories(path) == [make_trajectory()]


def test_a_number_that_does_not_fit_is_an_error_that_names_step_and_file(tmp_path: Path) -> None:
    trajectory = make_trajectory(seed=-1)
    with pytest.raises(ValueError, match=r"step 5 \(train\).*a\.parquet.*unsigned"):
        store.write_trajectories(tmp_path / "a.parquet", [trajectory], step=5, phase="train", run="r")


def test_foreign_and_future_files_are_refused(tmp_path: Path) -> None:
    foreign, future, text = tmp_path / "foreign.parquet", tmp_path / "future.parquet", tmp_path / "text.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"roll.schema_version": "99"}), future)
    text.write_text("no parquet")
    with pytest.raises(ValueError, match="no trajectory schema version"):
        store.read_trajectories(foreign)
    with pytest.raises(ValueError, match="version 99; this version of roll reads version 1"):
        store.read_origin(future)
    with pytest.raises(ValueError, match="not a parquet file"):
        store.read_trajectories(text)


def test_other_tools_find_plain_columns(tmp_path: Path) -> None:
    rows = [make_trajectory(0), make_trajectory(1, metrics={"success": 1.0})]
    path = store.trajectory_path(tmp_path, 12, "train")
    store.write_trajectories(path, rows, step=12, phase="train", run="sokoban")
    table = pq.read_table(path)  # also reads partition columns out of paths such as step=…
    assert table["success"].to_pylist() == [False, True]
    assert table["completion_tokens"].to_pylist() == [2, 2]
    assert table["step"].to_pylist() == [12, 12] and table["run"].to_pylist() == ["sokoban"] * 2
    assert table["turns"].to_pylist()[0][0]["completion_ids"] == [3, 4]
    assert not any(pa.types.is_map(field.type) for field in store.SCHEMA.field("turns").type.value_type)


def test_one_trajectory_is_read_with_the_texts_of_its_tokens_whatever_its_row_group(tmp_path: Path) -> None:
    rows = [make_trajectory(episode) for episode in range(5)]
    path = store.write_trajectories(
        tmp_path / "step=000001.parquet", rows, step=1, phase="train", run="r", token_text=lambda token: f"<{token}>"
    )
    used = {token for row in rows for turn in row.turns for token in (*turn.prompt_ids, *turn.completion_ids)}
    with store.open_trajectories(path) as file:
        table = file.read()
    pq.write_table(table, path, row_group_size=2)
    reader = store.TrajectoryReader()
    for number in (0, 1, 4, 2, 3, 0, 4):
        assert reader.read(path, number) == (rows[number], {token: f"<{token}>" for token in used})
    for number in (-1, 5):
        with pytest.raises(IndexError, match="has 5 trajectories"):
            reader.read(path, number)


def test_what_is_kept_of_a_file_is_not_taken_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(name: str, episode: int) -> Path:
        trajectories = [make_trajectory(episode), make_trajectory(episode + 1)]
        return store.write_trajectories(tmp_path / name, trajectories, step=1, phase="train", run="r")

    pieces = []
    piece_with = store._piece_with
    monkeypatch.setattr(store, "_piece_with", lambda *of: pieces.append(of) or piece_with(*of))
    reader, first, second = store.TrajectoryReader(), written("first.parquet", 0), written("second.parquet", 4)
    episodes = [reader.read(path, row)[0].episode for path in (first, second, first) for row in (0, 1)]
    assert episodes == [0, 1, 4, 5, 0, 1] and len(pieces) == 3
    written("first.parquet", 8)
    assert reader.read(first, 1)[0].episode == 9
    monkeypatch.setattr(store, "_KEPT_BYTES", 0)
    written("first.parquet", 8)
    assert [reader.read(first, row)[0].episode for row in (0, 1)] == [8, 9] and len(pieces) == 6
    first.unlink()
    with pytest.raises(FileNotFoundError):
        reader.read(first, 0)
