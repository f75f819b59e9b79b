"""Trajectories on disk: one parquet file per step and phase, one row per trajectory.

The file is what people analyse (``pandas``, ``duckdb``, ``datasets`` read it as it is) and what the viewer opens, so
every column has a plain type: free-form ``{name: number}`` fields become lists of ``{name, value}`` structs, because
parquet maps are not read by all of those. Reading gives back exactly what was written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from roll.common.file_stamp import FileStamp
from roll.generation.pictures import Picture, frame_picture
from roll.trajectories.model import Status, Trajectory, Turn

SCHEMA_VERSION = 1
"""Raised when a column changes meaning; readers refuse versions they do not know."""

Phase = Literal["train", "val"]

_VERSION_KEY = b"roll.schema_version"
_ORIGIN_KEY = b"roll.origin"
_TOKENS_KEY = b"roll.tokens"

_KEPT_BYTES: Final = 32 << 20
"""Up to which size rows that were read are kept for the next of them."""

_NUMBERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
_TEXTS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("extra", _TEXTS)])
_PICTURE = pa.struct(
    [("start", pa.int32()), ("rows", pa.int32()), ("columns", pa.int32()), ("data", pa.binary())]
)  # without data where it is the frame of its turn
_TURN = pa.struct(
    [
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("policy_version", pa.struct([("oldest", pa.int64()), ("newest", pa.int64())])),
        ("observation", pa.string()),
        ("response", pa.string()),
        ("action", pa.string()),
        ("reward", pa.float64()),
        ("reward_parts", _NUMBERS),
        ("metrics", _NUMBERS),
        ("frame", pa.string()),
        ("seconds", _NUMBERS),
        ("starts_sample", pa.bool_()),
        ("messages", pa.list_(_MESSAGE)),
        ("began", pa.float64()),
        ("begins_anew", pa.bool_()),
        ("pictures", pa.list_(_PICTURE)),
    ]
)
SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("step", pa.int64()),
        ("phase", pa.string()),
        ("tag", pa.string()),
        ("group_id", pa.string()),
        ("episode", pa.int64()),
        ("seed", pa.uint64()),
        ("initial_hash", pa.string()),
        ("status", pa.string()),
        ("score", pa.float64()),
        ("success", pa.bool_()),
        ("completion_tokens", pa.int64()),
        ("total_tokens", pa.int64()),
        ("error", pa.string()),
        ("retries", pa.int64()),
        ("final_observation", pa.string()),
        ("final_frame", pa.string()),
        ("metrics", _NUMBERS),
        ("messages", pa.list_(_MESSAGE)),
        ("began", pa.float64()),
        ("seat", pa.string()),
        ("turns", pa.list_(_TURN)),
    ]
)
"""Columns of the file. ``success``, ``completion_tokens`` and ``total_tokens`` are derived, for queries."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the trajectories of one file come from.

    Attributes:
        step: Training step after whose update (phase ``val``) or for which (phase ``train``) they were sampled.
        phase: ``"train"`` or ``"val"``.
        run: Name of the run.
    """

    step: int
    phase: Phase
    run: str


def trajectory_path(output_dir: str | Path, step: int, phase: Phase) -> Path:
    """Return where the trajectories of ``step`` live: ``trajectories/[val_]step=000012.parquet``.

    Raises:
        ValueError: The phase is neither ``"train"`` nor ``"val"``.
    """
    if phase not in ("train", "val"):
        raise ValueError(f"phase must be 'train' or 'val', got {phase!r}")
    prefix = "" if phase == "train" else "val_"
    return Path(output_dir) / "trajectories" / f"{prefix}step={step:06d}.parquet"


def write_trajectories(
    path: str | Path,
    trajectories: Sequence[Trajectory],
    *,
    step: int,
    phase: Phase,
    run: str,
    token_text: Callable[[int], str] | None = None,
) -> Path:
    """Write one parquet file, whole or not at all: readers never see half a file, also after a kill.

    Args:
        path: Target; its directory is created, an existing file is replaced.
        trajectories: Rows, in the order they are to be read back.
        step: Training step they belong to.
        phase: ``"train"`` or ``"val"``.
        run: Name of the run.
        token_text: Gives the text of a token. That of every token in the file is kept with it, so that it can be
            looked at where the model is not.

    Returns:
        The path written.

    Raises:
        ValueError: A number does not fit its column (token ids are 32-bit, seeds unsigned 64-bit).
    """
    path = Path(path)
    origin = {"step": step, "phase": phase, "run": run}
    metadata = {_VERSION_KEY: str(SCHEMA_VERSION).encode(), _ORIGIN_KEY: json.dumps(origin).encode()}
    if token_text is not None:
        texts = {token: _text(token_text(token)) for token in sorted(_tokens(trajectories))}
        metadata[_TOKENS_KEY] = json.dumps(texts, ensure_ascii=False).encode()
    try:
        rows = [_row(trajectory) | origin for trajectory in trajectories]
        table = pa.Table.from_pylist(rows, schema=SCHEMA).replace_schema_metadata(metadata)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise ValueError(
            f"the trajectories of step {step} ({phase}) do not fit the columns of {path}: {error}. "
            "Token ids must be 32-bit integers, seeds unsigned 64-bit integers, rewards and metrics numbers."
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same directory, so that os.replace stays within one file system and is atomic.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Return the trajectories of one file exactly as they were written.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a trajectory file of a version this code knows.
    """
    with open_trajectories(path) as file:
        return trajectories_of(file.read())


