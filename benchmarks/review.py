"""How long the review takes to open and to filter a run of a million turns.

``python benchmarks/review.py`` writes a run of that size (about 200 MB) and prints one line per measurement.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from starlette.testclient import TestClient

from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.store import trajectory_path, write_trajectories
from roll.viewer.episodes import Episodes
from roll.viewer.filters import Filter
from roll.viewer.run_folder import RunFolder
from roll.viewer.server import Review, make_app

WORDS = "the box is left of player so push up then right wall target free move answer think because maybe".split()


def write_run(folder: Path, *, files: int, episodes: int, turns: int) -> Path:
    """Write a run whose files differ in step, group, score and status, and hold the same turns.

    Args:
        folder: Where the run goes.
        files: Training steps.
        episodes: Episodes per step.
        turns: Turns per episode, on average.

    Returns:
        ``folder``.
    """
    chance = random.Random(0)
    first = trajectory_path(folder, 1, "train")
    write_trajectories(
        first,
        [_episode(chance, index, turns) for index in range(episodes)],
        step=1,
        phase="train",
        run="generated",
        token_text=lambda token: f"t{token}",
    )
    table = pq.read_table(first)
    for step in range(2, files + 1):
        origin = json.dumps({"step": step, "phase": "train", "run": "generated"}).encode()
        columns = {
            "step": pa.array([step] * episodes, pa.int64()),
            "group_id": pa.array([f"train-{step * episodes // 8 + index // 8:07d}" for index in range(episodes)]),
            "score": pa.array([chance.gauss(step / files, 1.0) for _ in range(episodes)], pa.float64()),
        }
        other = table
        for name, values in columns.items():
            other = other.set_column(other.schema.get_field_index(name), name, values)
        other = other.replace_schema_metadata({**table.schema.metadata, b"roll.origin": origin})
        pq.write_table(other, trajectory_path(folder, step, "train"), compression="zstd")
    return folder


def _episode(chance: random.Random, index: int, turns: int) -> Trajectory:
    broken = chance.random() < 0.01
    made = [_turn(chance) for _ in range(chance.randint(max(1, turns - 3), turns + 3))]
    return Trajectory(
        ("SimpleSokoban", "FrozenLake", "WebShop")[index // 8 % 3],
        f"train-{index // 8:07d}",
        index % 8,
        index // 8,
        turns=made,
        status=Status.ERROR_ENV if broken else Status.COMPLETED,
        score=None if broken else chance.gauss(0, 1),
        error="ValueError: the level has no player" if broken else None,
        metrics={"success": float(chance.random() < 0.4)},
        messages=[{"role": "user", "content": "Solve the puzzle."}],
    )


def _turn(chance: random.Random) -> Turn:
    words = " ".join(chance.choices(WORDS, k=30))
    ids = [chance.randrange(2000) for _ in range(32)]
    return Turn(
        ids,
        ids,
        [-chance.random() for _ in ids],
        observation="######\n#P___#\n#__X_#\n#__O_#\n######",
        response=words,
        action="Up",
        reward=-0.1,
        reward_parts={"env": -0.1},
        seconds={"generate": 0.1},
    )


def _measure(run: Path) -> None:
    """Print seconds of wall and processor time for what a person waits for."""
    port, addresses = 8765, list[str]()
    episodes = Episodes(RunFolder.find(run))
    _, gate = make_app(Review(episodes), port, addresses.append)
    gate.new_key()
    with ExitStack() as stack:
        with _timed("start and first page"):
            client = stack.enter_context(TestClient(gate, base_url=f"http://127.0.0.1:{port}"))
            _get(client, addresses[0])
        with _timed("all files read"):
            while episodes.pending:
                time.sleep(0.01)
        for name, address in {
            "table": "/episodes",
            "filter by tag and score": "/episodes?tag=WebShop&score=1..&sort=-score",
            "filter by error": "/episodes?error=player",
            "first search, reads all text": "/episodes?text=push+up+maybe",
            "search": "/episodes?text=right+wall",
            "search, rare": "/episodes?text=push+up+then+right+wall",
        }.items():
            with _timed(name):
                _get(client, address)
        row = episodes.select(Filter())[0]
        with _timed("episode"):
            _get(client, f"/episode/{row.phase}/{row.step}/{row.episode}/{row.group_id}")
    episodes.close()


def _get(client: TestClient, address: str) -> None:
    response = client.get(address)
    assert response.status_code == 200, response.text[:300]


@contextmanager
def _timed(name: str) -> Iterator[None]:
    wall, processor = time.perf_counter(), time.process_time()
    yield
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    sys.stdout.write(f"{name:<30} {wall:7.3f} s  {processor:7.3f} s of processor time\n")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run to measure with, instead of writing one")
    parser.add_argument("--files", type=int, default=200, help="steps of the run that is written (default: 200)")
    parser.add_argument("--episodes", type=int, default=512, help="episodes of each (default: 512)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _measure(options.run or write_run(Path(folder), files=options.files, episodes=options.episodes, turns=10))


if __name__ == "__main__":
    main()