def trajectories_of(rows: pa.Table) -> list[Trajectory]:
    """Return the trajectories of rows, with all columns, that were read from a file of :func:`open_trajectories`."""
    return [_trajectory(row) for row in rows.to_pylist()]


def read_origin(path: str | Path) -> Origin:
    """Return run, step and phase of one file, reading only its footer.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a trajectory file of a version this code knows.
    """
    with open_trajectories(path) as file:
        return Origin(**json.loads(file.schema_arrow.metadata[_ORIGIN_KEY]))


class TrajectoryReader:
    """Reads one trajectory at a time, from any thread. A file is read in pieces, and a small one is kept for the next.

    Rows of a step are usually one piece: to show a few of them, it would be read a few times.
    """

    def __init__(self) -> None:
        self._kept: _Piece | None = None

    def read(self, path: str | Path, row: int) -> tuple[Trajectory, dict[int, str]]:
        """Return one trajectory of a file, and the texts of tokens that were kept with it.

        Args:
            path: The file.
            row: Which of its trajectories, from 0.

        Raises:
            FileNotFoundError: There is no such file.
            IndexError: It has no such row.
            ValueError: The file is not a trajectory file of a version this code knows.
        """
        file, piece = (str(path), FileStamp.of(path)), self._kept
        if piece is None or piece.file != file or not 0 <= row - piece.first < len(piece.rows):
            piece = _piece_with(path, row, file)
            self._kept = piece if piece.rows.nbytes <= _KEPT_BYTES else None
        found = piece.rows.slice(row - piece.first, 1).to_pylist()[0]
        return _trajectory(found), piece.texts


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that are stored together, from number ``first`` on, and the texts of the tokens in their file."""

    file: tuple[str, FileStamp]
    first: int
    rows: pa.Table
    texts: dict[int, str]


def _piece_with(path: str | Path, row: int, found: tuple[str, FileStamp]) -> _Piece:
    with open_trajectories(path) as file:
        group = first = 0
        while group < file.num_row_groups and row >= first + file.metadata.row_group(group).num_rows:
            first, group = first + file.metadata.row_group(group).num_rows, group + 1
        if row < 0 or group >= file.num_row_groups:
            raise IndexError(f"{path} has {file.metadata.num_rows} trajectories, none at row {row}")
        texts = json.loads((file.schema_arrow.metadata or {}).get(_TOKENS_KEY, b"{}"))
        rows = file.read_row_group(group)
    return _Piece(found, first, rows, {int(token): text for token, text in texts.items()})


def is_trajectory_file(path: str | Path) -> bool:
    """Whether ``path`` is a file that :func:`write_trajectories` wrote, of whatever version.

    Raises:
        FileNotFoundError: There is no such file.
    """
    try:
        with pq.ParquetFile(path) as file:
            return _VERSION_KEY in (file.schema_arrow.metadata or {})
    except pa.ArrowInvalid:
        return False


def _tokens(trajectories: Iterable[Trajectory]) -> set[int]:
    """Return every token that occurs."""
    found: set[int] = set()
    for trajectory in trajectories:
        for turn in trajectory.turns:
            found.update(turn.prompt_ids, turn.completion_ids)
    return found


def open_trajectories(path: str | Path | BinaryIO) -> pq.ParquetFile:
    """Open a file, or the content of one, to read some of its columns, if it is ours and of a known version.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a trajectory file of a version this code knows.
    """
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from error
    found = (file.schema_arrow.metadata or {}).get(_VERSION_KEY)
    if found != str(SCHEMA_VERSION).encode():
        file.close()
        was = "no trajectory schema version" if found is None else f"trajectory schema version {found.decode()}"
        raise ValueError(
            f"{path} has {was}; this version of roll reads version {SCHEMA_VERSION}. "
            "Point it at a file under <output_dir>/trajectories, or use the roll that wrote it."
        )
    return file


def _row(trajectory: Trajectory) -> dict[str, Any]:
    """Return the row of one trajectory, less the columns that say where it comes from."""
    return {
        "tag": _text(trajectory.tag),
        "group_id": _text(trajectory.group_id),
        "episode": trajectory.episode,
        "seed": trajectory.seed,
        "initial_hash": _text(trajectory.initial_hash),
        "status": trajectory.status.value,
        "score": trajectory.score,
        "success": trajectory.success,
        "completion_tokens": trajectory.completion_tokens,
        "total_tokens": trajectory.total_tokens,
        "error": _text(trajectory.error),
        "retries": trajectory.retries,
        "final_observation": _text(trajectory.final_observation),
        "final_frame": _text(trajectory.final_frame),
        "metrics": _pairs(trajectory.metrics),
        "messages": [_message_row(message) for message in trajectory.messages],
        "began": trajectory.began,
        "seat": _text(trajectory.seat),
        "turns": [_turn_row(turn) for turn in trajectory.turns],
    }


def _turn_row(turn: Turn) -> dict[str, Any]:
    """Return one element of the ``turns`` column."""
    oldest, newest = turn.policy_version
    return {
        "prompt_ids": turn.prompt_ids,
        "completion_ids": turn.completion_ids,
        "logprobs": turn.logprobs,
        "policy_version": {"oldest": oldest, "newest": newest},
        "observation": _text(turn.observation),
        "response": _text(turn.response),
        "action": _text(turn.action),
        "reward": turn.reward,
        "reward_parts": _pairs(turn.reward_parts),
        "metrics": _pairs(turn.metrics),
        "frame": _text(turn.frame),
        "seconds": _pairs(turn.seconds),
        "starts_sample": turn.starts_sample,
        "messages": [_message_row(message) for message in turn.messages],
        "began": turn.began,
        "begins_anew": turn.begins_anew,
        "pictures": [_picture_row(picture, turn.frame) for picture in turn.pictures],
    }


def _message_row(message: Mapping[str, str]) -> dict[str, Any]:
    """Return one element of ``messages``; keys besides role and content are kept apart."""
    extra = [
        {"name": _text(key), "value": _text(value)} for key, value in message.items() if key not in ("role", "content")
    ]
    return {"role": _text(message.get("role")), "content": _text(message.get("content")), "extra": extra}


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of one row."""
    return Trajectory(
        tag=row["tag"],
        group_id=row["group_id"],
        episode=row["episode"],
        seed=row["seed"],
        initial_hash=row["initial_hash"],
        turns=[_turn(turn) for turn in row["turns"]],
        status=Status(row["status"]),
        score=row["score"],
        error=row["error"],
        final_observation=row["final_observation"],
        final_frame=row["final_frame"],
        metrics=_mapping(row["metrics"]),
        messages=[_message(message) for message in row["messages"]],
        retries=row.get("retries") or 0,  # files of earlier releases have no such column
        began=row.get("began") or 0.0,
        seat=row.get("seat") or "",
    )


def _turn(row: Mapping[str, Any]) -> Turn:
    """Return one turn of a row."""
    fields = dict(row)
    version = fields.pop("policy_version")
    for name in ("reward_parts", "metrics", "seconds"):
        fields[name] = _mapping(fields[name])
    # Files of earlier releases have no such columns.
    fields["began"] = fields.pop("began", None) or 0.0
    fields["messages"] = [_message(message) for message in fields.pop("messages", None) or ()]
    fields["pictures"] = [_picture(picture, fields["frame"]) for picture in fields.pop("pictures", None) or ()]
    return Turn(policy_version=(version["oldest"], version["newest"]), **fields)


def _picture_row(picture: Picture, frame: str | None) -> dict[str, Any]:
    """Return one element of ``pictures``; the picture that the frame of the turn is is not written twice."""
    data = None if picture.data == frame_picture(frame) else picture.data
    return {"start": picture.start, "rows": picture.rows, "columns": picture.columns, "data": data}


def _picture(row: Mapping[str, Any], frame: str | None) -> Picture:
    """Return what :func:`_picture_row` was given."""
    data = frame_picture(frame) if row["data"] is None else row["data"]
    assert data is not None  # left out only where the frame has it
    return Picture(row["start"], row["rows"], row["columns"], data)


def _message(row: Mapping[str, Any]) -> dict[str, str]:
    """Return one message of a row, without the keys it never had."""
    message = {key: row[key] for key in ("role", "content") if row[key] is not None}
    return message | _mapping(row["extra"])


def _pairs(numbers: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return a mapping of numbers as a list of name and value, in its order."""
    return [{"name": _text(name), "value": value} for name, value in numbers.items()]


def _mapping(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what :func:`_pairs` was given."""
    return {pair["name"]: pair["value"] for pair in pairs}


def _text(text: str | None) -> str | None:
    """Return text that parquet can hold: half a surrogate pair, which is no character, becomes U+FFFD.

    Only an environment that slices UTF-16 can make one, and a file must not fail for it.
    """
    if text is None or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
